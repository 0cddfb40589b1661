"""Tensors whose class holds other tensors: sharded, nested and quantized ones.

Torch makes them without memory of their own and by the name of a device, which on a CPU build ends
the process where that is CUDA. Here they are the host's, with the mark of what lives on the device.
Fake tensors, by which sharded ones foresee their shapes, pass the emulated device by.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from oomlint.verify.device import CPU, TAG, Device, on_device
from oomlint.verify.device_names import target
from oomlint.verify.dispatch import unseen


class Empty:
    """Stands where other storages have the block of memory that they hold."""

    __slots__ = ("size",)
    block = None

    def __init__(self, size: Any) -> None:
        self.size = size


def is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device) and value.type == "cuda"


def install(device: Device) -> None:
    base: Any = torch.Tensor
    original = base._make_wrapper_subclass

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        named = target(kwargs.get("device"))
        if not any(map(is_cuda, (named, *args))):
            return original(*args, **kwargs)
        if named is not None:
            kwargs["device"] = CPU
        made = original(*(CPU if is_cuda(one) else one for one in args), **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            storage = made.untyped_storage()
            setattr(storage, TAG, Empty(storage.nbytes()))
        return made

    base._make_wrapper_subclass = staticmethod(make)
    mode: Any = FakeTensorMode
    mode.__torch_dispatch__ = unseen(mode.__torch_dispatch__)
    install_exchange(device)


def install_exchange(device: Device) -> None:
    """What is handed over within the process stays where it is, also where C++ does not say so."""
    general: Any = torch
    base_exchange, base_nested = torch.from_dlpack, torch._C._nested.nested_tensor

    def from_dlpack(given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, torch.Tensor) and on_device(given):
            return given.detach()
        return base_exchange(given, *args, **kwargs)

    def nested(*args: Any, **kwargs: Any) -> Any:
        where = target(kwargs.get("device"))
        if where is None or not is_cuda(where):
            return base_nested(*args, **kwargs)
        with device.placing(where):
            return base_nested(*args, **{**kwargs, "device": CPU})

    general.from_dlpack = general.utils.dlpack.from_dlpack = from_dlpack
    general._C._nested.nested_tensor = nested
