"""A JSON array with one object a finding; its keys are those that readers of ruff's JSON know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oomlint import registry
from oomlint.linter import FileResult, Problem
from oomlint.reports.report import Report
from oomlint.rule import Finding, Fix
from oomlint.source import Place, Source
from oomlint.suppressions import noqa_row

Object = dict[str, Any]


def render(report: Report) -> Iterator[str]:
    yield json.dumps(list(objects(report)), indent=2, ensure_ascii=True)


def objects(report: Report) -> Iterator[Object]:
    for result in report.results:
        source = report.texts.get(result.path)
        for finding in result.findings:
            yield finding_object(result, finding, source)
        if result.problem is not None:
            yield problem_object(result, result.problem, source)


def finding_object(result: FileResult, finding: Finding, source: Source | None) -> Object:
    noqa = noqa_row(source, finding.row) if source else finding.row
    return {
        "cell": source.place(finding.row).cell if source else None,
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity.value,
        "filename": printable_path(result.path),
        "message": finding.message,
        "url": finding.url,
        "noqa_row": source.place(noqa).row if source else noqa,
        "location": place(source, finding.row, finding.column),
        "end_location": place(source, finding.end_row, finding.end_column),
        "fix": fix_object(finding.fix, source),
        "path": [
            {
                "message": point.what,
                "filename": printable_path(result.path.parent / point.filename)
                if point.filename
                else printable_path(result.path),
                "location": place(None if point.filename else source, point.row, point.column),
                "end_location": place(
                    None if point.filename else source, point.end_row, point.end_column
                ),
            }
            for point in finding.path
        ],
        "effect": effect(finding.code),
    }


def problem_object(result: FileResult, problem: Problem, source: Source | None) -> Object:
    row, column = problem.row or 1, problem.column or 1
    source = source if problem.row else None
    return {
        "cell": source.place(row).cell if source else None,
        "code": problem.kind,
        "name": problem.kind,
        "severity": "error",
        "filename": printable_path(result.path),
        "message": problem.message,
        "url": None,
        "noqa_row": None,
        "location": place(source, row, column),
        "end_location": place(source, row, column + 1),
        "fix": None,
        "path": [],
        "effect": [],
    }


def fix_object(fix: Fix | None, source: Source | None) -> Object | None:
    if fix is None or source is None:
        return None
    return {
        "applicability": fix.safety.value,
        "message": fix.title,
        "edits": [
            {
                "content": edit.content,
                "location": place(source, *source.position(edit.start)),
                "end_location": place(source, *source.position(edit.end)),
            }
            for edit in fix.edits
        ],
    }


def effect(code: str) -> list[Object]:
    """What `oomlint verify` must measure for the fix to be confirmed: any one of these."""
    for rule in registry.all_rules():
        if rule.code == code:
            return [
                {"claim": claim.name.lower().replace("_", "-"), "description": claim.value}
                for claim in rule.claims
            ]
    return []


def place(source: Source | None, row: int, column: int) -> Object:
    """A position; in a notebook its row is counted in the cell that it names."""
    at = source.place(row) if source else Place(None, row)
    cell = {} if at.cell is None else {"cell": at.cell}
    return {**cell, "row": at.row, "column": column}


def printable_path(path: Path | str) -> str:
    return str(path).encode("utf-8", "replace").decode("utf-8")
