"""The allocator model against facts about CUDA's: sizes, pools, splitting, reuse, statistics."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from oomlint.verify.allocator import Allocator, CapacityExceeded
from oomlint.verify.blocks import Block
from oomlint.verify.sizes import (
    GIB,
    KIB,
    MIB,
    format_size,
    round_size,
    round_up,
    segment_size,
)


def take(allocator: Allocator, size: int) -> Block:
    block = allocator.malloc(size)
    assert block is not None
    return block


@pytest.mark.parametrize(
    ("request_", "rounded"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (1000, 1024), (MIB, MIB), (MIB + 1, MIB + 512)],
)
def test_requests_are_rounded_to_512_bytes(request_: int, rounded: int) -> None:
    assert round_size(request_) == rounded


@pytest.mark.parametrize(
    ("request_", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 513, 20 * MIB),
        (10 * MIB - 1, 10 * MIB),  # rounds up to 10 MiB first
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_a_first_request_reserves_a_segment(request_: int, segment: int) -> None:
    allocator = Allocator()
    take(allocator, request_)
    assert segment_size(round_size(request_)) == segment
    assert allocator.statistics().reserved.current == segment


@pytest.mark.parametrize(
    ("request_", "allocated"),
    [
        (19 * MIB, 20 * MIB),  # from a 20 MiB segment the last MiB is not split off
        (2 * MIB, 2 * MIB),
        (MIB, MIB),
        (700, 1024),
    ],
)
def test_allocated_counts_whole_blocks(request_: int, allocated: int) -> None:
    allocator = Allocator()
    # Segments of 10 MiB and more are sized by the request, so 19 MiB has to find a cached one.
    allocator.free(take(allocator, 2 * MIB))
    take(allocator, request_)
    state = allocator.statistics()
    assert (state.allocated.current, state.requested.current) == (allocated, request_)


def test_nothing_is_recorded_for_an_empty_tensor() -> None:
    allocator = Allocator()
    assert allocator.malloc(0) is None
    assert allocator.statistics().blocks.current == 0


def test_freed_memory_stays_reserved_until_the_cache_is_emptied() -> None:
    allocator = Allocator()
    block = take(allocator, 5 * MIB)
    allocator.free(block)
    state = allocator.statistics()
    assert (state.allocated.current, state.reserved.current) == (0, 20 * MIB)
    allocator.empty_cache()
    assert allocator.statistics().reserved.current == 0
    assert allocator.statistics().segments.current == 0


def test_a_partly_used_segment_survives_the_emptying_of_the_cache() -> None:
    allocator = Allocator()
    first, second = take(allocator, 512), take(allocator, 512)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.statistics().reserved.current == 2 * MIB
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.statistics().reserved.current == 0


def test_small_and_large_requests_use_different_segments() -> None:
    allocator = Allocator()
    take(allocator, MIB)
    take(allocator, MIB + 1)
    assert allocator.statistics().segments.current == 2


def test_the_best_fit_is_taken_and_among_equals_the_oldest_segment() -> None:
    allocator = Allocator()
    blocks = [take(allocator, size * MIB) for size in (30, 12, 12, 50)]
    for block in reversed(blocks):
        allocator.free(block)
    found = take(allocator, 12 * MIB)
    assert (found.segment, found.size) == (blocks[1].segment, 12 * MIB)


def test_neighbours_merge_so_that_a_larger_request_fits_again() -> None:
    allocator = Allocator()
    parts = [take(allocator, 5 * MIB) for _ in range(4)]
    assert allocator.statistics().reserved.current == 20 * MIB
    for index in (0, 2, 1):
        allocator.free(parts[index])
    whole = take(allocator, 15 * MIB)
    assert (whole.segment, whole.offset) == (parts[0].segment, 0)
    assert allocator.statistics().reserved.current == 20 * MIB


def test_inactive_split_counts_free_blocks_in_partly_used_segments() -> None:
    allocator = Allocator()
    block = take(allocator, 512)
    assert allocator.statistics().inactive_split.current == 2 * MIB - 512
    allocator.free(block)
    assert allocator.statistics().inactive_split.current == 0


def test_peaks_fall_to_the_current_value_when_reset() -> None:
    allocator = Allocator()
    allocator.free(take(allocator, 4 * MIB))
    take(allocator, MIB)
    state = allocator.statistics()
    assert (state.allocated.current, state.allocated.peak) == (MIB, 4 * MIB)
    allocator.reset_peak()
    assert allocator.statistics().allocated.peak == MIB


def test_a_full_device_flushes_its_cache_once_and_then_refuses() -> None:
    allocator = Allocator(capacity=30 * MIB)
    allocator.free(take(allocator, 20 * MIB))
    held = take(allocator, 24 * MIB)  # only after the cached 20 MiB went back
    state = allocator.statistics()
    assert (state.retries, state.reserved.current) == (1, 24 * MIB)
    with pytest.raises(CapacityExceeded, match=r"Tried to allocate 20\.00 MiB"):
        allocator.malloc(8 * MIB)
    assert allocator.statistics().ooms == 1
    allocator.free(held)
    assert take(allocator, 24 * MIB).size == 24 * MIB


def test_a_memory_fraction_limits_the_device() -> None:
    allocator = Allocator(capacity=40 * MIB, fraction=0.5)
    take(allocator, 20 * MIB)
    with pytest.raises(CapacityExceeded):
        allocator.malloc(2 * MIB)


@pytest.mark.parametrize(
    ("size", "text"),
    [(512, "512 bytes"), (2048, "2.00 KiB"), (20 * MIB, "20.00 MiB"), (80 * GIB, "80.00 GiB")],
)
def test_sizes_read_as_in_cudas_own_message(size: int, text: str) -> None:
    assert format_size(size) == text


def test_random_traffic_keeps_the_books_balanced() -> None:
    dice = random.Random(7)
    allocator = Allocator(capacity=400 * MIB)
    live: list[Block] = []
    for _ in range(4000):
        if live and dice.random() < 0.5:
            allocator.free(live.pop(dice.randrange(len(live))))
            continue
        size = dice.choice([dice.randrange(1, 4 * KIB), dice.randrange(1, 24 * MIB)])
        try:
            live.append(take(allocator, size))
        except CapacityExceeded:
            allocator.free(live.pop())
    state = allocator.statistics()
    places = sorted((b.segment, b.offset, b.offset + b.size) for b in live)
    assert all(a[0] != b[0] or a[2] <= b[1] for a, b in pairwise(places)), "two live blocks overlap"
    assert state.allocated.current == sum(block.size for block in live)
    assert state.requested.current == sum(block.requested for block in live)
    assert state.requested.current <= state.allocated.current <= state.reserved.current
    for block in live:
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.statistics().reserved.current == 0


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [(1024, 4, 1024), (1025, 4, 1280), (1280, 4, 1280), (1900, 4, 2048), (1025, 2, 1536)],
)
def test_sizes_are_rounded_up_between_powers_of_two(
    size: int, divisions: int, rounded: int
) -> None:
    assert round_up(size, divisions) == rounded


def test_the_environment_is_read_at_the_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    early, late = Allocator(), Allocator()
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    take(late, 512)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:2")
    assert [take(found, 5 * MIB).size for found in (early, late)] == [6 * MIB, 5 * MIB]
