"""`file:row:column: CODE message`, one line a finding, for editors and grep."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.reports.report import Report
from oomlint.reports.style import paint
from oomlint.source import Place


def render(report: Report) -> Iterator[str]:
    for result in report.results:
        shown = report.show(result.path)
        for finding in result.findings:
            mark = "[*] " if report.applies(finding.fix) else ""
            code = paint(finding.code, report.color, fg="red", bold=True)
            at = report.place(result.path, finding.row)
            place = f"{paint(shown, report.color, bold=True)}:{at}:{finding.column}"
            yield f"{place}: {code} {paint(mark, report.color, fg='cyan')}{finding.message}"
        problem = result.problem
        if problem is not None:
            at = report.place(result.path, problem.row) if problem.row else Place(None, 1)
            place = f"{paint(shown, report.color, bold=True)}:{at}:{problem.column or 1}"
            kind = paint(problem.kind, report.color, fg="red", bold=True)
            yield f"{place}: {kind}: {problem.message}"
