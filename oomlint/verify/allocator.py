"""A model of CUDA's caching allocator: which blocks and segments a sequence of requests leaves."""

from __future__ import annotations

import os
import re
import threading
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field

KIB, MIB, GIB = 1024, 1024**2, 1024**3

MIN_BLOCK = 512
SMALL_LIMIT = 1 * MIB  # inclusive
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
MIN_LARGE = 10 * MIB
LARGE_ROUNDING = 2 * MIB


def round_size(request: int) -> int:
    """The bytes that a request of `request` > 0 bytes asks of a pool."""
    return max(MIN_BLOCK, -(-request // MIN_BLOCK) * MIN_BLOCK)


def round_up(size: int, divisions: int) -> int:
    """A size of the `divisions` equal steps between two powers of two that holds `size` bytes."""
    floor = 1 << (size.bit_length() - 1)
    step = floor // divisions
    return size if size == floor else -(-size // step) * step


def configured_divisions() -> int:
    """`roundup_power2_divisions` of the environment; 0 where it is not set to one number."""
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        found = re.search(r"roundup_power2_divisions:(\d+)", os.environ.get(name, ""))
        if found:
            return int(found[1])
    return 0


def segment_size(size: int) -> int:
    """The bytes asked of the device for a rounded size that no cached block can hold."""
    if size <= SMALL_LIMIT:
        return SMALL_SEGMENT
    if size < MIN_LARGE:
        return LARGE_SEGMENT
    return -(-size // LARGE_ROUNDING) * LARGE_ROUNDING


@dataclass(slots=True)
class Counter:
    """A current value and the largest one since the last reset."""

    current: int = 0
    peak: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current


@dataclass(slots=True)
class Statistics:
    """Bytes and counts under the names that torch.cuda.memory_stats gives them."""

    allocated: Counter = field(default_factory=Counter)
    requested: Counter = field(default_factory=Counter)
    reserved: Counter = field(default_factory=Counter)
    inactive_split: Counter = field(default_factory=Counter)
    blocks: Counter = field(default_factory=Counter)
    segments: Counter = field(default_factory=Counter)
    allocations: int = 0
    frees: int = 0
    device_allocations: int = 0
    device_frees: int = 0
    retries: int = 0
    ooms: int = 0

    def counters(self) -> tuple[Counter, ...]:
        return (
            self.allocated,
            self.requested,
            self.reserved,
            self.inactive_split,
            self.blocks,
            self.segments,
        )


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; neighbours are linked, free or not."""

    small: bool
    size: int
    segment: int
    offset: int
    requested: int = 0
    free: bool = True
    previous: Block | None = None
    following: Block | None = None

    def key(self) -> tuple[int, int, int]:
        # Best fit; among equal sizes the oldest segment, then the lowest address (torch >= 2.13).
        return self.size, self.segment, self.offset

    def split(self) -> bool:
        return self.previous is not None or self.following is not None


class CapacityExceeded(Exception):
    """The device has no room for a request; sizes are bytes."""

    def __init__(self, request: int, segment: int, capacity: int, state: Statistics) -> None:
        self.request, self.segment, self.capacity = request, segment, capacity
        self.allocated = state.allocated.current
        self.reserved = state.reserved.current
        super().__init__(
            f"CUDA out of memory. Tried to allocate {format_size(segment)}. GPU 0 has a total "
            f"capacity of {format_size(capacity)} of which "
            f"{format_size(max(0, capacity - self.reserved))} is free. Of the allocated memory "
            f"{format_size(self.allocated)} is allocated by PyTorch, and "
            f"{format_size(self.reserved - self.allocated)} is reserved by PyTorch but "
            "unallocated. (raised by oomlint's emulated device)"
        )


def format_size(size: int) -> str:
    """Bytes the way CUDA's own out-of-memory text writes them."""
    if size <= KIB:
        return f"{size} bytes"
    if size <= MIB:
        return f"{size / KIB:.2f} KiB"
    if size <= GIB:
        return f"{size / MIB:.2f} MiB"
    return f"{size / GIB:.2f} GiB"


class Allocator:
    """One device and one stream.

    `free` may be called from anywhere, a finalizer in the middle of `malloc` included: it only
    queues the block, and the queue is emptied before anything is searched or counted.
    """

    def __init__(self, capacity: int = 80 * GIB, fraction: float = 1.0) -> None:
        self.capacity = capacity
        self.fraction = fraction
        self._statistics = Statistics()
        self._free: dict[bool, list[tuple[tuple[int, int, int], Block]]] = {True: [], False: []}
        self._segments = 0
        self._divisions: int | None = None  # read at the first request, as CUDA's is
        self._queue: deque[Block] = deque()
        self._lock = threading.RLock()

    def malloc(self, request: int) -> Block | None:
        """A block for `request` bytes, None for zero; raises CapacityExceeded."""
        if request <= 0:
            return None
        with self._lock:
            self._drain()
            size = self._round(request)
            block = self._find(size) or self._grow(size, request)
            block = self._take(block, size)
            block.requested = request
            state = self._statistics
            state.allocated.add(block.size)
            state.requested.add(request)
            state.blocks.add(1)
            state.allocations += 1
            return block

    def _round(self, request: int) -> int:
        if self._divisions is None:
            self._divisions = configured_divisions()
        if self._divisions > 1 and request > MIN_BLOCK * self._divisions:
            return round_up(request, self._divisions)
        return round_size(request)

    def free(self, block: Block) -> None:
        self._queue.append(block)

    def statistics(self) -> Statistics:
        with self._lock:
            self._drain()
            return self._statistics

    def reset_peak(self) -> None:
        with self._lock:
            self._drain()
            for counter in self._statistics.counters():
                counter.peak = counter.current

    def empty_cache(self) -> None:
        with self._lock:
            self._drain()
            self._release_cached()

    def _drain(self) -> None:
        while self._queue:
            self._return(self._queue.popleft())

    def _find(self, size: int) -> Block | None:
        pool = self._free[size <= SMALL_LIMIT]
        place = bisect_left(pool, ((size, 0, 0),))
        if place == len(pool):
            return None
        block = pool.pop(place)[1]
        if block.split():
            self._statistics.inactive_split.add(-block.size)
        return block

    def _grow(self, size: int, request: int) -> Block:
        wanted = segment_size(size)
        state = self._statistics
        if not self._fits(wanted):
            self._release_cached()
            state.retries += 1
            if not self._fits(wanted):
                state.ooms += 1
                raise CapacityExceeded(request, wanted, self.capacity, state)
        self._segments += 1
        state.reserved.add(wanted)
        state.segments.add(1)
        state.device_allocations += 1
        return Block(size <= SMALL_LIMIT, wanted, self._segments, 0)

    def _fits(self, segment: int) -> bool:
        return self._statistics.reserved.current + segment <= self.capacity * self.fraction

    def _take(self, block: Block, size: int) -> Block:
        rest = block.size - size
        block.free = False
        # A large block is handed out whole unless more than 1 MiB would be left.
        if rest < MIN_BLOCK if block.small else rest <= SMALL_LIMIT:
            return block
        remainder = Block(
            block.small, rest, block.segment, block.offset + size, 0, True, block, block.following
        )
        if remainder.following is not None:
            remainder.following.previous = remainder
        block.following = remainder
        block.size = size
        self._insert(remainder)
        return block

    def _return(self, block: Block) -> None:
        state = self._statistics
        state.allocated.add(-block.size)
        state.requested.add(-block.requested)
        state.blocks.add(-1)
        state.frees += 1
        block.free, block.requested = True, 0
        before, after = block.previous, block.following
        if before is not None and before.free:
            self._remove(before)
            block.offset, block.size = before.offset, block.size + before.size
            block.previous = before.previous
            if block.previous is not None:
                block.previous.following = block
        if after is not None and after.free:
            self._remove(after)
            block.size += after.size
            block.following = after.following
            if block.following is not None:
                block.following.previous = block
        self._insert(block)

    def _insert(self, block: Block) -> None:
        insort(self._free[block.small], (block.key(), block))
        if block.split():
            self._statistics.inactive_split.add(block.size)

    def _remove(self, block: Block) -> None:
        pool = self._free[block.small]
        del pool[bisect_left(pool, (block.key(),))]
        self._statistics.inactive_split.add(-block.size)

    def _release_cached(self) -> None:
        state = self._statistics
        for small in (False, True):
            kept = []
            for key, block in self._free[small]:
                if block.split():
                    kept.append((key, block))
                    continue
                state.reserved.add(-block.size)
                state.segments.add(-1)
                state.device_frees += 1
            self._free[small] = kept
