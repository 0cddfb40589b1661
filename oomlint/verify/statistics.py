"""What the caching allocator counts, for all of its memory and for each of its two pools."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counter:
    """A current value, the largest one since the last reset, and all that went in and out."""

    current: int = 0
    peak: int = 0
    gained: int = 0
    lost: int = 0

    def add(self, amount: int) -> None:
        self.current += amount
        if amount < 0:
            self.lost -= amount
            return
        self.gained += amount
        if self.current > self.peak:
            self.peak = self.current


@dataclass(slots=True)
class Counters:
    """Bytes and counts of one pool, or of all."""

    allocated: Counter = field(default_factory=Counter)
    requested: Counter = field(default_factory=Counter)
    reserved: Counter = field(default_factory=Counter)
    active: Counter = field(default_factory=Counter)
    inactive_split: Counter = field(default_factory=Counter)
    blocks: Counter = field(default_factory=Counter)
    active_blocks: Counter = field(default_factory=Counter)
    inactive_blocks: Counter = field(default_factory=Counter)
    segments: Counter = field(default_factory=Counter)

    def each(self) -> tuple[Counter, ...]:
        return tuple(getattr(self, name) for name in NAMES)


# The names that torch.cuda.memory_stats gives them.
NAMES = {
    "allocated": "allocated_bytes",
    "requested": "requested_bytes",
    "reserved": "reserved_bytes",
    "active": "active_bytes",
    "inactive_split": "inactive_split_bytes",
    "blocks": "allocation",
    "active_blocks": "active",
    "inactive_blocks": "inactive_split",
    "segments": "segment",
}


@dataclass(slots=True)
class Statistics(Counters):
    """The counters of all memory, those of the pools, and what happened how often."""

    small: Counters = field(default_factory=Counters)
    large: Counters = field(default_factory=Counters)
    oversize_blocks: Counter = field(default_factory=Counter)
    oversize_segments: Counter = field(default_factory=Counter)
    device_allocations: int = 0
    device_frees: int = 0
    retries: int = 0
    ooms: int = 0
    rejections: int = 0
    synchronisations: int = 0

    def all(self) -> tuple[Counter, ...]:
        own = (self.oversize_blocks, self.oversize_segments)
        return (*self.each(), *self.small.each(), *self.large.each(), *own)

    def reset_peak(self) -> None:
        for counter in self.all():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        for counter in self.all():
            counter.gained = counter.lost = 0
        self.device_allocations = self.device_frees = 0
        self.retries = self.ooms = self.rejections = self.synchronisations = 0

    def named(self) -> dict[str, int]:
        """Everything under the names of torch.cuda.memory_stats."""
        pools = {"all": self, "small_pool": self.small, "large_pool": self.large}
        found: dict[str, int] = {}
        for own, name in NAMES.items():
            for pool, counters in pools.items():
                put(found, f"{name}.{pool}", getattr(counters, own))
        put(found, "oversize_allocations", self.oversize_blocks)
        put(found, "oversize_segments", self.oversize_segments)
        found["num_alloc_retries"] = self.retries
        found["num_ooms"] = self.ooms
        found["num_oom_rejections"] = self.rejections
        found["num_sync_all_streams"] = self.synchronisations
        found["num_device_alloc"] = self.device_allocations
        found["num_device_free"] = self.device_frees
        return found


def put(found: dict[str, int], name: str, counter: Counter) -> None:
    found[f"{name}.current"] = counter.current
    found[f"{name}.peak"] = counter.peak
    found[f"{name}.allocated"] = counter.gained
    found[f"{name}.freed"] = counter.lost
