"""Draws what was measured: one table for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from oomlint.verify import Measured, Report
from oomlint.verify.compare import (
    Summary,
    summarise,
)
from oomlint.verify.drawing import console_on
from oomlint.verify.losses import Losses
from oomlint.verify.record import ITERATION, Run
from oomlint.verify.series import size
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED

STYLES = {CONFIRMED: "green", NO_EFFECT: "yellow", REFUTED: "red", NOT_MEASURED: "magenta"}
UNKNOWN = "-"
# How a part was known, where it was not by name, use or annotation.
KNOWN = {"nothing": "its part is not known", "it is a method": "its attributes follow"}


def title(report: Report) -> str:
    """What was run, for how long and where."""
    runs = [r.comparison.before for r in report.results if r.comparison is not None]
    limits = report.limits
    what = str(report.path)
    if report.target.module or report.target.main != report.target.file:
        what += f", run by {report.target.name}"
    elif report.target.function:
        what += f"::{report.target.function}"
    if not runs:
        return what
    device = "the emulated CUDA device" if runs[0].device == "emulated" else runs[0].device
    return (
        f"{what} on {device}, torch {runs[0].torch}, up to {limits.steps} steps, "
        f"seed {limits.seed}" + (f", {limits.ranks} ranks" if limits.ranks > 1 else "")
    )


def subject(report: Report, measured: Measured) -> str:
    """What was fixed: `train.py:41 OOM101 eval-without-no-grad`."""
    if len(measured.findings) > 1:
        codes = ", ".join(sorted({item.code for item in measured.findings}))
        return f"{report.path.name}, all fixes together ({codes})"
    item = measured.findings[0]
    return f"{report.path.name}:{item.row} {item.code} {item.name}"


def lines(one: Summary, other: Summary) -> Iterator[tuple[str, str, str]]:
    """Name of the measure, value before, value after."""

    def row(name: str, first: Any, last: Any, show: Any) -> tuple[str, str, str]:
        return (
            name,
            UNKNOWN if first is None else show(first),
            UNKNOWN if last is None else show(last),
        )

    def count(value: float) -> str:
        return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"

    def rough(value: float) -> str:
        return f"{value / 1024**2:,.0f} MiB"

    def norm(value: float) -> str:
        return f"{value:.4g}"

    yield row("device bytes, peak", one.peak, other.peak, size)
    yield row("device bytes, growth a step", one.growth, other.growth, size)
    yield row("autograd nodes alive", one.nodes, other.nodes, count)
    yield row("autograd nodes, growth a step", one.node_growth, other.node_growth, count)
    yield row("host memory", one.host, other.host, rough)
    yield row("host memory, growth a step", one.host_growth, other.host_growth, size)
    if one.raw_norm is not None or other.raw_norm is not None:
        yield row("gradient norm before clipping", one.raw_norm, other.raw_norm, norm)
    yield row("gradient norm at the step", one.gradient_norm, other.gradient_norm, norm)
    yield row("parameter update norm", one.update_norm, other.update_norm, norm)
    yield row("loss", one.loss, other.loss, norm)


def stood_in(report: Report) -> Iterator[str]:
    """A line for each parameter of a function that was stood in for, and an empty one."""
    runs = [r.comparison.before for r in report.results if r.comparison is not None]
    stood = next((run.stood for run in runs if run.stood), ())
    if not stood:
        return
    yield f"Stood in for, in {report.target.function}:"
    for name, what, why in stood:
        yield f"  {name}: {what} ({KNOWN.get(why, f'by {why}')})"
    yield ""


def said_of(losses: Losses) -> str:
    """The end of a row: equal, or where they part."""
    if losses.first is not None:
        return f"differ from {losses.unit} {losses.first} on"
    return "equal" if losses.exact else "equal up to rounding"


def with_losses(measured: Measured) -> str:
    found = measured.comparison
    losses = found.losses if found is not None else None
    if losses is None or f"the {losses.what}" in measured.verdict.reason:
        return ""
    return f"; the {losses.what} {losses}"


def steps_of(run: Run) -> str:
    unit = "iteration" if run.unit == ITERATION else "step"
    return f"{len(run.steps)} {unit}" + ("" if len(run.steps) == 1 else "s")


def draw(report: Report, *, terminal: bool, color: bool, width: int | None) -> str:
    """The table and a sentence for every finding; plain text unless a terminal reads it."""
    import io

    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = io.StringIO()
    console = console_on(out, terminal=terminal, color=color, width=width)
    table = Table(
        box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False, expand=False
    )
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    table.add_column("verdict")
    for measured in report.results:
        verdict = Text(measured.verdict.kind, STYLES[measured.verdict.kind])
        found = measured.comparison
        where = Text(subject(report, measured), "bold")
        if found is None:
            table.add_row(where, "", "", verdict, end_section=True)
            continue
        table.add_row(where, steps_of(found.before), steps_of(found.after), verdict)
        rows = list(lines(*(summarise(run, measured.verdict.optimizer) for run in found.runs)))
        if found.losses is not None:
            what, unit = found.losses.what, found.losses.unit
            rows.append((f"{what}, {unit} by {unit}", "", said_of(found.losses)))
        for number, (name, first, last) in enumerate(rows, 1):
            table.add_row(f"  {name}", first, last, "", end_section=number == len(rows))
    console.print(title(report))
    console.print()
    for line in stood_in(report):
        console.print(line, soft_wrap=True)
    console.print(table)
    console.print()
    for measured in report.results:
        kind = measured.verdict.kind
        sentence = Text(f"{subject(report, measured)}: ")
        sentence.append(kind, STYLES[kind])
        sentence.append(f": {measured.verdict.reason}{with_losses(measured)}.")
        console.print(sentence, soft_wrap=True)
    return out.getvalue() if terminal else strip_ends(out.getvalue())


def strip_ends(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
