"""The options of PYTORCH_CUDA_ALLOC_CONF that decide where memory comes from."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import Any

from oomlint.verify.sizes import LARGE_SEGMENT, MIB, MIN_LARGE

# Where both are set the first one counts.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
UNLIMITED = 1 << 64
BUCKETS = 16  # of sizes by their power of two, from 1 MiB to 64 GiB
FIRST_BUCKET = 20  # the power of two of the first
# Options that change nothing about where a block comes from.
WITHOUT_EFFECT = frozenset(
    {
        "graph_capture_record_stream_reuse",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_num_register_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_use_background_threads",
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
    }
)
SIZES = {
    "large_segment_size_mb": "large_segment",
    "max_split_size_mb": "max_split",
    "max_non_split_rounding_mb": "rounding",
}
NATIVE = "native"
BACKENDS = (NATIVE, "cudaMallocAsync")  # of which the first one is modelled
SWITCHES = {"expandable_segments": "expandable", "throw_on_cudamalloc_oom": "rejects"}


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """Sizes are bytes."""

    large_segment: int = LARGE_SEGMENT
    max_split: int = UNLIMITED
    rounding: int | None = None  # of requests above max_split; that of a large segment if None
    divisions: tuple[int, ...] = (0,) * BUCKETS
    collection_threshold: float = 0.0
    expandable: bool = False
    fraction: float = 1.0
    backend: str = NATIVE
    rejects: bool = False  # refuses what goes above the fraction without trying

    @property
    def max_non_split_rounding(self) -> int:
        return self.large_segment if self.rounding is None else self.rounding

    def divisions_for(self, size: int) -> int:
        place = size.bit_length() - 1 - FIRST_BUCKET
        return self.divisions[min(max(place, 0), BUCKETS - 1)]


def from_environment() -> AllocatorSettings:
    for name in VARIABLES:
        text = os.environ.get(name)
        if text is not None:
            return parse(text)
    return AllocatorSettings()


def parse(text: str) -> AllocatorSettings:
    """Reads `key:value,key:value`; raises ValueError for what torch refuses."""
    found = AllocatorSettings()
    for key, value in options(text):
        found = with_option(found, key, value)
    if found.large_segment <= MIN_LARGE:
        raise ValueError("CachingAllocator option large_segment_size_mb must be > 10 MB")
    least = found.large_segment
    for key in ("max_split_size_mb", "max_non_split_rounding_mb"):
        if (getattr(found, SIZES[key]) or least) < least:
            limit = least // MIB
            raise ValueError(f"CachingAllocator option {key} too small, must be >= {limit}")
    return found


def options(text: str) -> list[tuple[str, str]]:
    """The options in their order, values that are lists included."""
    found = []
    rest = re.sub(r"\s", "", text)
    while rest:
        match = re.match(r"([^:,\[\]]+):(\[[^\]]*\]|[^:,\[\]]+)(?:,|$)", rest)
        if match is None:
            raise ValueError(f"Error parsing CachingAllocator settings at `{rest}`")
        found.append((match[1], match[2]))
        rest = rest[match.end() :]
    return found


def with_option(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if key in WITHOUT_EFFECT:
        return settings
    if key == "backend":
        if value not in BACKENDS:
            listed = " and ".join(BACKENDS)
            raise ValueError(f"Unknown allocator backend, options are {listed}")
        return replace(settings, backend=value)
    if key in SWITCHES:
        if value not in ("True", "False"):
            raise ValueError(f"Expected 'True' or 'False' for {key} but got '{value}'")
        chosen: Any = {SWITCHES[key]: value == "True"}
        return replace(settings, **chosen)
    if key in SIZES:
        size: Any = {SIZES[key]: int(number(key, value)) * MIB}
        return replace(settings, **size)
    if key == "roundup_power2_divisions":
        return replace(settings, divisions=divisions(value))
    if key == "garbage_collection_threshold":
        threshold = number(key, value)
        if not 0 < threshold < 1:
            raise ValueError("garbage_collect_threshold is invalid, set it in (0.0, 1.0)")
        return replace(settings, collection_threshold=threshold)
    if key == "per_process_memory_fraction":
        fraction = number(key, value)
        if not 0 <= fraction <= 1:
            raise ValueError(f"{key} is invalid, set it in [0.0, 1.0]")
        return replace(settings, fraction=fraction)
    raise ValueError(f"Unrecognized key '{key}' in CUDA allocator config.")


def number(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"CachingAllocator option {key} is no number: {value}") from None


def divisions(value: str) -> tuple[int, ...]:
    """One number for all sizes, or `[256:1,512:2,>:4]` by size in MiB."""
    if not value.startswith("["):
        return (power_of_two(value, "divisions has"),) * BUCKETS
    found = [0] * BUCKETS
    last = 0
    for place, part in enumerate(value.strip("[]").split(",")):
        boundary, _, count = part.partition(":")
        chosen = power_of_two(count, "divisions has", off=True)
        if boundary == ">":
            found[last + 1 :] = [chosen] * (BUCKETS - last - 1)
            continue
        limit = power_of_two(boundary, "intervals have")
        last = min(limit.bit_length() - 1, BUCKETS - 1)
        if place == 0:
            found[:last] = [chosen] * last
        found[last] = chosen
    return tuple(found)


def power_of_two(text: str, what: str, *, off: bool = False) -> int:
    value = int(number("roundup_power2_divisions", text))
    if value & (value - 1) or (value == 0 and not off):
        raise ValueError(f"For roundups, the {what} to be power of 2 ")
    return value
