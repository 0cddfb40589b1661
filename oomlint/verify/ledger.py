"""Keeps account of a device's memory: how much is held, made by which lines, of what kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from oomlint.verify.holdings import PARAMETER


@dataclass(frozen=True, slots=True)
class Held:
    """What is alive of one kind that one line made; `line` is `file:row` or empty if unknown."""

    line: str
    kind: str
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Span:
    """The device's memory over a stretch of a run: one step, or what lies between two.

    `allocated` and `reserved` hold the largest number of bytes in each of so many stretches of
    equally many allocator events. `position` is where the peak of allocated bytes lies, as a share
    of the events.
    """

    step: int  # from 1; 0 between steps
    events: int
    allocated: tuple[int, ...]
    reserved: tuple[int, ...]
    peak: int
    position: float
    at_peak: tuple[Held, ...]
    at_end: tuple[Held, ...]  # where steps are unknown: the least that each line ever held


@dataclass(slots=True, eq=False)
class Entry:
    """A live block of `size` bytes, `requested` of them; its kind is known better later."""

    size: int
    line: str
    kind: str
    requested: int = 0


class Timeline:
    """The largest values over equal numbers of events, at most twice `shares` of them."""

    def __init__(self, shares: int) -> None:
        self.shares = shares
        self.stride = 1
        self.events = 0
        self.points: list[tuple[int, int]] = []

    def add(self, allocated: int, reserved: int) -> None:
        if self.events % self.stride:
            last = self.points[-1]
            self.points[-1] = max(last[0], allocated), max(last[1], reserved)
        else:
            if len(self.points) == 2 * self.shares:
                self.halve()
            self.points.append((allocated, reserved))
        self.events += 1

    def halve(self) -> None:
        pairs = zip(self.points[::2], self.points[1::2], strict=True)
        self.points = [(max(a[0], b[0]), max(a[1], b[1])) for a, b in pairs]
        self.stride *= 2


class Highest:
    """The largest value so far, when it came, by which entry, and what was alive then."""

    def __init__(self, value: int = 0) -> None:
        self.value, self.moment = value, 0
        self.maker: Entry | None = None
        self.entries: list[Entry] | None = None  # None while it lasts

    def rise(self, value: int, moment: int, maker: Entry) -> None:
        if value > self.value:
            self.value, self.moment, self.maker, self.entries = value, moment, maker, None

    def keep(self, live: Iterable[Entry]) -> None:
        """Comes before anything ends."""
        if self.entries is None:
            self.entries = list(live)


class Ledger:
    """What a caching allocator gave away and took back, from one cut to the next.

    `steps` counts the steps that are over; `top` is the highest point of requested bytes of all
    times, with these as its moment.
    """

    def __init__(self, shares: int, reserved: int = 0) -> None:
        self.shares = shares
        self.live: dict[Hashable, Entry] = {}
        self.allocated, self.requested, self.reserved = 0, 0, reserved
        self.steps = 0
        self.top = Highest()
        self.begin()

    def begin(self) -> None:
        self.timeline = Timeline(self.shares)
        self.high = Highest(self.allocated)
        self.held: dict[str, int] = {}
        for entry in self.live.values():
            self.held[entry.line] = self.held.get(entry.line, 0) + entry.size
        self.floors = dict(self.held)

    def open(self, entries: Mapping[Any, Entry]) -> None:
        """Enters what is alive when the account begins."""
        self.live.update(entries)
        self.allocated = sum(entry.size for entry in self.live.values())
        self.requested = sum(entry.requested for entry in self.live.values())
        self.begin()

    def gain(self, key: Hashable, entry: Entry) -> None:
        self.lose(key)  # a block whose end was not recorded
        self.live[key] = entry
        self.allocated += entry.size
        self.requested += entry.requested
        held = self.held.get(entry.line, 0)
        self.floors.setdefault(entry.line, held)
        self.held[entry.line] = held + entry.size
        self.high.rise(self.allocated, self.timeline.events, entry)
        self.top.rise(self.requested, self.steps, entry)
        self.timeline.add(self.allocated, self.reserved)

    def lose(self, key: Hashable) -> None:
        if key not in self.live:
            return
        self.high.keep(self.live.values())
        self.top.keep(self.live.values())
        entry = self.live.pop(key)
        self.allocated -= entry.size
        self.requested -= entry.requested
        held = self.held[entry.line] = self.held[entry.line] - entry.size
        self.floors[entry.line] = min(self.floors[entry.line], held)
        self.timeline.add(self.allocated, self.reserved)

    def reserve(self, reserved: int) -> None:
        """The device gave memory or took some back: so many bytes are reserved now."""
        if reserved != self.reserved:
            self.reserved = reserved
            self.timeline.add(self.allocated, self.reserved)

    def label(self, key: Hashable, kind: str) -> None:
        """What a block turned out to be for; a parameter stays one."""
        entry = self.live.get(key)
        if entry is not None and entry.kind != PARAMETER:
            entry.kind = kind

    def cut(self, step: int, *, floors: bool = False) -> Span:
        """The account since the last cut; with `floors`, `at_end` is the least of each line."""
        self.high.keep(self.live.values())
        self.top.keep(self.live.values())  # a later label is of a later time
        least = tuple(Held(line, "", size, 0) for line, size in self.floors.items() if size)
        events = self.timeline.events
        points = self.timeline.points or [(self.allocated, self.reserved)]
        span = Span(
            step=step,
            events=events,
            allocated=tuple(allocated for allocated, _ in points),
            reserved=tuple(reserved for _, reserved in points),
            peak=self.high.value,
            position=self.high.moment / events if events else 0.0,
            at_peak=summed(self.high.entries or ()),
            at_end=least if floors else summed(self.live.values()),
        )
        self.begin()
        return span


def summed(entries: Iterable[Entry]) -> tuple[Held, ...]:
    """By line and kind, the largest first."""
    sums: dict[tuple[str, str], list[int]] = {}
    for entry in entries:
        found = sums.setdefault((entry.line, entry.kind), [0, 0])
        found[0] += entry.size
        found[1] += 1
    held = [Held(line, kind, size, blocks) for (line, kind), (size, blocks) in sums.items()]
    return tuple(sorted(held, key=lambda one: (-one.bytes, one.line, one.kind)))
