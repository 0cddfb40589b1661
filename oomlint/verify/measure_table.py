"""Draws one measurement for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.verify import budget_table
from oomlint.verify.budget import budget_of
from oomlint.verify.compare import summarise
from oomlint.verify.drawing import Drawing
from oomlint.verify.holdings import Share, confidence
from oomlint.verify.measure import Measurement
from oomlint.verify.record import FINISHED, ITERATION, STOPPED, Run
from oomlint.verify.series import main_steps, size, warm

LINES = 10


def title(found: Measurement) -> str:
    """What was run and where."""
    run, held = found.run, found.held
    command = " ".join((str(found.path), *found.argv))
    return (
        f"{command} on {device_of(found)} with {size(held.capacity)}, torch {run.torch}, "
        f"{ending(found)}, seed {found.limits.seed}"
    )


def device_of(found: Measurement) -> str:
    if found.run.device != "emulated":
        return found.run.device
    gpu = f" as {found.limits.gpu}" if found.limits.gpu else ""
    return f"the emulated CUDA device{gpu}"


def ending(found: Measurement) -> str:
    count = steps_of(found.run)
    if found.run.ending.kind == FINISHED:
        return f"to its end after {count}"
    if found.run.ending.kind == STOPPED:
        return f"stopped after {count}"
    row = f" at line {found.run.ending.row}" if found.run.ending.row else ""
    return f"{found.run.ending.message}{row} after {count}"


def steps_of(run: Run) -> str:
    unit = "iteration" if run.unit == ITERATION else "step"
    return f"{len(run.steps)} {unit}" + ("" if len(run.steps) == 1 else "s")


def rows(found: Measurement) -> Iterator[tuple[str, str]]:
    """Name of the measure and its value."""
    held, summary = found.held, summarise(found.run, None)
    yield "requested bytes, peak", size(held.requested_peak)
    yield "allocated bytes, peak", size(held.allocated_peak)
    yield "reserved bytes, peak", size(held.reserved_peak)
    yield "left of the capacity", size(held.capacity - held.reserved_peak)
    steps = main_steps(found.run)
    if len(steps) > 1:
        later = max(step.requested_peak for step in warm(steps))
        yield "requested bytes, peak of the later steps", size(later)
    if summary.growth is not None:
        yield "growth a step", size(summary.growth)
    if summary.node_growth:
        yield "autograd nodes, growth a step", f"{summary.node_growth:,.0f}"
    host = max([held.host, *(step.host for step in found.run.steps)])
    yield "host memory", f"{host / 1024**2:,.0f} MiB"
    if summary.host_growth:
        yield "host memory, growth a step", size(summary.host_growth)
    if held.ooms:
        yield "out-of-memory errors", f"{held.ooms:,}"
    if held.retries:
        yield "times the cache was given back", f"{held.retries:,}"


def moment(found: Measurement) -> str:
    """When and where the peak came."""
    held = found.held
    before = "before the first step" if held.step == 0 else f"in step {held.step + 1}"
    if held.step and held.step >= len(found.run.steps):
        before = "after the last step"
    if held.step == 0 and found.run.steps:
        before = "in step 1"
    return f"at the peak, {before}" + (f" at {held.line}" if held.line else "")


def draw(found: Measurement, *, terminal: bool, color: bool, width: int | None) -> str:
    """The table; plain text unless a terminal reads it."""
    held = found.held
    drawing = Drawing(terminal=terminal, color=color, width=width)
    drawing.sentence(title(found))
    drawing.table(("", ""), list(rows(found)))
    for name, shares in (("kind", held.kinds), ("line", held.lines)):
        if shares:
            drawing.sentence(f"By {name} {moment(found)}")
            drawing.table(
                (name, "bytes", "share", "blocks"), list(share_rows(shares, held.requested_peak))
            )
    budget = budget_of(found)
    if budget is not None:
        budget_table.draw(drawing, budget)
    drawing.sentence(f"Confidence: {confidence(held)}")
    for doubt in held.doubts:
        drawing.sentence(f"- {doubt}")
    return drawing.text()


def share_rows(shares: tuple[Share, ...], whole: int) -> Iterator[tuple[str, ...]]:
    for share in shares[:LINES]:
        part = f"{share.size / whole:.0%}" if whole else ""
        yield share.name or "(no line of yours)", size(share.size), part, f"{share.blocks:,}"
    rest = shares[LINES:]
    if rest:
        name, total = f"{len(rest)} more", sum(share.size for share in rest)
        blocks = sum(share.blocks for share in rest)
        yield name, size(total), f"{total / whole:.0%}", f"{blocks:,}"
