"""A finding or a problem, as every machine format needs it: flat, with its fingerprint.

In a notebook rows and columns are those of the file itself, where such tools look, and messages
begin with the cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from oomlint.fingerprints import fingerprints
from oomlint.keys import relative_name
from oomlint.linter import FileResult, Problem
from oomlint.reports.report import Report
from oomlint.rule import Finding, Fix, Severity, Waypoint
from oomlint.source import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """Rows and columns are 1-based code points, the end is exclusive."""

    path: Path
    source: Source | None
    code: str
    name: str
    severity: Severity
    message: str
    row: int
    column: int
    end_row: int
    end_column: int
    fingerprint: str
    is_problem: bool = False
    url: str | None = None
    fix: Fix | None = None
    waypoints: tuple[Waypoint, ...] = ()

    def holder(self, point: Waypoint) -> Path:
        """The file in which a waypoint lies."""
        return self.path.parent / point.filename if point.filename else self.path


def entries(report: Report) -> Iterator[Entry]:
    """All that the results say, in order of file and position."""
    for result in report.results:
        yield from file_entries(result, report)


def file_entries(result: FileResult, report: Report) -> Iterator[Entry]:
    source = report.texts.get(result.path)
    problem = result.problem
    places = [(finding.code, finding.row) for finding in result.findings]
    if problem is not None:
        places.append((problem.kind, problem.row))
    digests = fingerprints(relative_name(result.path, report.root), places, source)
    for finding, digest in zip(result.findings, digests, strict=False):
        yield in_file(finding_entry(result.path, finding, source, digest))
    if problem is not None:
        entry = problem_entry(result.path, problem, source, digests[-1])
        yield in_file(entry) if problem.row else entry


def in_file(entry: Entry) -> Entry:
    """The entry of a notebook by its places in the JSON, without a fix: that is no edit of JSON."""
    source = entry.source
    if source is None or source.notebook is None:
        return entry
    points = tuple(
        point if point.filename else moved(point, source, what=said(source, point.row, point.what))
        for point in entry.waypoints
    )
    message = said(source, entry.row, entry.message)
    return replace(moved(entry, source, message=message), source=None, waypoints=points)


def said(source: Source, row: int, text: str) -> str:
    return f"{source.place(row)}: {text}"


Placed = TypeVar("Placed", Entry, Waypoint)


def moved(placed: Placed, source: Source, **texts: Any) -> Placed:
    """The same by line and column of a notebook's JSON."""
    assert source.notebook is not None
    starts = source.line_starts
    start = source.notebook.in_document(starts[placed.row - 1] + placed.column - 1)
    end = source.notebook.in_document(starts[placed.end_row - 1] + placed.end_column - 1)
    texts |= {"row": start[0], "column": start[1], "end_row": end[0], "end_column": end[1]}
    return replace(placed, **texts)


def finding_entry(path: Path, finding: Finding, source: Source | None, digest: str) -> Entry:
    return Entry(
        path,
        source,
        finding.code,
        finding.name,
        finding.severity,
        finding.message,
        finding.row,
        finding.column,
        finding.end_row,
        finding.end_column,
        digest,
        url=finding.url,
        fix=finding.fix,
        waypoints=finding.path,
    )


def problem_entry(path: Path, problem: Problem, source: Source | None, digest: str) -> Entry:
    kind, row, column = problem.kind, problem.row or 1, problem.column or 1
    return Entry(
        path,
        source,
        kind,
        kind,
        Severity.ERROR,
        problem.message,
        row,
        column,
        row,
        column + 1,
        digest,
        is_problem=True,
    )


def path_notes(entry: Entry, report: Report) -> Iterator[str]:
    """The witness path and the fix in plain lines, for formats that have no place of their own."""
    for point in entry.waypoints:
        yield f"path: {report.show(entry.holder(point))}:{point.row} {point.what}"
    if entry.fix is not None:
        yield f"help: {entry.fix.title}"
