"""Findings below the name of their file, one line each."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.linter import FileResult
from oomlint.reports.report import Report
from oomlint.reports.style import paint


def render(report: Report) -> Iterator[str]:
    for result in report.results:
        rows = list(rows_of(result, report))
        if not rows:
            continue
        yield f"{paint(report.show(result.path), report.color, bold=True)}:"
        before = max(len(row) for row, _, _ in rows)
        after = max(len(str(column)) for _, column, _ in rows)
        for row, column, text in rows:
            yield f"  {row:>{before}}:{column:<{after}} {text}"
        yield ""


def rows_of(result: FileResult, report: Report) -> Iterator[tuple[str, int, str]]:
    for finding in result.findings:
        mark = paint("[*] ", report.color, fg="cyan") if report.applies(finding.fix) else ""
        code = paint(finding.code, report.color, fg="red", bold=True)
        row = str(report.place(result.path, finding.row))
        yield row, finding.column, f"{code} {mark}{finding.message}"
    problem = result.problem
    if problem is not None:
        kind = paint(problem.kind, report.color, fg="red", bold=True)
        row = str(report.place(result.path, problem.row)) if problem.row else "1"
        yield row, problem.column or 1, f"{kind}: {problem.message}"
