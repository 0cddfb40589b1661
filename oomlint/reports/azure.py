"""Logging commands of Azure Pipelines."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.reports.entry import entries
from oomlint.reports.report import Report
from oomlint.rule import Severity


def render(report: Report) -> Iterator[str]:
    for entry in entries(report):
        kind = "error" if entry.severity is Severity.ERROR else "warning"
        yield (
            f"##vso[task.logissue type={kind};sourcepath={in_property(str(entry.path))};"
            f"linenumber={entry.row};columnnumber={entry.column};code={in_property(entry.code)};]"
            f"{in_data(entry.message)}"
        )


def in_data(text: str) -> str:
    return text.replace("%", "%AZP25").replace("\r", "%0D").replace("\n", "%0A")


def in_property(text: str) -> str:
    return in_data(text).replace("]", "%5D").replace(";", "%3B")
