"""The default report: each finding with its source, the path that proves it, and its fix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.linter import FileResult, Problem
from oomlint.reports.report import Report
from oomlint.reports.style import paint, printable, width
from oomlint.rule import Finding, Safety, Severity
from oomlint.source import Source

CONTEXT = 2
# A finding over more rows than this is shown without its middle.
MOST_ROWS = 8
# Columns of source that are shown of a very long line.
MOST_CELLS = 160

COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.ADVICE: "blue"}


def render(report: Report) -> Iterator[str]:
    for result in report.results:
        source = report.texts.get(result.path)
        for finding in result.findings:
            yield from finding_lines(report, result, finding, source)
            yield ""
        if result.problem is not None:
            yield from problem_lines(report, result, result.problem, source)
            yield ""


def finding_lines(
    report: Report, result: FileResult, finding: Finding, source: Source | None
) -> Iterator[str]:
    color = report.color
    mark = paint("[*] ", color, fg="cyan") if report.applies(finding.fix) else ""
    code = paint(finding.code, color, fg=COLORS[finding.severity], bold=True)
    severity = paint(finding.severity.value, color, fg=COLORS[finding.severity])
    yield f"{code} {severity} {mark}{paint(finding.message, color, bold=True)}"
    margin = Margin(finding, source, color)
    shown = report.show(result.path)
    yield margin.pointer(f"{shown}:{report.place(result.path, finding.row)}:{finding.column}")
    if source is not None and finding.end_row <= len(source.line_starts):
        yield from margin.excerpt(finding, source)
    yield from path_lines(report, result, finding, margin)
    yield from fix_lines(report, finding, source, margin)


@dataclass(frozen=True, slots=True)
class Margin:
    """The gutter with row numbers as the author counts, as wide as the last shown one needs."""

    finding: Finding
    source: Source | None
    color: bool

    @property
    def digits(self) -> int:
        last = self.finding.end_row + CONTEXT
        if self.source is not None:
            row = min(self.finding.end_row, len(self.source.line_starts))
            last = self.source.place(min(last, self.source.rows_around(row)[1])).row
        return len(str(last))

    def number(self, row: int) -> int:
        return self.source.place(row).row if self.source else row

    def bar(self, number: object = "", sign: str = "|") -> str:
        return paint(f"{number!s:>{self.digits}} {sign}", self.color, fg="blue", bold=True)

    def pointer(self, text: str) -> str:
        return " " * self.digits + paint("-->", self.color, fg="blue", bold=True) + f" {text}"

    def note(self, label: str) -> str:
        sign = paint("=", self.color, fg="blue", bold=True)
        return " " * self.digits + f" {sign} {paint(label, self.color, bold=True)}"

    def excerpt(self, finding: Finding, source: Source) -> Iterator[str]:
        yield self.bar()
        top, bottom = source.rows_around(finding.row)
        first = max(top, finding.row - CONTEXT)
        last = max(finding.end_row, min(finding.end_row + CONTEXT, bottom))
        for row in range(first, last + 1):
            if elided(finding, row):
                if row == finding.row + MOST_ROWS // 2:
                    yield self.bar("", ":")
                continue
            line = source.written_line(row)
            if not line.strip() and (row in (first, last)) and not in_range(finding, row):
                continue
            start, end = marked(finding, row, line)
            text, before, marks = window(line, start, end)
            yield f"{self.bar(self.number(row))} {text}".rstrip()
            if marks:
                carets = paint("^" * marks, self.color, fg=COLORS[finding.severity], bold=True)
                yield f"{self.bar()} {' ' * before}{carets}"
        yield self.bar()


def in_range(finding: Finding, row: int) -> bool:
    return finding.row <= row <= finding.end_row


def elided(finding: Finding, row: int) -> bool:
    if finding.end_row - finding.row < MOST_ROWS:
        return False
    return finding.row + MOST_ROWS // 2 <= row <= finding.end_row - MOST_ROWS // 4


def marked(finding: Finding, row: int, line: str) -> tuple[int, int]:
    """The columns (from 0) to underline on a row; equal when there are none."""
    if not in_range(finding, row):
        return 0, 0
    start = finding.column - 1 if row == finding.row else len(line) - len(line.lstrip())
    end = finding.end_column - 1 if row == finding.end_row else len(line.rstrip())
    if row == finding.row:
        end = max(end, start + 1)
    return start, max(start, end)


def window(line: str, start: int, end: int) -> tuple[str, int, int]:
    """What is shown of a line, the cells before the mark, and the cells of the mark."""
    text, before = printable(line), width(printable(line[:start]))
    marks = max(width(printable(line[start:end])), 1) if end > start else 0
    if width(text) <= MOST_CELLS:
        return text, before, marks
    left = max(0, start - MOST_CELLS // 3)
    cut = line[left : left + MOST_CELLS]
    head = "..." if left else ""
    tail = "..." if left + MOST_CELLS < len(line) else ""
    before = width(head + printable(line[left:start]))
    marks = min(marks, max(width(printable(cut)) - before + len(head), 1)) if marks else 0
    return head + printable(cut) + tail, before, marks


def path_lines(
    report: Report, result: FileResult, finding: Finding, margin: Margin
) -> Iterator[str]:
    """The witness: one aligned line an event, with its code."""
    steps = []
    for point in finding.path:
        holder = result.path.parent / point.filename if point.filename else result.path
        source = report.texts.get(holder)
        known = source is not None and point.row <= len(source.line_starts)
        code = printable(source.written_line(point.row).strip()) if source and known else ""
        steps.append((f"{report.show(holder)}:{report.place(holder, point.row)}", point.what, code))
    if not steps:
        return
    places = max(width(place) for place, _, _ in steps)
    events = max(width(what) for _, what, _ in steps)
    for index, (place, what, code) in enumerate(steps):
        label = "path:" if index == 0 else "  ->"
        lead = margin.note("path:") if index == 0 else " " * (margin.digits + 3) + f"{label:<5}"
        gap = " " * (places - width(place))
        if len(code) > 60:
            code = code[:57] + "..."
        quoted = " " * (events - width(what) + 2) + paint(code, report.color, dim=True)
        yield f"{lead} {place}{gap}  {what}{quoted if code else ''}"


def fix_lines(
    report: Report, finding: Finding, source: Source | None, margin: Margin
) -> Iterator[str]:
    fix = finding.fix
    if fix is None:
        return
    yield paint("help: ", report.color, fg="cyan", bold=True) + fix.title
    if source is not None and fix.edits:
        yield margin.bar()
        yield from fix_diff(finding, source, margin, report.color)
        yield margin.bar()
    if fix.safety is Safety.UNSAFE:
        note = paint("note: ", report.color, fg="cyan", bold=True)
        yield f"{note}This is an unsafe fix: it changes what the code computes"


def fix_diff(finding: Finding, source: Source, margin: Margin, color: bool) -> Iterator[str]:
    """The changed lines, with one line of context; numbers are those of the new text."""
    import difflib

    if finding.fix is None:
        return
    shift = 0
    shown_any = False
    cell = source.place(finding.row).cell
    for first, last, new in changed_blocks(finding, source):
        if source.place(first).cell != cell:
            cell, shift = source.place(first).cell, 0
            yield margin.bar("", f"::: cell {cell}")
        elif shown_any:
            yield margin.bar("", ":")
        shown_any = True
        old = [source.written_line(row) for row in range(first, last + 1)]
        number = margin.number(first) + shift
        for line in difflib.ndiff(old, new):
            column = finding.column - 1
            sign, body = line[0], window(line[2:], column, column)[0]
            if sign == "?":
                continue
            if sign == "-":
                yield paint(f"{margin.bar('', '-')} {body}".rstrip(), color, fg="red")
                continue
            if sign == "+":
                yield paint(f"{margin.bar(number, '+')} {body}".rstrip(), color, fg="green")
            else:
                yield f"{margin.bar(number)} {body}".rstrip()
            number += 1
        shift += len(new) - len(old)


def changed_blocks(finding: Finding, source: Source) -> Iterator[tuple[int, int, list[str]]]:
    """Row ranges that the fix touches, with one row around, and the rows that replace them."""
    edits = sorted(finding.fix.edits, key=lambda e: (e.start, e.end)) if finding.fix else []
    blocks: list[tuple[int, int, list[tuple[int, int, str]]]] = []
    rows = len(source.line_starts)
    for edit in edits:
        row = source.position(edit.start)[0]
        top, bottom = source.rows_around(row)
        # A text that ends with a newline has an empty row after it, which is no context.
        bottom -= bottom > 1 and source.line_starts[bottom - 1] == len(source.text)
        first = max(top, row - 1)
        row = source.position(edit.end)[0]
        last = max(row, min(bottom, row + 1))
        if blocks and first <= blocks[-1][1] + 1:
            begin, _, inside = blocks.pop()
            blocks.append((begin, last, [*inside, (edit.start, edit.end, edit.content)]))
        else:
            blocks.append((first, last, [(edit.start, edit.end, edit.content)]))
    for first, last, inside in blocks:
        position = source.line_starts[first - 1]
        end = source.line_starts[last] if last < rows else len(source.text)
        parts = []
        for start, stop, content in inside:
            parts += [source.written[position:start], content]
            position = stop
        text = "".join([*parts, source.written[position:end]]).replace("\r\n", "\n")
        yield first, last, text.removesuffix("\n").replace("\r", "\n").split("\n")


def problem_lines(
    report: Report, result: FileResult, problem: Problem, source: Source | None
) -> Iterator[str]:
    kind = paint(problem.kind, report.color, fg="red", bold=True)
    yield f"{kind}: {paint(problem.message, report.color, bold=True)}"
    row, column = problem.row or 1, problem.column or 1
    place = Finding("", "", "", Severity.ERROR, 0, 0, row, column, row, column + 1)
    margin = Margin(place, source if problem.row else None, report.color)
    at = report.place(result.path, row) if problem.row else row
    yield margin.pointer(f"{report.show(result.path)}:{at}:{column}")
    if problem.row and source is not None and row <= len(source.line_starts):
        yield from margin.excerpt(place, source)
