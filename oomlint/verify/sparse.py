"""Constructors of sparse tensors, whose parts are put on the emulated device first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify.device import CPU, Device, emulated_device, on_device
from oomlint.verify.device_names import target
from oomlint.verify.places import EXPECTED, where

# The tensors that each takes first, by their names; the last of them holds the values.
ROWS, COLUMNS = ("crow_indices", "col_indices"), ("ccol_indices", "row_indices")
PARTS = {
    "sparse_coo_tensor": ("indices", "values"),
    "sparse_csr_tensor": (*ROWS, "values"),
    "sparse_bsr_tensor": (*ROWS, "values"),
    "sparse_csc_tensor": (*COLUMNS, "values"),
    "sparse_bsc_tensor": (*COLUMNS, "values"),
    "sparse_compressed_tensor": ("compressed_indices", "plain_indices", "values"),
}


def install(device: Device) -> None:
    for name, parts in PARTS.items():
        setattr(torch, name, placing(device, getattr(torch, name), parts))


def placing(
    device: Device, original: Callable[..., Any], parts: tuple[str, ...]
) -> Callable[..., Any]:
    count = len(parts)

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        given, rest = args[:count], args[count:]
        given = (*given, *(kwargs.pop(name) for name in parts[len(given) :] if name in kwargs))
        tensors = [value for value in given if isinstance(value, torch.Tensor)]
        place = target(kwargs.get("device"))
        if place is None and not tensors:
            place = emulated_device(torch.empty(0))  # the default device, contexts included
        if place is None:
            check(tensors)
        if place is None or place.type != "cuda":
            return original(*given, *rest, **kwargs)
        kwargs["device"] = CPU
        if len(given) < count:  # a size, and nothing in it
            with device.placing(place):
                return original(*given, *rest, **kwargs)
        *places, values = given
        here = [part(one, place, None) for one in places]
        return original(*here, part(values, place, kwargs.get("dtype")), *rest, **kwargs)

    return make


def part(value: Any, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(device)
    return torch.tensor(value, dtype=dtype, device=device)


def check(tensors: list[torch.Tensor]) -> None:
    """Raises RuntimeError where indices and values are on two devices."""
    if len({on_device(tensor) for tensor in tensors}) > 1:
        first, last = (where(tensors[place]) for place in (0, -1))
        raise RuntimeError(
            f"{EXPECTED} got values is on {last}, different from other tensors on {first} (when "
            "checking argument in method wrapper_SparseCUDA___sparse_coo_tensor_with_dims_and_"
            "tensors)"
        )
