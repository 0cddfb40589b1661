"""Lets a whole number name the emulated device wherever torch takes a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

real: Any = torch.device
# What makes a tensor from no other one; C++ would ask for an accelerator that is none here.
FACTORIES = tuple(
    "zeros ones empty full rand randn randint randperm arange range linspace logspace eye"
    " empty_strided empty_permuted tril_indices triu_indices scalar_tensor bartlett_window"
    " blackman_window hamming_window hann_window kaiser_window".split()
)


ORDINAL = "CUDA error: invalid device ordinal (the emulated machine has one device)"


class Naming(type):
    """The type of torch.device here: its instances are the real ones."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        first = kwargs.get("device", kwargs.get("type", args[0] if args else None))
        if isinstance(first, int) and is_number(first):
            return named(first)
        return real(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, real)

    def __subclasscheck__(cls, other: type) -> bool:
        return other is cls or issubclass(other, real)


Device = Naming("device", (), {"__module__": "torch", "__doc__": real.__doc__})


def is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def named(number: int) -> Any:
    if number < 0:
        raise RuntimeError(f"Device index must be non-negative, got {number}")
    return real("cuda", number)


def install() -> None:
    module: Any = torch
    torch.utils._device._device_constructors()  # which it remembers, as C++ calls them
    module.device = Device
    scripted = torch.jit._builtins._get_builtin_table()  # TorchScript knows builtins by identity
    scripted[id(Device)] = scripted[id(real)]
    for name in FACTORIES:
        original = getattr(torch, name)
        replaced = by_number(original)
        if id(original) in scripted:
            scripted[id(replaced)] = scripted[id(original)]
        setattr(module, name, replaced)
    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        """What modules do with the arguments of `to`."""
        if args and is_number(args[0]):
            args = named(args[0]), *args[1:]
        if is_number(kwargs.get("device")):
            kwargs["device"] = named(kwargs["device"])
        return parse(*args, **kwargs)

    core: Any = torch._C._nn
    core._parse_to = parse_to


def by_number(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        if is_number(kwargs.get("device")):
            kwargs["device"] = named(kwargs["device"])
        return original(*args, **kwargs)

    return make


def target(value: Any) -> torch.device | None:
    """The device that a user's argument names; raises what CUDA raises where it has no such one."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.device("cuda", value)
    named = value if isinstance(value, torch.device) else torch.device(value)
    if named.type == "cuda" and (named.index or 0) > 0:
        raise torch.AcceleratorError(ORDINAL)
    return named


class Index(int):
    """As CUDA's own errors show it: a character, unless they want a number."""

    def __format__(self, spec: str) -> str:
        return int.__format__(self, spec) if spec or self < 0 else chr(self)


def index_of(
    device: Any,
    refusal: str = "Invalid device argument {}: did you call init?",
    error: type[Exception] = RuntimeError,
    below: bool = False,
) -> int:
    """The index that a device has; raises `error` for one that is not there, as CUDA does.

    With `below` negative numbers, which mean no device to CUDA, are let through. Raises ValueError
    for a device that is no CUDA one.
    """
    if device is None:
        return 0
    index = int(torch.cuda._utils._get_device_index(device, optional=True))
    if index > 0 or (index < 0 and not below):
        raise error(refusal.format(Index(index)))
    return index
