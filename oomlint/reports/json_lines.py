"""The objects of the JSON format, one a line, for tools that read a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator

from oomlint.reports.json import objects
from oomlint.reports.report import Report


def render(report: Report) -> Iterator[str]:
    for item in objects(report):
        yield json.dumps(item, separators=(",", ":"), ensure_ascii=True)
