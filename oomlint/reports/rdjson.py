"""Reviewdog's diagnostic format; its columns count bytes of UTF-8."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oomlint.reports.entry import Entry, entries
from oomlint.reports.json import printable_path
from oomlint.reports.report import Report
from oomlint.rule import REPOSITORY, Severity, Waypoint
from oomlint.source import Source

Object = dict[str, Any]
SEVERITIES = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.ADVICE: "INFO"}


def render(report: Report) -> Iterator[str]:
    document = {
        "source": {"name": "oomlint", "url": REPOSITORY},
        "severity": "WARNING",
        "diagnostics": [diagnostic(entry, report) for entry in entries(report)],
    }
    yield json.dumps(document, indent=2, ensure_ascii=True)


def diagnostic(entry: Entry, report: Report) -> Object:
    found: Object = {
        "message": entry.message,
        "severity": SEVERITIES[entry.severity],
        "code": {"value": entry.code, **({"url": entry.url} if entry.url else {})},
        "location": location(entry.path, entry.source, entry),
    }
    if entry.fix is not None and entry.source is not None:
        found["suggestions"] = [
            {
                "range": {
                    "start": position(entry.source, *entry.source.position(edit.start)),
                    "end": position(entry.source, *entry.source.position(edit.end)),
                },
                "text": edit.content,
            }
            for edit in entry.fix.edits
        ]
    if entry.waypoints:
        found["relatedLocations"] = [
            {
                "message": point.what,
                "location": location(holder, report.texts.get(holder), point),
            }
            for point in entry.waypoints
            for holder in (entry.holder(point),)
        ]
    return found


def location(path: Path, source: Source | None, place: Entry | Waypoint) -> Object:
    return {
        "path": printable_path(path),
        "range": {
            "start": position(source, place.row, place.column),
            "end": position(source, place.end_row, place.end_column),
        },
    }


def position(source: Source | None, row: int, column: int) -> dict[str, int]:
    """The place of a code point as reviewdog counts: columns are bytes of UTF-8 from 1."""
    if source is None or source.notebook or row > len(source.line_starts):
        return {"line": row, "column": column}
    before = source.line(row)[: column - 1]
    wide = len(before.encode("utf-8", "surrogatepass")) - len(before)
    return {"line": row, "column": column + wide}
