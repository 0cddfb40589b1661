"""autocast("cuda") on the CPU: the same switch, CUDA's choice of precision for each operator."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch

# Operators that CUDA's autocast computes in float32 and the CPU's in the lower precision.
FLOAT32 = (
    "softmax.int",
    "log_softmax.int",
    "layer_norm",
    "group_norm",
    "rms_norm",
    "sum",
    "sum.dim_IntList",
    "cumsum",
    "exp",
    "log",
    "pow.Tensor_Scalar",
    "pow.Tensor_Tensor",
    "pow.Scalar",
    "rsqrt",
    "norm.Scalar",
    "norm.ScalarOpt_dim",
    "cosine_similarity",
    "softplus",
    "upsample_bilinear2d",
    "upsample_bilinear2d.vec",
)
LOWER = (torch.float16, torch.bfloat16)
# What CUDA's autocast says of binary_cross_entropy, whatever its inputs are.
UNSAFE = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
    "binary_cross_entropy_with_logits and BCEWithLogits are safe to autocast."
)


class Chosen(threading.local):
    """The lower precision of each device type in this thread."""

    cuda: torch.dtype = torch.float16
    cpu: torch.dtype = torch.bfloat16
    on_cuda: bool = False  # whether the autocast that is on is CUDA's


chosen = Chosen()
registrations: list[Any] = []


def install() -> None:
    patch_switches()
    library = torch.library.Library("aten", "IMPL")
    registrations.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in FLOAT32:
            library.impl(name, in_float32(name), "AutocastCPU")
        library.impl("binary_cross_entropy", refused_on_cuda, "AutocastCPU")


def refused_on_cuda(*args: Any, **kwargs: Any) -> Any:
    if chosen.on_cuda:
        raise RuntimeError(UNSAFE)
    return in_float32("binary_cross_entropy")(*args, **kwargs)


def in_float32(name: str) -> Any:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.float() if value.dtype in LOWER else value
        if isinstance(value, (list, tuple)):
            return type(value)(widen(item) for item in value)
        return value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            wide = [widen(value) for value in args]
            return operator(*wide, **{key: widen(value) for key, value in kwargs.items()})

    return kernel


def patch_switches() -> None:
    """The CPU has one switch in C++: cuda and cpu share it, each with its own default precision."""
    module: Any = torch
    enabled, set_enabled = torch.is_autocast_enabled, torch.set_autocast_enabled
    set_dtype = torch.set_autocast_dtype

    def is_autocast_enabled(device_type: str = "cuda") -> bool:
        return bool(enabled("cpu" if device_type == "cuda" else device_type))

    def set_autocast_enabled(*args: Any) -> None:
        device_type, value = args if len(args) == 2 else ("cuda", args[0])
        chosen.on_cuda = device_type == "cuda" and value
        set_enabled("cpu" if device_type == "cuda" else device_type, value)

    def get_autocast_dtype(device_type: str) -> torch.dtype:
        if device_type in ("cuda", "cpu"):
            return chosen.cuda if device_type == "cuda" else chosen.cpu
        return base_dtype(device_type)

    def set_autocast_dtype(device_type: str, dtype: torch.dtype) -> None:
        if device_type not in ("cuda", "cpu"):
            set_dtype(device_type, dtype)
            return
        setattr(chosen, device_type, dtype)
        set_dtype("cpu", dtype)

    base_dtype = torch.get_autocast_dtype
    module.is_autocast_enabled = is_autocast_enabled
    module.set_autocast_enabled = set_autocast_enabled
    module.get_autocast_dtype = get_autocast_dtype
    module.set_autocast_dtype = set_autocast_dtype
    module.get_autocast_gpu_dtype = lambda: get_autocast_dtype("cuda")
    module.set_autocast_gpu_dtype = lambda dtype: set_autocast_dtype("cuda", dtype)
    module.amp.autocast_mode.is_autocast_available = lambda device_type: (
        device_type
        in (
            "cuda",
            "cpu",
        )
    )
    module.amp.is_autocast_available = module.amp.autocast_mode.is_autocast_available
