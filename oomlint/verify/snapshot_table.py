"""Draws what a memory snapshot holds for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from oomlint.verify.attribution import by_kind, by_line, growing, peak_span
from oomlint.verify.drawing import Drawing
from oomlint.verify.ledger import Span
from oomlint.verify.record import Run
from oomlint.verify.series import size
from oomlint.verify.snapshots import WITHOUT_STEPS

MOST_ROWS = 10


def rows(run: Run) -> Iterator[tuple[str, str]]:
    """Name of the measure and its value."""
    steps = sum(span.step > 0 for span in run.spans)
    yield "allocated bytes, peak", size(max(span.peak for span in run.spans))
    yield "reserved bytes, peak", size(max(max(span.reserved) for span in run.spans))
    yield "steps of an optimizer seen", f"{steps:,}" if steps else "none"
    yield "allocator events", f"{sum(span.events for span in run.spans):,}"


def draw(path: Path, run: Run, *, terminal: bool, color: bool, width: int | None) -> str:
    """Peaks, what is alive at the highest by kind and by line, and what piles up."""
    drawing = Drawing(terminal=terminal, color=color, width=width)
    drawing.sentence(f"{path} of {run.device}")
    for warning in run.warnings:
        drawing.sentence(f"{warning}.")
    drawing.table(("", ""), list(rows(run)))
    peak = peak_span(run, whole=True)
    if peak is not None:
        moment = f"at the peak, in step {peak.step}" if peak.step else "at the peak"
        for name, sums in (("kind", by_kind(peak.at_peak)), ("line", by_line(peak.at_peak))):
            drawing.sentence(f"By {name} {moment}")
            drawing.table((name, "bytes", "share"), list(share_rows(sums, peak)))
    rates = [(one.line, size(one.bytes_per_step)) for one in growing(run)[:MOST_ROWS]]
    if not rates:
        drawing.sentence("Nothing piles up.")
    elif any(span.step for span in run.spans):
        drawing.sentence("What piles up")
        drawing.table(("line", "a step"), rates)
    else:
        drawing.sentence(f"What grows. {WITHOUT_STEPS}")
        drawing.table(("line", "a twentieth"), rates)
    return drawing.text()


def share_rows(sums: dict[str, int], peak: Span) -> Iterator[tuple[str, str, str]]:
    listed = list(sums.items())
    for name, value in listed[:MOST_ROWS]:
        yield name or "(no line of yours)", size(value), f"{value / (peak.peak or 1):.0%}"
    rest = listed[MOST_ROWS:]
    if rest:
        total = sum(value for _, value in rest)
        yield f"{len(rest)} more", size(total), f"{total / (peak.peak or 1):.0%}"
