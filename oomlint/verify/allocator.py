"""A model of CUDA's caching allocator: which blocks and segments a sequence of requests leaves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from oomlint.verify.allocator_settings import NATIVE, UNLIMITED, AllocatorSettings, from_environment
from oomlint.verify.blocks import Block, Pool, Pools
from oomlint.verify.expandable import Memory, Ranges, reach
from oomlint.verify.sizes import (
    DEVICE_PAGE,
    GIB,
    MIN_BLOCK,
    SMALL_LIMIT,
    format_size,
    round_size,
    segment_size,
    up,
)
from oomlint.verify.statistics import Statistics

ADVICE = (
    "If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html"
    "#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)


# What is told: an action by torch's name, the block (None out of memory), its bytes, its stream.
Observer = Callable[[str, "Block | None", int, int], None]
FIRST_ADDRESS = 0x7F0000000000


class CapacityExceeded(Exception):
    """The device has no room for a request; the text is CUDA's own."""


def exhaustion(wanted: int, memory: Memory, allowed: int | None, state: Statistics) -> str:
    allocated, reserved = state.allocated.current, state.reserved.current
    allowance = "" if allowed is None else f"{format_size(allowed)} allowed; "
    return (
        f"CUDA out of memory. Tried to allocate {format_size(wanted)}. GPU 0 has a total "
        f"capacity of {format_size(memory.capacity)} of which {format_size(memory.free)} is "
        f"free. Including non-PyTorch memory, this process has {format_size(memory.used)} "
        f"memory in use. {allowance}Of the allocated memory {format_size(allocated)} is "
        f"allocated by PyTorch, and {format_size(reserved - allocated)} is reserved by "
        f"PyTorch but unallocated. {ADVICE}"
    )


def rejection(request: int) -> str:
    return (
        "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
        f"per_process_memory_fraction limit. Requested size: {format_size(request)}"
    )


class Allocator:
    """One device.

    `free` may be called from anywhere, a finalizer in the middle of `malloc` included: it only
    queues the block, and the queue is emptied before anything is searched or counted.
    """

    def __init__(
        self,
        capacity: int = 80 * GIB,
        fraction: float | None = None,
        settings: AllocatorSettings | None = None,
    ) -> None:
        self._memory = Memory(capacity)
        self._fraction = fraction
        self._settings = settings  # the environment's are read at the first request, as CUDA's are
        self._statistics = Statistics()
        self._pools = self._new_pools((0, 0))
        self._others: list[Pools] = []  # that torch.cuda.MemPool made
        self._bases: list[int] = [FIRST_ADDRESS]  # of segments, by number; the next one's is last
        self._live: set[Block] = set()
        self.observer: Observer | None = None
        self._ranges = Ranges(self._memory, self._next_segment, self._map)
        self._busy: deque[Block] = deque()  # freed, but other streams may still work with them
        self._queue: deque[Block] = deque()
        self._lock = threading.RLock()

    @property
    def capacity(self) -> int:
        return self._memory.capacity

    @property
    def available(self) -> int:
        """Bytes that the device itself has not given away."""
        self.statistics()
        return self._memory.free

    @property
    def settings(self) -> AllocatorSettings:
        if self._settings is None:
            self._settings = from_environment()
        return self._settings

    @settings.setter
    def settings(self, settings: AllocatorSettings) -> None:
        with self._lock:
            self._settings = settings

    @property
    def backend(self) -> str:
        """The backend that was asked for by the time of the first request."""
        return NATIVE if self._settings is None else self._settings.backend

    @property
    def fraction(self) -> float:
        return self.settings.fraction if self._fraction is None else self._fraction

    @fraction.setter
    def fraction(self, fraction: float) -> None:
        self._fraction = fraction

    @property
    def _allowed(self) -> int | None:
        fraction = self.fraction
        return int(fraction * self.capacity) if fraction < 1 else None

    def malloc(self, request: int, stream: int = 0, pools: Pools | None = None) -> Block | None:
        """A block for `request` bytes, None for zero; raises CapacityExceeded."""
        if request <= 0:
            return None
        with self._lock:
            self._drain()
            self._release_busy()
            settings = self.settings
            size = round_size(request, settings.divisions_for(request))
            pools = pools or self._pools
            pool = pools.small if size <= SMALL_LIMIT else pools.large
            block = self._find(pool, size, stream) or self._grow(pool, size, stream, request)
            block = self._take(block, size)
            block.requested = request
            self._live.add(block)
            if self.observer is not None:
                self.observer("alloc", block, request, stream)
            for counters in (self._statistics, pool.counters):
                counters.blocks.add(1)
                counters.allocated.add(block.size)
                counters.active_blocks.add(1)
                counters.active.add(block.size)
                counters.requested.add(request)
            if block.size >= settings.max_split:
                self._statistics.oversize_blocks.add(1)
            return block

    def free(self, block: Block) -> None:
        self._queue.append(block)

    def record_stream(self, block: Block, stream: int) -> None:
        """Another stream works with the block: it is not reused at once when it is freed."""
        if stream != block.stream:
            with self._lock:
                block.uses = (block.uses or set()) | {stream}

    def statistics(self) -> Statistics:
        with self._lock:
            self._drain()
            return self._statistics

    def reset_peak(self) -> None:
        self.statistics().reset_peak()

    def empty_cache(self) -> None:
        with self._lock:
            self._drain()
            self._release_cached()

    @property
    def free_now(self) -> int:
        """Bytes of the device, while the allocator is at work."""
        return self._memory.free

    def address(self, block: Block) -> int:
        """Where a block begins; addresses of segments that are gone are not used again."""
        return self._bases[block.segment - 1] + block.offset

    def blocks(self) -> list[Block]:
        """All blocks with memory behind them, in use or free."""
        with self._lock:
            self._drain()
            pools = (pool for pools in (self._pools, *self._others) for pool in pools)
            free = (block for pool in pools for _, block in pool.free)
            return [*self._live, *self._busy, *free]

    def add_pools(self, identity: tuple[int, int], whole: bool = False) -> Pools:
        """Pools of their own, whose segments serve nothing else."""
        pools = self._new_pools(identity)
        pools.small.whole = pools.large.whole = whole
        self._others.append(pools)
        return pools

    def leave_pools(self, pools: Pools) -> None:
        """One user less; the last one's memory goes back as far as it is free."""
        pools.users -= 1
        if not pools.users:
            with self._lock:
                self._drain()
                for pool in pools:
                    self._release_pool(pool)

    def pools_of(self, block: Block) -> tuple[int, int]:
        """The identity of the pools that a block is from."""
        return next((one.id for one in self._others if block.pool in tuple(one)), (0, 0))

    def _new_pools(self, identity: tuple[int, int]) -> Pools:
        small, large = self._statistics.small, self._statistics.large
        return Pools(Pool(True, small), Pool(False, large), identity)

    def _drain(self) -> None:
        while self._queue:
            self._return(self._queue.popleft())

    def _find(self, pool: Pool, size: int, stream: int) -> Block | None:
        settings = self.settings
        if settings.collection_threshold and self._allowed is not None:
            pool.searches += 1
        place = self._fitting(pool, size, stream)
        if place is None:
            return None
        block = pool.free[place][1]
        # Blocks above the limit are kept whole, for requests that are about as large.
        if size < settings.max_split <= block.size:
            return None
        if size >= settings.max_split and block.size >= size + settings.max_non_split_rounding:
            return None
        del pool.free[place]
        return block

    def _fitting(self, pool: Pool, size: int, stream: int) -> int | None:
        """The place of the first free block that is large enough."""
        free, place = pool.free, pool.first(stream, size)
        if place == len(free):
            return None
        block = free[place][1]
        if block.stream != stream:
            return None
        return place if block.range is None else self._expandable(pool, place, stream)

    def _expandable(self, pool: Pool, place: int, stream: int) -> int | None:
        """The place to take instead of a block of an expandable segment, or its own."""
        free = pool.free

        def ours(place: int) -> bool:
            return place < len(free) and free[place][1].stream == stream

        if not self.settings.expandable:
            while ours(place) and free[place][1].range is not None:
                place += 1
            return place if ours(place) else None
        while (
            free[place][1].range is not None
            and ours(place + 1)
            and reach(free[place + 1][1]) < reach(free[place][1])
        ):
            place += 1
        return place

    def _grow(self, pool: Pool, size: int, stream: int, request: int) -> Block:
        settings, state = self.settings, self._statistics
        if settings.collection_threshold and self._allowed is not None:
            self._collect(self._allowed)
        wanted = segment_size(size, settings.large_segment)
        if settings.rejects and state.reserved.current + wanted > settings.fraction * self.capacity:
            state.rejections += 1
            raise CapacityExceeded(rejection(request))
        block = self._obtain(pool, size, stream, wanted)
        if block is None and self._release_oversize(pool, size, stream):
            block = self._obtain(pool, size, stream, wanted)
        if block is None:
            self._release_cached()
            state.retries += 1
            block = self._obtain(pool, size, stream, wanted)
        if block is None:
            state.ooms += 1
            if self.observer is not None:
                self.observer("oom", None, wanted, stream)
            raise CapacityExceeded(exhaustion(wanted, self._memory, self._allowed, state))
        return block

    def _obtain(self, pool: Pool, size: int, stream: int, wanted: int) -> Block | None:
        """A new segment, or more of an expandable one, if the device has the memory."""
        allowed = self._allowed
        if allowed is not None and self._statistics.reserved.current + wanted > allowed:
            return None
        if self.settings.expandable:
            return self._ranges.obtain(pool, stream, size, self.settings.large_segment)
        if not self._memory.take(up(wanted, DEVICE_PAGE)):
            return None
        self._reserve(pool, wanted)
        self._count_segment(pool, wanted, 1)
        block = Block(pool, stream, wanted, self._next_segment(wanted), 0)
        if self.observer is not None:
            self.observer("segment_alloc", block, wanted, stream)
        return block

    def _next_segment(self, size: int) -> int:
        """The number of a new segment, or of a range of addresses, of so many bytes."""
        self._bases.append(self._bases[-1] + up(size, DEVICE_PAGE))
        return len(self._bases) - 1

    def _map(self, block: Block, size: int) -> None:
        """Pages of a range were backed, or given back if `size` is negative."""
        self._reserve(block.pool, size)
        if self.observer is not None:
            action = "segment_map" if size > 0 else "segment_unmap"
            self.observer(action, block, abs(size), block.stream)

    def _reserve(self, pool: Pool, size: int) -> None:
        """Counts memory that the device gave, or took back if `size` is negative."""
        state = self._statistics
        state.reserved.add(size)
        pool.counters.reserved.add(size)
        if size > 0:
            state.device_allocations += 1
        else:
            state.device_frees += 1

    def _count_segment(self, pool: Pool, size: int, change: int) -> None:
        self._statistics.segments.add(change)
        pool.counters.segments.add(change)
        if size >= self.settings.max_split:
            self._statistics.oversize_segments.add(change)

    def _take(self, block: Block, size: int) -> Block:
        """Hands a free block out, without what it has too much."""
        block.allocated = True
        split, rest = block.split, block.size - size
        if not self._divides(block, size):
            if split:
                self._count_split(block, -block.size, -1)
            return block
        remainder = block.piece(rest, block.offset + size)
        remainder.splice(block, block.following)
        block.size = size
        block.pool.insert(remainder)
        if split:
            self._count_split(block, -size, 0)
        else:
            self._count_split(block, rest, 1)
        return block

    def _divides(self, block: Block, size: int) -> bool:
        rest = block.size - size
        if block.pool.whole:
            return False
        if block.pool.small or self.settings.expandable:
            return rest >= MIN_BLOCK
        # A large block is handed out whole unless more than 1 MiB would be left.
        return size < self.settings.max_split and rest > SMALL_LIMIT

    def _count_split(self, block: Block, size: int, number: int) -> None:
        if block.range is not None:
            return
        for counters in (self._statistics, block.pool.counters):
            counters.inactive_split.add(size)
            counters.inactive_blocks.add(number)

    def _return(self, block: Block) -> None:
        block.allocated = False
        self._live.discard(block)
        if self.observer is not None:
            self.observer("free_requested", block, block.requested, block.stream)
        for counters in (self._statistics, block.pool.counters):
            counters.blocks.add(-1)
            counters.allocated.add(-block.size)
        if block.size >= self.settings.max_split:
            self._statistics.oversize_blocks.add(-1)
        if block.uses:
            self._busy.append(block)
        else:
            self._put_back(block)

    def _release_busy(self) -> None:
        """The emulated streams are always done with what they were given."""
        while self._busy:
            block = self._busy.popleft()
            block.uses = None
            self._put_back(block)

    def _put_back(self, block: Block) -> None:
        pool, size, requested = block.pool, block.size, block.requested
        if self.observer is not None:
            self.observer("free_completed", block, requested, block.stream)
        block.requested = 0
        merged = [pool.merge(block, block.previous), pool.merge(block, block.following)]
        pool.insert(block)
        gained = block.size if block.split else 0
        number = int(block.split) - sum(other > 0 for other in merged)
        self._count_split(block, gained - sum(merged), number)
        for counters in (self._statistics, pool.counters):
            counters.active_blocks.add(-1)
            counters.active.add(-size)
            counters.requested.add(-requested)

    def _release(self, block: Block) -> None:
        """Gives an unsplit cached block back to the device."""
        block.pool.remove(block)
        if self.observer is not None:
            self.observer("segment_free", block, block.size, block.stream)
        self._memory.used -= up(block.size, DEVICE_PAGE)
        self._reserve(block.pool, -block.size)
        self._count_segment(block.pool, block.size, -1)

    def _release_cached(self) -> None:
        self._statistics.synchronisations += 1
        self._release_busy()
        unused = (pools for pools in self._others if not pools.users)
        for pool in (pool for pools in (self._pools, *unused) for pool in pools):
            self._release_pool(pool)

    def _release_pool(self, pool: Pool) -> None:
        """Gives back what is cached and whole, and the free pages of expandable segments."""
        blocks = [block for _, block in pool.free]
        for block in blocks:
            if block.range is None and not block.split:
                self._release(block)
        for block in blocks:
            if block.range is not None:
                self._ranges.unmap(block)

    def _release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """Gives back blocks that are never split, if that makes room for a request."""
        limit = self.settings.max_split
        if limit == UNLIMITED:
            return False
        wanted = max(size, limit)
        place = pool.first(stream, wanted)
        if place < len(pool.free):
            block = pool.free[place][1]
            if block.stream == stream and block.range is None:
                self._release(block)
                return True
        released = 0
        for _, block in reversed(pool.free[:place]):
            if released >= wanted or block.size < limit or block.stream != stream:
                break
            if block.range is None:
                released += block.size
                self._release(block)
        return released >= wanted

    def _collect(self, allowed: int) -> None:
        """Gives back the large blocks that were not used for the longest time."""
        limit = int(self.settings.collection_threshold * allowed)
        excess = self._statistics.reserved.current - limit
        pool = self._pools.large
        idle = [block for _, block in pool.free if not block.split]
        age = sum(pool.searches - block.since for block in idle)
        while excess > 0 and idle:
            mean = age / len(idle)
            old = [b for b in idle if b.range is None and pool.searches - b.since >= mean]
            if not old:
                return
            for block in old:
                idle.remove(block)
                age -= pool.searches - block.since
                excess -= block.size
                self._release(block)
