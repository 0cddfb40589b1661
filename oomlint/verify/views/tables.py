"""Turns runs into rows: what is alive at the peak by kind and by line, what piles up, each step."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oomlint.verify.attribution import by_kind, growing, peak_span
from oomlint.verify.ledger import Held, Span
from oomlint.verify.record import Run, Step
from oomlint.verify.series import size
from oomlint.verify.snapshots import WITHOUT_STEPS
from oomlint.verify.views.charts import Subject

MOST_ROWS = 20
MOST_STEPS = 64
NOWHERE = "(no line of yours)"
NONE = "-"

Key = tuple[str, str]  # a line, or empty, and a kind


@dataclass(frozen=True, slots=True)
class Cell:
    """A number of one run, and its share of the largest in the table in percent."""

    text: str
    share: float
    css: str


@dataclass(frozen=True, slots=True)
class Row:
    """What is alive of one kind that one line made; `code` is written there."""

    line: str
    code: str
    kind: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """`head` names the columns, of which the first is at the left; `rest` says what is left out."""

    title: str
    head: tuple[str, ...]
    rows: tuple[Row, ...]
    rest: str = ""


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps of one run."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def peak_by_kind(subjects: Sequence[Subject], whole: bool) -> Table | None:
    columns: list[dict[Key, float]] = [
        {("", kind): value for kind, value in by_kind(at_peak(subject.run, whole)).items()}
        for subject in subjects
    ]
    return table(f"Alive at the {peak_of(whole)}, by kind", "kind", subjects, columns)


def peak_by_line(subjects: Sequence[Subject], whole: bool) -> Table | None:
    columns: list[dict[Key, float]] = []
    for subject in subjects:
        held = at_peak(subject.run, whole)
        columns.append({(named(subject, one.line), one.kind): one.bytes for one in held})
    return table(f"Alive at the {peak_of(whole)}, by line", "line", subjects, columns)


def growth_by_line(subjects: Sequence[Subject]) -> Table | None:
    """None where nothing piles up in any run."""
    columns: list[dict[Key, float]] = []
    for subject in subjects:
        found = growing(subject.run)
        columns.append({(named(subject, one.line), one.kind): one.bytes_per_step for one in found})
    if any(span.step for subject in subjects for span in subject.run.spans):
        return table("What piles up from step to step, by line", "line", subjects, columns)
    title = "What grows from one twentieth of the recording to the next, by line"
    drawn = table(title, "line", subjects, columns)
    return replace(drawn, rest=f"{WITHOUT_STEPS} {drawn.rest}".strip()) if drawn else None


def peak_of(whole: bool) -> str:
    return "peak" if whole else "peak of the steps"


def at_peak(run: Run, whole: bool) -> tuple[Held, ...]:
    span = peak_span(run, whole=whole)
    return span.at_peak if span is not None else ()


def named(subject: Subject, line: str) -> str:
    return subject.moved.get(line, line) or NOWHERE


def table(
    title: str,
    first: str,
    subjects: Sequence[Subject],
    columns: Sequence[Mapping[Key, float]],
) -> Table | None:
    """Rows in the order of their largest cell; None without rows."""
    keys = sorted({key for column in columns for key in column})
    keys.sort(key=lambda key: -max(column.get(key, 0) for column in columns))
    if not keys:
        return None
    largest = max(column.get(keys[0], 0) for column in columns) or 1
    codes = {
        named(subject, line): code
        for subject in reversed(subjects)  # the first one's text is shown where two differ
        for line, code in subject.run.lines.items()
    }
    rows = tuple(
        Row(
            line,
            codes.get(line, ""),
            kind,
            tuple(
                Cell(
                    size(column[line, kind]) if (line, kind) in column else NONE,
                    round(100 * column.get((line, kind), 0) / largest, 1),
                    subject.css,
                )
                for subject, column in zip(subjects, columns, strict=True)
            ),
        )
        for line, kind in keys[:MOST_ROWS]
    )
    head = (first, *(subject.name or "bytes" for subject in subjects))
    return Table(title, head, rows, rest(subjects, keys[MOST_ROWS:], columns))


def rest(
    subjects: Sequence[Subject],
    keys: Sequence[Key],
    columns: Sequence[Mapping[Key, float]],
) -> str:
    if not keys:
        return ""
    sums = [size(sum(column.get(key, 0) for key in keys)) for column in columns]
    said = ", ".join(
        f"{value} {subject.name}".strip() for subject, value in zip(subjects, sums, strict=True)
    )
    return f"{len(keys)} more rows, together {said}"


def steps(subject: Subject) -> StepTable | None:
    """The numbers of every step, for who does not see the charts."""
    run = subject.run
    ends = {span.step: span for span in run.spans}
    if not run.steps:
        return None
    rows = [step_row(number, step, ends) for number, step in enumerate(run.steps, 1)]
    more = f", the first {MOST_STEPS} of {len(rows):,}" if len(rows) > MOST_STEPS else ""
    return StepTable(
        (f"Each step {subject.name}".strip()) + more,
        ("step", "peak", "at its end", "reserved", "gradient norm", "loss"),
        tuple(rows[:MOST_STEPS]),
    )


def step_row(number: int, step: Step, ends: Mapping[int, Span]) -> tuple[str, ...]:
    norm = NONE if step.gradient_norm is None else f"{step.gradient_norm:.4g}"
    loss = NONE if step.loss is None else f"{step.loss:.6g}"
    sizes = (size(step.allocated_peak), size(step.allocated), size(step.reserved))
    return str(number), *sizes, norm, loss


def moved_lines(file: str, texts: tuple[str, str]) -> dict[str, str]:
    """What lines of a fixed file are called beside those of the file as it was before.

    Lines that the fix leaves alone or replaces one by one are called as before; `file` is absolute.
    """
    name = shown(file)
    before, after = (text.splitlines() for text in texts)
    names = {}
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, first, last in matcher.get_opcodes():
        pairs = tag == "equal" or end - start == last - first
        for place, row in enumerate(range(first, last)):
            old = f"{name}:{start + place + 1}"
            names[f"{name}:{row + 1}"] = old if pairs else f"{name}:{row + 1} after the fix"
    return names


def shown(file: str) -> str:
    """A file as lines of runs name it: seen from the working folder, if it lies below."""
    try:
        return str(Path(file).relative_to(os.getcwd()))
    except ValueError:
        return file
