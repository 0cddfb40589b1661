"""Counts per rule, as tab-separated text or JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from oomlint.reports.report import Report


def render(report: Report, as_json: bool) -> Iterator[str]:
    counts: Counter[tuple[str, str]] = Counter()
    fixable: Counter[tuple[str, str]] = Counter()
    for result in report.results:
        for finding in result.findings:
            counts[finding.code, finding.name] += 1
            fixable[finding.code, finding.name] += report.applies(finding.fix)
        if result.problem is not None:
            counts[result.problem.kind, result.problem.kind] += 1
    ordered = sorted(counts, key=lambda key: (-counts[key], key))
    if as_json:
        objects = [
            {
                "code": code,
                "name": name,
                "count": counts[code, name],
                "fixable": fixable[code, name] > 0,
                "fixable_count": fixable[code, name],
            }
            for code, name in ordered
        ]
        yield json.dumps(objects, indent=2)
        return
    for key in ordered:
        mark = "[*]" if fixable[key] == counts[key] else "[-]" if fixable[key] else "[ ]"
        yield f"{counts[key]}\t{key[0]}\t{mark} {key[1]}"
