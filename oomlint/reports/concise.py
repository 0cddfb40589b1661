"""`file:row:column: CODE message`, one line a finding, for editors and grep."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.reports.report import Report
from oomlint.reports.style import paint


def render(report: Report) -> Iterator[str]:
    for result in report.results:
        shown = report.show(result.path)
        for finding in result.findings:
            mark = "[*] " if report.applies(finding.fix) else ""
            code = paint(finding.code, report.color, fg="red", bold=True)
            place = f"{paint(shown, report.color, bold=True)}:{finding.row}:{finding.column}"
            yield f"{place}: {code} {paint(mark, report.color, fg='cyan')}{finding.message}"
        problem = result.problem
        if problem is not None:
            place = (
                f"{paint(shown, report.color, bold=True)}:{problem.row or 1}:{problem.column or 1}"
            )
            kind = paint(problem.kind, report.color, fg="red", bold=True)
            yield f"{place}: {kind}: {problem.message}"
