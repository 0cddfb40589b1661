"""What torch.cuda says and takes of the emulated device's memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify.allocator_settings import UNLIMITED, parse
from oomlint.verify.device import Device, Hold
from oomlint.verify.device_names import ORDINAL, index_of
from oomlint.verify.statistics import Statistics


def functions(emulated: Device) -> dict[str, Any]:
    allocator = emulated.allocator

    def now() -> Statistics:
        return allocator.statistics()

    def set_fraction(fraction: float, device: Any = None) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        index_of(device, "Allocator not initialized for device {}: did you call init?")
        allocator.fraction = fraction

    def get_fraction(device: Any = None) -> float:
        index_of(device)
        return allocator.fraction

    def count(name: str, which: str) -> Callable[..., int]:
        def answer(device: Any = None) -> int:
            index_of(device)
            return int(getattr(getattr(now(), name), which))

        return answer

    def reset_peak(device: Any = None) -> None:
        index_of(device)
        allocator.reset_peak()

    def reset_accumulated(device: Any = None) -> None:
        index_of(device)
        now().reset_accumulated()

    def set_settings(env: str) -> None:
        allocator.settings = parse(env)

    def memory_info(device: Any = None) -> tuple[int, int]:
        index_of(device, ORDINAL, torch.AcceleratorError)
        return allocator.available, allocator.capacity

    memory_stats, nested_stats = statistics_of(emulated)
    return {
        "memory_allocated": count("allocated", "current"),
        "max_memory_allocated": count("allocated", "peak"),
        "memory_reserved": count("reserved", "current"),
        "max_memory_reserved": count("reserved", "peak"),
        "memory_cached": count("reserved", "current"),
        "max_memory_cached": count("reserved", "peak"),
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": nested_stats,
        "mem_get_info": memory_info,
        "empty_cache": allocator.empty_cache,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": reset_accumulated,
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": get_fraction,
        "get_allocator_backend": lambda: allocator.settings.backend,
        "_set_allocator_settings": set_settings,
    }


def statistics_of(emulated: Device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The same numbers by dotted names, and as dictionaries in dictionaries."""
    allocator = emulated.allocator

    def memory_stats(device: Any = None) -> OrderedDict[str, int]:
        index_of(device)
        limit = allocator.settings.max_split
        found = allocator.statistics().named() | {
            "max_split_size": -1 if limit >= UNLIMITED else limit
        }
        return OrderedDict(sorted(found.items()))

    def nested_stats(device: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in memory_stats(device).items():
            *path, last = name.split(".")
            inner = found
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
        return found

    return memory_stats, nested_stats


def by_address(emulated: Device) -> dict[str, Callable[..., Any]]:
    """Memory by its address, without a tensor; what is on a stream is not told apart."""
    held: dict[int, Hold] = {}

    def take(size: int, stream: int) -> int:
        hold = emulated.hold(size)
        address = emulated.allocator.address(hold.block) if hold.block is not None else 0
        held[address] = hold
        return address

    def give_back(address: int) -> None:
        held.pop(address, None)

    return {
        "_cuda_cudaCachingAllocator_raw_alloc": take,
        "_cuda_cudaCachingAllocator_raw_delete": give_back,
        "_cuda_cudaCachingAllocator_enable": lambda on: None,
        "_cuda_getCublasWorkspaceSize": emulated.profile.chosen_workspace,
    }


COUNTED = ("allocations", "active_requests", "allocated_bytes", "active_bytes")


def host_statistics() -> dict[str, Any]:
    """Of pinned memory, which is not counted."""
    found: dict[str, Any] = {"num_host_alloc": 0, "num_host_free": 0}
    for name in COUNTED:
        found[name] = dict.fromkeys(("current", "peak", "allocated", "freed"), 0)
    for name in ("host_alloc_time", "host_free_time"):
        found[name] = dict.fromkeys(("total", "max", "min", "count", "avg"), 0)
    return found
