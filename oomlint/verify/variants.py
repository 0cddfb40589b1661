"""Operators of which CUDA returns other tensors than the CPU: in number, dtype or layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify.attention import HALVES

aten: Any = torch.ops.aten
Run = Callable[[Any, Any, dict[str, Any]], Any]


def normalized(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Of halves, too, CUDA keeps means and inverse deviations in float32."""
    made, *kept = func(*args, **kwargs)
    return made, *(one.float() for one in kept)


def normalized_backward(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    grad, given, shape, mean, inverse, weight, *rest = args
    dtype = given.dtype
    if dtype in HALVES and (weight is None or weight.dtype is dtype):
        mean, inverse = mean.to(dtype), inverse.to(dtype)
    return func(grad, given, shape, mean, inverse, weight, *rest, **kwargs)


def log_sigmoid(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The CPU keeps what CUDA computes once more."""
    made, buffer = func(*args, **kwargs)
    return made, buffer.new_empty(0)


def log_sigmoid_backward(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    grad, given, _ = args
    return func(grad, given, given.abs().neg_().exp_(), **kwargs)


def dropped_backward(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """In the order of elements that most kernels like, not that of the gradient."""
    made = func(*args, **kwargs)
    return made.contiguous(memory_format=torch._prims_common.suggest_memory_format(args[0]))


VARIANTS: dict[Any, Run] = {
    aten.native_layer_norm.default: normalized,
    aten.native_layer_norm_backward.default: normalized_backward,
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten.log_sigmoid_backward.default: log_sigmoid_backward,
    aten.native_dropout_backward.default: dropped_backward,
}
