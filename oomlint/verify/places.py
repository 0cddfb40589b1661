"""CUDA's refusal of tensors that lie on different devices, in its own words."""

from __future__ import annotations

from typing import Any

import torch

from oomlint.verify.device import UNSURE, on_device, storages, tensors_in

aten: Any = torch.ops.aten
EXPECTED = "Expected all tensors to be on the same device, but"
BETWEEN = f"{EXPECTED} found at least two devices, cuda:0 and cpu!"
# Operators that name the argument, by what CUDA's build calls their kernels.
KERNELS = {
    aten.mm.default: "mm",
    aten.addmm.default: "addmm",
    aten.bmm.default: "bmm",
    aten.baddbmm.default: "baddbmm",
    aten.mv.default: "_mv",
    aten.addmv.default: "addmv",
    aten.dot.default: "_dot",
    aten.cat.default: "cat",
    aten.gather.default: "gather",
    aten.scatter.src: "scatter",
    aten.scatter_.src: "scatter_",
    aten.scatter_add.default: "scatter_add",
    aten.scatter_add_.default: "scatter_add_",
    aten.index_add.default: "index_add",
    aten.index_select.default: "_index_select",
    aten.embedding.default: "_index_select",
    aten.nll_loss_forward.default: "nll_loss_forward",
    aten.nll_loss2d_forward.default: "_nll_loss2d_forward",
    aten.native_layer_norm.default: "_native_layer_norm",
    aten.native_group_norm.default: "_native_group_norm",
    aten.native_batch_norm.default: "_native_batch_norm",
    aten.binary_cross_entropy.default: "_binary_cross_entropy",
    aten.equal.default: "_equal",
    aten.convolution.default: "__slow_conv2d_forward",
}
NAMES = {aten.embedding.default: ("weight", "index")}
ELEMENTWISE = (aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default)
WRITES = (aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default)
FILLED = (aten.masked_fill.Scalar, aten.masked_fill_.Scalar)


def check(func: Any, args: Any) -> None:
    """Raises RuntimeError where CUDA's kernel would find arguments on two devices."""
    if func in KERNELS:
        check_named(func, args)
    elif func is aten.index.Tensor:
        indices = [one for one in args[1] if one is not None]
        if not on_device(args[0]) and any(map(on_device, indices)):
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            )
    elif func in FILLED and args[1].dim() and where(args[0]) != where(args[1]):
        raise RuntimeError(
            "expected self and mask to be on the same device, but got mask on "
            f"{where(args[1])} and self on {where(args[0])}"
        )
    elif func in WRITES and args[2].dim() and where(args[0]) != where(args[2]):
        raise RuntimeError(BETWEEN)
    elif torch.Tag.pointwise in func.tags or func in ELEMENTWISE:
        check_pointwise(args)


def check_named(func: Any, args: Any) -> None:
    names = NAMES.get(func) or tuple(one.name for one in func._schema.arguments)
    first: str | None = None
    for name, value in zip(names, args, strict=False):
        for tensor in tensors_in([value]):
            if unsure(tensor):
                continue
            place = where(tensor)
            first = first or place
            if place == first:
                continue
            if func is aten.convolution.default and torch.backends.cudnn.enabled:
                kinds = (one.type() for one in args[:2])
                raise RuntimeError(
                    "Input type ({}) and weight type ({}) should be the same".format(*kinds)
                )
            raise RuntimeError(
                f"{EXPECTED} got {name} is on {place}, different from other tensors on {first} "
                f"(when checking argument in method wrapper_CUDA_{KERNELS[func]})"
            )


def check_pointwise(args: Any) -> None:
    """A single number may come from the host, and nothing else from elsewhere."""
    tensors = [one for one in tensors_in(args) if not unsure(one)]
    if tensors and not on_device(tensors[0]) and tensors[0].dim():
        strangers = [one for one in tensors if on_device(one)]
    else:
        strangers = [one for one in tensors if one.dim() and not on_device(one)]
        strangers = strangers if any(map(on_device, tensors)) else []
    if strangers:
        raise RuntimeError(BETWEEN)


def where(tensor: torch.Tensor) -> str:
    return "cuda:0" if on_device(tensor) else "cpu"


def unsure(tensor: torch.Tensor) -> bool:
    """Whether C++ made it from nothing: it says the CPU's name for either device."""
    return not on_device(tensor) and any(hasattr(one, UNSURE) for one in storages(tensor))
