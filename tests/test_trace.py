"""Requests of an allocator as a function of the batch, and the largest batch that they allow."""

from __future__ import annotations

import random
from array import array

import pytest

from oomlint.verify.allocator_settings import AllocatorSettings
from oomlint.verify.sizes import MIB
from oomlint.verify.trace import Series, Trace, largest, replay, requested_peak, series

SETTINGS = AllocatorSettings()


def trace(sizes: list[int], order: list[int]) -> Trace:
    return Trace(array("q", sizes), array("q", order), array("q"))


@pytest.mark.parametrize("rule", [lambda n: 700, lambda n: 512 * n + 8, lambda n: 4 * n * n + n])
def test_sizes_that_follow_the_batch_are_extended_exactly(rule: object) -> None:
    assert callable(rule)
    for batches in ((2, 4, 6), (5, 10, 15), (3, 6, 9)):
        found = series(batches, [trace([rule(n)], [1, -1]) for n in batches])
        assert found is not None
        assert [found.sizes(n)[0] for n in (1, 7, 100)] == [rule(n) for n in (1, 7, 100)]


def test_runs_that_ask_for_other_things_are_no_series() -> None:
    same = trace([10, 20], [1, 2, -1, -2])
    assert series((2, 4, 6), [same, same, trace([10], [1, -1])]) is None
    assert series((2, 4, 6), [same, same, trace([10, 20], [1, -1, 2, -2])]) is None
    # What comes back together may do so in any order.
    assert series((2, 4, 6), [same, same, trace([10, 20], [1, 2, -2, -1])]) is not None


def test_the_largest_batch_is_where_the_allocator_ends() -> None:
    choose = random.Random(3)
    coefficients = [(choose.randrange(4 * MIB), choose.randrange(2 * MIB), 0) for _ in range(60)]
    order, alive = array("q"), []
    for serial in range(1, 61):
        order.append(serial)
        alive.append(serial)
        if choose.random() < 0.4:
            order.append(-alive.pop(choose.randrange(len(alive))))
    found = Series(order, tuple(coefficients))
    capacity = 900 * MIB
    batch = largest(found, capacity, SETTINGS)
    assert batch > 2
    fits = [replay(order, found.sizes(n), capacity, SETTINGS) for n in (batch, batch + 1)]
    assert fits[0] is not None
    assert fits[1] is None
    assert fits[0].requested == requested_peak(order, found.sizes(batch)) <= fits[0].reserved
    assert largest(found, 1 * MIB, SETTINGS) == 0


def test_an_emptied_cache_is_replayed() -> None:
    sizes = [64 * MIB, 96 * MIB]
    assert replay(array("q", [1, -1, 2]), sizes, 200 * MIB, SETTINGS).reserved == 160 * MIB  # type: ignore[union-attr]
    assert replay(array("q", [1, -1, 0, 2]), sizes, 200 * MIB, SETTINGS).reserved == 96 * MIB  # type: ignore[union-attr]
