"""SARIF 2.1.0 as GitHub code scanning reads it; a finding's path is a code flow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import oomlint
from oomlint import registry
from oomlint.keys import relative_name
from oomlint.reports.entry import Entry, entries
from oomlint.reports.report import Report
from oomlint.rule import FAMILIES, PREFIX, REPOSITORY, Rule, Severity, Waypoint

Object = dict[str, Any]

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
BASE = "%SRCROOT%"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
RANKS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "recommendation"}
# GitHub refuses longer descriptions.
LONGEST = 1024


def render(report: Report) -> Iterator[str]:
    found = list(entries(report))
    rules = descriptors(report, found)
    places = {rule["id"]: index for index, rule in enumerate(rules)}
    run = {
        "tool": {
            "driver": {
                "name": "oomlint",
                "version": oomlint.__version__,
                "semanticVersion": oomlint.__version__,
                "informationUri": REPOSITORY,
                "rules": rules,
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {BASE: {"uri": file_uri(report.root, "/")}},
        "results": [result(entry, places[entry.code], report) for entry in found],
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    yield json.dumps(document, indent=2, ensure_ascii=True)


def descriptors(report: Report, found: Iterable[Entry]) -> list[Object]:
    """The rules that are on, those with findings, and the kinds of problems that there are."""
    codes = {entry.code for entry in found}
    wanted = {rule.code: rule for rule in registry.all_rules() if rule.code in codes}
    wanted |= {rule.code: rule for rule in report.rules}
    kinds = sorted(codes - wanted.keys())
    return [
        *(rule_object(wanted[code]) for code in sorted(wanted)),
        *(problem_kind(kind) for kind in kinds),
    ]


def rule_object(rule: type[Rule]) -> Object:
    summary = rule.summary() or rule.name
    text = rule.explanation() or summary
    page = {"helpUri": rule.url()} if rule.url() else {}
    return {
        "id": rule.code,
        "name": rule.name,
        "shortDescription": {"text": shortened(summary)},
        "fullDescription": {"text": shortened(reason(text) or summary)},
        "help": {"text": text, "markdown": text},
        **page,
        "defaultConfiguration": {"enabled": rule.default, "level": LEVELS[rule.severity]},
        "properties": {
            "tags": tags(rule.code),
            "precision": "high",
            "problem.severity": RANKS[rule.severity],
        },
    }


def tags(code: str) -> list[str]:
    family = FAMILIES.get(code[3:4]) if code.startswith(PREFIX) else None
    return ["pytorch", *([family] if family else [])]


def problem_kind(kind: str) -> Object:
    said = {"text": f"A file could not be checked: {kind.replace('-', ' ')}."}
    return {
        "id": kind,
        "shortDescription": said,
        "fullDescription": said,
        "help": said,
        "defaultConfiguration": {"enabled": True, "level": "error"},
        "properties": {"tags": ["pytorch"], "problem.severity": "error"},
    }


def reason(explanation: str) -> str:
    """The first paragraph of "Why is this bad?"."""
    _, heading, rest = explanation.partition("## Why is this bad?")
    return " ".join(rest.strip().split("\n\n", 1)[0].split()) if heading else ""


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def result(entry: Entry, index: int, report: Report) -> Object:
    found: Object = {
        "ruleId": entry.code,
        "ruleIndex": index,
        "level": LEVELS[entry.severity],
        "message": {"text": entry.message},
        "locations": [{"physicalLocation": physical(entry.path, entry, report)}],
        # Not `primaryLocationLineHash`: GitHub's upload complains of any that is not its own.
        "partialFingerprints": {"oomlint/v1": entry.fingerprint},
    }
    if entry.waypoints:
        points = [location(entry, point, report) for point in entry.waypoints]
        related = [{"id": number, **point} for number, point in enumerate(points, 1)]
        found["relatedLocations"] = related
        found["codeFlows"] = [
            {"threadFlows": [{"locations": [{"location": point} for point in points]}]}
        ]
    if entry.fix is not None and entry.source is not None and entry.fix.edits:
        found["fixes"] = [fix(entry, report)]
    return found


def location(entry: Entry, point: Waypoint, report: Report) -> Object:
    place = physical(entry.holder(point), point, report)
    return {"physicalLocation": place, "message": {"text": point.what}}


def physical(path: Path, place: Entry | Waypoint, report: Report) -> Object:
    return {
        "artifactLocation": artifact(path, report),
        "region": region((place.row, place.column), (place.end_row, place.end_column)),
    }


def region(start: tuple[int, int], end: tuple[int, int]) -> Object:
    return {
        "startLine": start[0],
        "startColumn": start[1],
        "endLine": end[0],
        "endColumn": end[1],
    }


def fix(entry: Entry, report: Report) -> Object:
    assert entry.fix is not None and entry.source is not None
    replacements = []
    for edit in entry.fix.edits:
        span = region(entry.source.position(edit.start), entry.source.position(edit.end))
        replacements.append({"deletedRegion": span, "insertedContent": {"text": edit.content}})
    changes = {"artifactLocation": artifact(entry.path, report), "replacements": replacements}
    return {"description": {"text": entry.fix.title}, "artifactChanges": [changes]}


def artifact(path: Path, report: Report) -> Object:
    name = relative_name(path, report.root)
    if os.path.isabs(name):
        return {"uri": file_uri(path)}
    return {"uri": quote(os.fsencode(name)), "uriBaseId": BASE}


def file_uri(path: Path, end: str = "") -> str:
    """A `file:` URI, also for names that are no text; that of a folder ends with a slash."""
    name = os.fsencode(os.path.abspath(path).replace(os.sep, "/").strip("/"))
    return f"file:///{quote(name, safe='/:')}{end if name else ''}"
