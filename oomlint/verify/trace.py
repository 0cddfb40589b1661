"""The requests that an allocator served, and what other sizes of the same ones would have taken."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from oomlint.verify.allocator import Allocator, CapacityExceeded
from oomlint.verify.allocator_settings import AllocatorSettings
from oomlint.verify.blocks import Block

EMPTY_CACHE = 0  # in the order of events


@dataclass(frozen=True, slots=True)
class Trace:
    """`sizes` in bytes, by serial number; `order` holds serial + 1 for a request, its negative
    where the block came back, and 0 for an emptied cache. `ends` are where steps ended in it.
    """

    sizes: array[int]
    order: array[int]
    ends: array[int]

    def save(self, path: Path) -> None:
        with path.open("wb") as file:
            array("q", (len(self.sizes), len(self.order), len(self.ends))).tofile(file)
            for part in (self.sizes, self.order, self.ends):
                part.tofile(file)


def beside(out: Path) -> Path:
    """Where the trace of a run lies whose record is `out`."""
    return out.with_suffix(".trace")


def load(path: Path) -> Trace:
    """Raises OSError or EOFError where the run did not come to write it."""
    with path.open("rb") as file:
        lengths = array("q")
        lengths.fromfile(file, 3)
        parts = [array("q"), array("q"), array("q")]
        for part, length in zip(parts, lengths, strict=True):
            part.fromfile(file, length)
    return Trace(*parts)


@dataclass(frozen=True, slots=True)
class Peaks:
    """Highest bytes of a replayed trace."""

    requested: int
    allocated: int
    reserved: int
    retries: int  # times that the cache was given back to make room


@dataclass(frozen=True, slots=True)
class Series:
    """One sequence of requests whose sizes depend on the batch.

    A size is `first + batch * slope + batch * (batch - 1) / 2 * bend`, which is exact for what
    grows with the batch or with its square.
    """

    order: array[int]
    coefficients: tuple[tuple[int, int, int], ...]

    def sizes(self, batch: int) -> list[int]:
        pairs = batch * (batch - 1) // 2
        return [max(0, a + b * batch + c * pairs) for a, b, c in self.coefficients]

    def bend(self, batch: int) -> float:
        """The share of all requests that grows with the square of the batch."""
        pairs = batch * (batch - 1) // 2
        total = sum(self.sizes(batch))
        return sum(abs(c) * pairs for _, _, c in self.coefficients) / total if total else 0.0


def series(batches: Sequence[int], traces: Sequence[Trace]) -> Series | None:
    """The requests as a function of the batch, from three batches at equal distances.

    None where the runs asked for other things, or in another order, or sizes follow no rule.
    """
    first, *others = (settled(trace.order) for trace in traces)
    if any(order != first for order in others):
        return None
    low, step = batches[0], batches[1] - batches[0]
    assert [later - earlier for earlier, later in pairwise(batches)] == [step, step]
    found = []
    for sizes in zip(*(trace.sizes for trace in traces), strict=True):
        fitted = fit(sizes, low, step)
        if fitted is None:
            return None
        found.append(fitted)
    return Series(first, tuple(found))


def settled(order: array[int]) -> array[int]:
    """The order with blocks that came back together in order of their numbers.

    Which of them comes first depends on addresses, as in autocast's cache of weights, and makes no
    difference to what the allocator has afterwards.
    """
    found = array("q")
    back: list[int] = []
    for event in order:
        if event < 0:
            back.append(event)
            continue
        found.extend(sorted(back))
        back.clear()
        found.append(event)
    found.extend(sorted(back))
    return found


def fit(sizes: tuple[int, ...], low: int, step: int) -> tuple[int, int, int] | None:
    """Exact integers where there are any; else what is nearest, for sizes that are rounded."""
    one, two, three = sizes
    rise, bend = two - one, (three - two) - (two - one)
    if bend == 0 and rise % step == 0:
        slope = rise // step
        return one - slope * low, slope, 0
    if bend % (step * step) == 0:
        second = bend // (step * step)
        # rise = slope * step + second * (sum of low .. low + step - 1)
        slope_step = rise - second * (step * low + step * (step - 1) // 2)
        if slope_step % step == 0:
            slope = slope_step // step
            return one - slope * low - second * (low * (low - 1) // 2), slope, second
    # Partial sums and padded rows grow in jumps: the line through the ends is close.
    if three < one:
        return None
    slope = (three - one) // (2 * step)
    return max(sizes) - slope * (low + sizes.index(max(sizes)) * step), slope, 0


def replay(
    order: array[int], sizes: Sequence[int], capacity: int, settings: AllocatorSettings
) -> Peaks | None:
    """What the caching allocator makes of a sequence; None where it runs out of memory."""
    allocator = Allocator(capacity, settings=settings)
    blocks: dict[int, Block] = {}
    try:
        for event in order:
            if event > 0:
                block = allocator.malloc(sizes[event - 1])
                if block is not None:
                    blocks[event] = block
            elif event == EMPTY_CACHE:
                allocator.empty_cache()
            elif -event in blocks:
                allocator.free(blocks.pop(-event))
    except CapacityExceeded:
        return None
    state = allocator.statistics()
    peaks = (state.requested.peak, state.allocated.peak, state.reserved.peak)
    return Peaks(*peaks, state.retries)


def requested_peak(order: array[int], sizes: Sequence[int]) -> int:
    """The least that any allocator needs."""
    now = highest = 0
    for event in order:
        if event > 0:
            now += sizes[event - 1]
            highest = max(highest, now)
        elif event:
            now -= sizes[-event - 1]
    return highest


def largest(
    found: Series,
    capacity: int,
    settings: AllocatorSettings,
    most: int = 1 << 20,
    calm: bool = False,
) -> int:
    """The largest batch whose requests fit the capacity, up to `most`; 0 where none does.

    With `calm` the allocator may not have to give its cache back for it.
    """

    def possible(batch: int) -> bool:
        return requested_peak(found.order, found.sizes(batch)) <= capacity

    def fits(batch: int) -> bool:
        peaks = replay(found.order, found.sizes(batch), capacity, settings)
        return peaks is not None and not (calm and peaks.retries)

    bound = bisected(possible, 0, most)
    if bound == 0 or fits(bound):
        return bound
    low = bound - max(1, bound // 32)
    while low > 0 and not fits(low):
        bound, low = low, low - max(1, (bound - low) * 2)
    return bisected(fits, max(0, low), bound - 1)


def bisected(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The largest number from `low`, for which it is known to hold, to `high` for which it does."""
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
