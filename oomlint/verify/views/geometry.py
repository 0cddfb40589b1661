"""Places what a chart shows: scales, ticks with units, and lines as SVG paths."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

# User units of every chart; the margins hold labels of the large type that phones get.
WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 118, 34, 34, 62
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A curve; `css` is its class, `area` closes it down to the axis."""

    path: str
    css: str
    area: str = ""


@dataclass(frozen=True, slots=True)
class Dot:
    """A value of a curve by itself, with what a pointer over it says."""

    x: float
    y: float
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the horizontal axis; `title` is said where the pointer is over it."""

    x: float
    width: float
    title: str
    shaded: bool


@dataclass(frozen=True, slots=True)
class Label:
    x: float
    y: float
    anchor: str
    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """An entry of the legend."""

    css: str
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """All that a chart needs, in user units."""

    title: str
    description: str
    x_name: str
    y_name: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    keys: tuple[Key, ...] = ()
    bands: tuple[Band, ...] = ()
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    labels: tuple[Label, ...] = ()
    base: float = HEIGHT - BOTTOM  # of the vertical zero


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps values to user units; with `log` by their logarithms."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)


def vertical(low: float, high: float, log: bool = False) -> Scale:
    return Scale(low, high if high > low else low + 1, HEIGHT - BOTTOM, TOP, log)


def horizontal(low: float, high: float) -> Scale:
    return Scale(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)


def path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def below(points: Sequence[tuple[float, float]], base: float) -> str:
    """The area between a curve and the axis."""
    closing = [(points[-1][0], base), (points[0][0], base)]
    return path([*points, *closing]) + "Z"


def spacing(extent: float, most: int) -> float:
    """The smallest of 1, 2 or 5 times a power of ten that needs at most so many ticks."""
    least = extent / most
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least)


def unit_of(value: float) -> tuple[float, str]:
    """The largest binary unit that is not larger than a number of bytes."""
    place = 0
    while value >= 1024 and place < len(UNITS) - 1:
        value /= 1024
        place += 1
    return 1024.0**place, UNITS[place]


def byte_ticks(low: float, high: float, scale: Scale, most: int = 5) -> tuple[Tick, ...]:
    factor, unit = unit_of(max(abs(low), abs(high), 1))
    return ticks(low, high, scale, factor, lambda value: f"{value:g} {unit}", most)


def number_ticks(low: float, high: float, scale: Scale, most: int = 5) -> tuple[Tick, ...]:
    return ticks(low, high, scale, 1.0, lambda value: f"{value:g}", most)


def log_ticks(low: float, high: float, scale: Scale) -> tuple[Tick, ...]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first) // 5))
    return tuple(Tick(scale(10.0**p), f"{10.0**p:g}") for p in range(first, last + 1, every))


def ticks(
    low: float,
    high: float,
    scale: Scale,
    factor: float,
    text: Callable[[float], str],
    most: int,
) -> tuple[Tick, ...]:
    """Round values within the range; `factor` is the size of the unit that they are round in."""
    step = spacing(max(high - low, 1e-12 * max(1.0, abs(high))) / factor, most)
    first = math.ceil(low / factor / step - 1e-9)
    last = math.floor(high / factor / step + 1e-9)
    found = [round(number * step, 10) for number in range(first, last + 1)]
    return tuple(Tick(scale(value * factor), text(value)) for value in found)


def thinned(labels: Sequence[Tick], most: int) -> tuple[Tick, ...]:
    """Every n-th label, so that not more than `most` stand side by side."""
    every = max(1, -(-len(labels) // most))
    return tuple(labels[::every])
