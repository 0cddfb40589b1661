"""Turns runs into charts: memory over time, growth from step to step, gradient norms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from oomlint.verify.attribution import peak_span, spans_of_steps
from oomlint.verify.ledger import Span
from oomlint.verify.record import ITERATION, Run
from oomlint.verify.series import main_steps, size
from oomlint.verify.views.geometry import (
    HEIGHT,
    LEFT,
    TOP,
    Band,
    Dot,
    Key,
    Label,
    Line,
    Plot,
    Scale,
    Tick,
    below,
    byte_ticks,
    horizontal,
    log_ticks,
    number_ticks,
    path,
    thinned,
    vertical,
)

# A phone's large type leaves room for so many labels of steps.
LABELS = 8
# What lies between steps is drawn this wide, a step being 1.
BETWEEN = 0.5
# No axis of bytes is shorter.
LEAST_BYTES = 1024
# From this ratio on, norms are drawn by their logarithms.
WIDE = 100.0


@dataclass(frozen=True, slots=True)
class Subject:
    """A run and what it is called; `css` gives its colour.

    `moved` maps lines of a fixed text to what they are called in a table with the text before.
    """

    name: str
    css: str
    run: Run
    moved: Mapping[str, str] = field(default_factory=dict)


def timelines(subjects: Sequence[Subject]) -> list[Plot]:
    """Allocated and reserved bytes of each run, all on the same scales."""
    shown = [subject for subject in subjects if subject.run.spans]
    if not shown:
        return []
    top = max(max(span.reserved) for one in shown for span in one.run.spans)
    top = max(top, *(span.peak for one in shown for span in one.run.spans))
    return [timeline(subject, top) for subject in shown]


def timeline(subject: Subject, top: int) -> Plot:
    spans = subject.run.spans
    widths = [1.0 if span.step or not spans_have_steps(spans) else BETWEEN for span in spans]
    across, up = horizontal(0, sum(widths)), vertical(0, top * 1.02)
    starts = [sum(widths[:place]) for place in range(len(spans))]
    places = list(zip(spans, starts, widths, strict=True))
    allocated = [point for place in places for point in curve(*place, "allocated", across, up)]
    reserved = [point for place in places for point in curve(*place, "reserved", across, up)]
    peak = peak_span(subject.run, whole=True)
    return Plot(
        title=f"Memory over time{f', {subject.name}' if subject.name else ''}",
        description=timeline_words(subject.run),
        x_name=unit_of_steps(subject)
        if spans_have_steps(spans)
        else "share of allocations and releases",
        y_name="bytes on the device",
        x_ticks=step_ticks(places, across),
        y_ticks=byte_ticks(0, top, up),
        keys=(Key(subject.css, "allocated"), Key("reserved", "reserved")),
        bands=tuple(band(*place, across) for place in places if spans_have_steps(spans)),
        lines=(
            Line(path(allocated), subject.css, below(allocated, up(0))),
            Line(path(reserved), "reserved"),
        ),
        dots=tuple(
            Dot(
                across(start + width * span.position),
                up(span.peak),
                subject.css,
                f"peak of {size(span.peak)}",
            )
            for span, start, width in places
            if span is peak
        ),
        labels=tuple(
            peak_label(across(start + width * span.position), up(span.peak), span.peak)
            for span, start, width in places
            if span is peak
        ),
    )


def unit_of_steps(subject: Subject) -> str:
    return "iterations of the loop" if subject.run.unit == ITERATION else "optimizer steps"


def spans_have_steps(spans: Sequence[Span]) -> bool:
    return any(span.step for span in spans)


def curve(
    span: Span, start: float, width: float, name: str, across: Scale, up: Scale
) -> list[tuple[float, float]]:
    """The values of one span from its start to its end."""
    values = span.allocated if name == "allocated" else span.reserved
    values = values if len(values) > 1 else 2 * values
    return [
        (across(start + width * place / (len(values) - 1)), up(value))
        for place, value in enumerate(values)
    ]


def step_ticks(places: Sequence[tuple[Span, float, float]], across: Scale) -> tuple[Tick, ...]:
    """Steps by their numbers in the middle of each; parts of a recording by its share."""
    if not spans_have_steps([span for span, _, _ in places]):
        whole = sum(width for _, _, width in places)
        return tuple(Tick(across(whole * part / 4), f"{part * 25} %") for part in range(5))
    middles = [
        Tick(across(start + width / 2), str(span.step))
        for span, start, width in places
        if span.step
    ]
    return thinned(middles, 2 * LABELS)


def band(span: Span, start: float, width: float, across: Scale) -> Band:
    left, right = across(start), across(start + width)
    name = f"step {span.step}" if span.step else "between steps"
    end = sum(held.bytes for held in span.at_end)
    words = f"{name}: peak {size(span.peak)}, {size(end)} at its end, "
    return Band(
        left, round(right - left, 1), words + f"{size(max(span.reserved))} reserved", not span.step
    )


def peak_label(x: float, y: float, value: int) -> Label:
    anchor = "end" if x > LEFT + 300 else "start"
    return Label(x - 8 if anchor == "end" else x + 8, max(y - 8, TOP - 8), anchor, size(value))


def timeline_words(run: Run) -> str:
    """The chart in a sentence, for who does not see it."""
    peak = peak_span(run, whole=True)
    assert peak is not None
    where = f" in step {peak.step}" if peak.step else ""
    if not peak.step and spans_have_steps(run.spans):
        where = " between steps"
    held = [sum(one.bytes for one in span.at_end) for span in spans_of_steps(run)]
    ends = f" At the ends of steps {size(held[0])} are held first and {size(held[-1])} last."
    return (
        f"Allocated bytes peak at {size(peak.peak)}{where}; up to "
        f"{size(max(max(span.reserved) for span in run.spans))} are reserved."
        + (ends if held and spans_have_steps(run.spans) else "")
    )


def growth(subjects: Sequence[Subject]) -> Plot | None:
    """Bytes that are still allocated at the ends of steps, as a change since the first."""
    curves = []
    for subject in subjects:
        spans = [span for span in spans_of_steps(subject.run) if span.step]
        held = [sum(one.bytes for one in span.at_end) for span in spans]
        if len(held) > 1:
            points = [(span.step, value - held[0]) for span, value in zip(spans, held, strict=True)]
            curves.append((subject, points))
    if not curves:
        return None
    return step_chart(
        "Growth from step to step",
        "bytes more than after step 1",
        curves,
        lambda low, high, scale: byte_ticks(low, high, scale),
        lambda value: f"{'+' if value >= 0 else '-'}{size(abs(value))}",
        least=LEAST_BYTES,
    )


def norms(subjects: Sequence[Subject]) -> Plot | None:
    """Gradient norms at the main optimizer's steps, in true units, after clipping."""
    curves = []
    for subject in subjects:
        steps = main_steps(subject.run)
        points = [
            (number, float(step.gradient_norm))
            for number, step in enumerate(steps, 1)
            if step.gradient_norm is not None and math.isfinite(step.gradient_norm)
        ]
        if points:
            curves.append((subject, points))
    if not curves:
        return None
    values = [value for _, points in curves for _, value in points]
    wide = min(values) > 0 and max(values) / min(values) >= WIDE
    return step_chart(
        "Gradient norm at each step",
        "L2 norm, as the optimizer uses it" + (" (logarithmic)" if wide else ""),
        curves,
        log_ticks if wide else number_ticks,
        lambda value: f"{value:.4g}",
        log=wide,
    )


Curves = Sequence[tuple[Subject, Sequence[tuple[int, float]]]]


def step_chart(
    title: str,
    y_name: str,
    curves: Curves,
    y_ticks: Callable[[float, float, Scale], tuple[Tick, ...]],
    text: Callable[[float], str],
    log: bool = False,
    least: float = 0.0,
) -> Plot:
    """A curve for every subject over the numbers of steps; the axis reaches `least` at least."""
    values = [value for _, points in curves for _, value in points]
    numbers = sorted({number for _, points in curves for number, _ in points})
    low, high = min(values), max(values)
    if log:
        low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
    else:
        low, high = min(0.0, low), max(least, high)
        high += (high - low) * 0.05
    up = vertical(low, high, log)
    across = horizontal(numbers[0] - 0.5, numbers[-1] + 0.5)
    return Plot(
        title=title,
        description="; ".join(curve_words(subject, points, text) for subject, points in curves),
        x_name=unit_of_steps(curves[0][0]),
        y_name=y_name,
        x_ticks=thinned([Tick(across(number), str(number)) for number in numbers], 2 * LABELS),
        y_ticks=y_ticks(low, up.high, up),
        keys=tuple(Key(subject.css, subject.name) for subject, _ in curves if subject.name),
        lines=tuple(
            Line(path([(across(number), up(value)) for number, value in points]), subject.css)
            for subject, points in curves
        ),
        dots=tuple(
            Dot(across(number), up(value), subject.css, words(subject, number, text(value)))
            for subject, points in curves
            for number, value in points
            if len(points) <= 64
        ),
        base=HEIGHT if log else up(0),
    )


def words(subject: Subject, number: int, value: str) -> str:
    return f"{f'{subject.name}, ' if subject.name else ''}step {number}: {value}"


def curve_words(
    subject: Subject, points: Sequence[tuple[int, float]], text: Callable[[float], str]
) -> str:
    (first, start), (last, end) = points[0], points[-1]
    falls = all(later <= earlier for (_, earlier), (_, later) in pairwise(points))
    rises = all(later >= earlier for (_, earlier), (_, later) in pairwise(points))
    way = (
        "stays at"
        if falls and rises
        else "rises to"
        if rises
        else "falls to"
        if falls
        else ("comes to")
    )
    name = f"{subject.name}: " if subject.name else ""
    return f"{name}{text(start)} at step {first}, {way} {text(end)} at step {last}"
