"""Process groups of the emulated device: what NCCL would do between GPUs, gloo does on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as distributed


def install() -> None:
    """Scripts that ask for NCCL get gloo, which sees the tensors where they really are."""
    if not distributed.is_available():
        return
    core: Any = distributed.distributed_c10d
    module: Any = distributed
    replaced = {
        "init_process_group": on_gloo(core.init_process_group, 0),
        "new_group": on_gloo(core.new_group, 2),
        "barrier": without(core.barrier, "device_ids"),
        "is_nccl_available": lambda: True,
    }
    for name, function in replaced.items():
        setattr(core, name, function)
        setattr(module, name, function)


def on_gloo(original: Callable[..., Any], position: int) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if position < len(given):
            given[position] = plain(given[position])
        elif "backend" in kwargs:
            kwargs["backend"] = plain(kwargs["backend"])
        kwargs.pop("device_id", None)
        return original(*given, **kwargs)

    return call


def plain(backend: Any) -> Any:
    return "gloo" if "nccl" in str(backend).lower() else backend


def without(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop(name, None)
        return original(*args, **kwargs)

    return call
