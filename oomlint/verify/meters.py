"""Reads what a run uses: device bytes, live autograd nodes, host memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from oomlint.verify.device import Device
from oomlint.verify.history import MEASURING


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the device now, and peaks since the last reset; blocks count live storages."""

    requested: int
    requested_peak: int
    allocated: int
    allocated_peak: int
    reserved: int
    blocks: int
    device_allocations: int  # requests to the device itself since the process began
    # None where nobody counts them.
    waits: int | None  # of the host for the device
    copies: int | None  # of tensors from the host to the device


class Meter(Protocol):
    def memory(self) -> Memory: ...

    def reset_peak(self) -> None: ...

    def paused(self) -> contextlib.AbstractContextManager[None]: ...

    def host(self) -> int: ...


class EmulatedMeter:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.inside = True  # whether what the device holds lies in the host's memory

    def memory(self) -> Memory:
        state = self.device.allocator.statistics()
        return Memory(
            state.requested.current,
            state.requested.peak,
            state.allocated.current,
            state.allocated.peak,
            state.reserved.current,
            state.blocks.current,
            state.device_allocations,
            self.device.waits,
            self.device.copies,
        )

    def reset_peak(self) -> None:
        self.device.allocator.reset_peak()

    def paused(self) -> contextlib.AbstractContextManager[None]:
        return self.device.paused()

    def host(self) -> int:
        # What the emulated device holds in the host's memory is no part of the answer.
        held = self.device.allocator.statistics().requested.current if self.inside else 0
        return max(0, resident_bytes() - held)


class CudaMeter:
    """Measuring takes memory of the device, too: peaks leave out what comes while paused."""

    def __init__(self) -> None:
        self.depth = 0
        self.requested = self.allocated = 0  # peaks up to the last pause
        self.tell = getattr(torch.cuda.memory, "_set_memory_metadata", lambda words: None)

    def memory(self) -> Memory:
        stats = torch.cuda.memory_stats()
        return Memory(
            stats.get("requested_bytes.all.current", 0),
            max(self.requested, stats.get("requested_bytes.all.peak", 0)),
            stats.get("allocated_bytes.all.current", 0),
            max(self.allocated, stats.get("allocated_bytes.all.peak", 0)),
            stats.get("reserved_bytes.all.current", 0),
            stats.get("allocation.all.current", 0),
            stats.get("num_device_alloc", 0),
            None,
            None,
        )

    def reset_peak(self) -> None:
        self.requested = self.allocated = 0
        torch.cuda.reset_peak_memory_stats()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        if self.depth == 0:
            memory = self.memory()
            self.requested, self.allocated = memory.requested_peak, memory.allocated_peak
            self.tell(MEASURING)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1
            if self.depth == 0:
                self.tell("")
                torch.cuda.reset_peak_memory_stats()

    def host(self) -> int:
        return resident_bytes()


def resident_bytes() -> int:
    """Resident memory of this process; its largest so far where the system does not say."""
    if give_back is not None:
        give_back(0)
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def allocator_trim() -> Callable[[int], int] | None:
    """glibc's malloc_trim: what was freed goes back before resident memory is read."""
    if sys.platform != "linux":
        return None
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


give_back = allocator_trim()


def live_nodes() -> int:
    """Autograd nodes that live tensors keep alive, counted once each.

    Tensors that only C++ holds are reached through the graph of the ones that Python holds.
    """
    seen: set[Any] = set()
    waiting: list[Any] = []
    for thing in gc.get_objects():
        if not issubclass(type(thing), torch.Tensor):
            continue
        try:
            node = thing.grad_fn
        except RuntimeError:
            continue  # a wrapper that outlived the transform that made it
        if node is not None and node not in seen:
            seen.add(node)
            waiting.append(node)
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return len(seen)
