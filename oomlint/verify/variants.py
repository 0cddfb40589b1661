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


def bags(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """CUDA always notes the bag of each index, and the lines only for their largest values."""
    made, of_index, sizes, lines = func(*args, **kwargs)
    indices, offsets = args[1:3]
    mode = args[4] if len(args) > 4 else SUM
    if mode == SUM:
        offsets = offsets[:-1] if len(args) > 7 and args[7] else offsets
        places = torch.arange(indices.numel(), dtype=offsets.dtype)
        of_index = torch.searchsorted(offsets.contiguous(), places, right=True).to(offsets.dtype)
        of_index -= 1
    return made, of_index, sizes, lines if mode == LARGEST else lines.new_empty(0)


SUM, LARGEST = 0, 2  # modes of embedding bags
VARIANTS: dict[Any, Run] = {
    aten.native_layer_norm.default: normalized,
    aten.native_layer_norm_backward.default: normalized_backward,
    aten.log_sigmoid_forward.default: log_sigmoid,
    aten.log_sigmoid_backward.default: log_sigmoid_backward,
    aten._embedding_bag.default: bags,
    aten._embedding_bag_forward_only.default: bags,
    aten.native_dropout_backward.default: dropped_backward,
}
