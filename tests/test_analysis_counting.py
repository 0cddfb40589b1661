"""Where a window's condition counts from, as a table of loops and tests."""

from __future__ import annotations

from textwrap import indent

import pytest
from stories import model_of

from oomlint.analysis.counting import count_of
from oomlint.analysis.windows import Window, counted_windows

SCRIPT = """
def train(model, loader, optimizer, n, start, tqdm):
{before}
    for {loop}:
{first}
        (model(batch).mean() / n).backward()
        if {test}:
            optimizer.step()
            optimizer.zero_grad()
{last}
"""


def windows(
    loop: str, test: str, before: str = "", first: str = "", last: str = ""
) -> list[Window]:
    text = SCRIPT.format(
        loop=loop,
        test=test,
        before=indent(before or "pass", "    "),
        first=indent(first or "pass", " " * 8),
        last=indent(last or "pass", " " * 8),
    )
    return [window for world in model_of(text).worlds for window in counted_windows(world)]


def shifts(found: list[Window]) -> set[int]:
    counts = [count_of(window) for window in found]
    return {count.shift for count in counts if count is not None}


FROM_ZERO, FROM_ONE = "i, batch in enumerate(loader)", "i, batch in enumerate(loader, 1)"
OF_BATCHES = "batch in loader"

# loop, test; by how many micro-batches the first window is too short (-1: all but one)
LOOPS = [
    (FROM_ZERO, "(i + 1) % n == 0", 0),
    (FROM_ZERO, "i % n == 0", -1),
    (FROM_ZERO, "i % n == n - 1", 0),
    (FROM_ZERO, "not i % n", -1),
    (FROM_ZERO, "not (i + 1) % n != 0", 0),
    (FROM_ZERO, "i % n == 0 or i + 1 == len(loader)", -1),
    (FROM_ONE, "i % n == 0", 0),
    (FROM_ONE, "(i + 1) % n == 0", 1),
    (FROM_ONE, "(i - 1) % n == 0", -1),
    (FROM_ONE, "i % n == n - 1", 1),
    ("i, batch in enumerate(loader, start=1)", "i % n == 0", 0),
    ("i, batch in enumerate(tqdm(loader))", "i % n == 0", -1),
    ("i, batch in tqdm(enumerate(loader))", "(1 + i) % n == 0", 0),
]


@pytest.mark.parametrize(("loop", "test", "shift"), LOOPS)
def test_a_loops_own_counter(loop: str, test: str, shift: int) -> None:
    assert shifts(windows(loop, test)) == {shift}


# before the loop, first and last in it; the shift of `i % n == 0`
COUNTERS = [
    ("i = 0", "", "i += 1", -1),
    ("i = 0", "i += 1", "", 0),
    ("i = 1", "", "i += 1", 0),
    ("i = 0", "i = i + 1", "", 0),
]


@pytest.mark.parametrize(("before", "first", "last", "shift"), COUNTERS)
def test_a_counter_of_the_function(before: str, first: str, last: str, shift: int) -> None:
    assert shifts(windows(OF_BATCHES, "i % n == 0", before, first, last)) == {shift}


UNREADABLE = [
    ("i, batch in enumerate(loader, start)", "i % n == 0", "", ""),
    (FROM_ZERO, "i % n == start", "", ""),
    (FROM_ZERO, "i % n == 0 and (i + 1) % n == 0", "", ""),
    (OF_BATCHES, "i % n == 0", "i = start", "i += 1"),
    (OF_BATCHES, "i % n == 0", "i = 0", "i += 2"),
    (OF_BATCHES, "i % n == 0", "i = 0", "if start:\n    i += 1"),
    (OF_BATCHES, "i % n == 0", "i = 0\nif start:\n    i = start", "i += 1"),
]


@pytest.mark.parametrize(("loop", "test", "before", "last"), UNREADABLE)
def test_what_cannot_be_told_is_no_count(loop: str, test: str, before: str, last: str) -> None:
    found = windows(loop, test, before, last=last)
    assert found, "it is a window all the same"
    assert not shifts(found)
