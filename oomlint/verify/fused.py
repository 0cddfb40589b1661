"""Operators that are one kernel on CUDA and several on the CPU, with the memory of the one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify import extrema
from oomlint.verify.attending import attend, composed, transformed
from oomlint.verify.attention import HALVES
from oomlint.verify.device import Device, on_device, tensors_in
from oomlint.verify.mixed_precision import operator_named
from oomlint.verify.recurrent import layers

aten: Any = torch.ops.aten


def install(device: Device) -> tuple[torch.library.Library, dict[Any, Callable[..., Any]]]:
    """Registers the kernels; also returns them by operator, for where there is no autograd."""
    kernels = {
        aten.scaled_dot_product_attention.default: attend(device),
        aten.rms_norm.default: normalize(device),
        aten.dropout.default: dropout,
        aten.group_norm.default: group_norm,
        **layers(device),
    }
    for name in MAKING:
        operator = operator_named(name)
        kernels[operator] = placing(device, operator)
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator, kernel in kernels.items():
            library.impl(operator.name().removeprefix("aten::"), kernel, "AutogradCPU")
    extrema.install(library)
    return library, kernels


# Composed operators that make tensors from nothing for their result.
MAKING = (
    *("one_hot", "combinations", "cov", "vander", "_pad_circular", "pad"),
    *("ctc_loss.IntList", "ctc_loss.Tensor", "quantile.scalar", "nanquantile.scalar"),
    *("istft", "linalg_matrix_rank.atol_rtol_tensor", "linalg_matrix_rank.atol_rtol_float"),
)


def placing(device: Device, operator: Any) -> Callable[..., Any]:
    def place(*args: Any, **kwargs: Any) -> Any:
        with device.within(any(map(on_device, tensors_in(args)))):
            return composed(operator, *args, **kwargs)

    return place


def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """CUDA saves a mask of one byte for each value, the CPU's own operator a mask of values."""
    return torch.native_dropout(x, p, train)[0] if train and p > 0 else x


def group_norm(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    """CUDA's kernel reads the channels one after the other, wherever they lie."""
    return composed(aten.group_norm.default, x.contiguous() if on_device(x) else x, *rest)


class Norm(torch.autograd.Function):  # type: ignore[misc]
    """`rms_norm` in one kernel, which saves the inverse of the roots and nothing else."""

    @staticmethod
    def forward(ctx: Any, device: Device, x: Any, weight: Any, dims: int, eps: float) -> Any:
        copy = None if x.is_contiguous() else device.hold(x.numel() * x.element_size())
        with device.paused():
            wide = x.float()
            last = tuple(range(-dims, 0))
            root = torch.rsqrt(wide.square().mean(last, keepdim=True) + eps)
            normal = wide * root
            made = normal if weight is None else normal * weight.float()
            out = made.to(x.dtype).contiguous()
        device.tag(out)
        device.tag(root)
        del copy
        ctx.save_for_backward(x, weight, root)
        ctx.device, ctx.last = device, last
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        device: Device = ctx.device
        x, weight, root = ctx.saved_tensors
        copies = [
            device.hold(tensor.numel() * tensor.element_size())
            for tensor in (grad, x)
            if not tensor.is_contiguous()
        ]
        with device.paused():
            normal = x.float() * root
            wide = grad.float()
            scaled = wide if weight is None else wide * weight.float()
            mean = (scaled * normal).mean(ctx.last, keepdim=True)
            first = ((scaled - normal * mean) * root).to(x.dtype).contiguous()
            second = None
            if weight is not None:
                rows = tuple(range(x.dim() - weight.dim()))
                second = (wide * normal).sum(rows) if rows else wide * normal
                second = second.to(weight.dtype)
        device.tag(first)
        if second is not None:
            device.tag(second)
        copies.clear()
        return None, first, second, None, None


def normalize(device: Device) -> Callable[..., Any]:
    operator = aten.rms_norm.default

    def normalize(
        x: torch.Tensor,
        normalized_shape: list[int],
        weight: torch.Tensor | None = None,
        eps: float | None = None,
    ) -> torch.Tensor:
        mixed = weight is not None and weight.dtype != x.dtype
        plain = x.dtype is torch.float32 or x.dtype in HALVES
        if not on_device(x) or mixed or not plain or transformed():
            return composed(operator, x, normalized_shape, weight, eps)
        small = torch.finfo(torch.float32 if x.dtype in HALVES else x.dtype).eps
        return Norm.apply(device, x, weight, len(normalized_shape), small if eps is None else eps)

    return normalize
