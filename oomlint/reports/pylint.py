"""`file:row: [CODE] message`, which tools that read pylint's output understand."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.reports.entry import entries
from oomlint.reports.report import Report


def render(report: Report) -> Iterator[str]:
    for entry in entries(report):
        yield f"{report.show(entry.path)}:{entry.row}: [{entry.code}] {entry.message}"
