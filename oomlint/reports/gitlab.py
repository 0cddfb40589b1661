"""GitLab's code quality report: a JSON array whose fingerprints tell new findings from old."""

from __future__ import annotations

import json
from collections.abc import Iterator

from oomlint.keys import relative_name
from oomlint.reports.entry import entries
from oomlint.reports.json import printable_path
from oomlint.reports.report import Report
from oomlint.rule import Severity

SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.ADVICE: "info"}


def render(report: Report) -> Iterator[str]:
    objects = [
        {
            "check_name": entry.code,
            "description": f"{entry.code}: {entry.message}",
            "severity": SEVERITIES[entry.severity],
            "fingerprint": entry.fingerprint,
            "location": {
                "path": printable_path(relative_name(entry.path, report.root)),
                "positions": {
                    "begin": {"line": entry.row, "column": entry.column},
                    "end": {"line": entry.end_row, "column": entry.end_column},
                },
            },
        }
        for entry in entries(report)
    ]
    yield json.dumps(objects, indent=2, ensure_ascii=True)
