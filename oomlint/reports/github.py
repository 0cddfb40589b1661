"""Workflow commands of GitHub Actions, which put findings beside the lines of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.reports.entry import Entry, entries, path_notes
from oomlint.reports.report import Report
from oomlint.rule import Severity

COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def render(report: Report) -> Iterator[str]:
    for entry in entries(report):
        properties = ",".join(f"{key}={in_property(value)}" for key, value in place(entry))
        shown = f"{report.show(entry.path)}:{entry.row}:{entry.column}"
        first = f"{shown}: {entry.code} {entry.message}"
        text = "\n  ".join([first, *path_notes(entry, report)])
        yield f"::{COMMANDS[entry.severity]} {properties}::{in_data(text)}"


def place(entry: Entry) -> Iterator[tuple[str, str]]:
    yield "title", f"oomlint ({entry.code})"
    yield "file", str(entry.path)
    yield "line", str(entry.row)
    # GitHub drops an annotation with columns that spans more than one line.
    if entry.row == entry.end_row:
        yield "col", str(entry.column)
    yield "endLine", str(entry.end_row)
    if entry.row == entry.end_row:
        yield "endColumn", str(entry.end_column)


def in_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def in_property(text: str) -> str:
    return in_data(text).replace(":", "%3A").replace(",", "%2C")
