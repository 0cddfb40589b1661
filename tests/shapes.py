"""Checks documents against shapes: closed tables of keys, written after the published schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# A type, a set of allowed values, a pattern of a text, a list of one shape, or a table of keys of
# which those that end with `?` may be missing.
Shape = Any


def faults(value: object, shape: Shape, where: str = "$") -> Iterator[str]:
    """What does not fit, each with its place; nothing for a document that does."""
    if isinstance(shape, dict):
        yield from table_faults(value, shape, where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where} is no list"
            return
        for index, item in enumerate(value):
            yield from faults(item, shape[0], f"{where}[{index}]")
    elif isinstance(shape, (set, frozenset)):
        if value not in shape:
            yield f"{where} is {value!r}"
    elif isinstance(shape, re.Pattern):
        if not isinstance(value, str) or not shape.fullmatch(value):
            yield f"{where} is {value!r}"
    elif type(value) is not shape:
        yield f"{where} is {value!r}"


def table_faults(value: object, shape: dict[str, Shape], where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} is no object"
        return
    known = {key.removesuffix("?"): inner for key, inner in shape.items()}
    for key in sorted(value.keys() - known.keys()):
        yield f"{where}.{key} is not allowed"
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            yield from faults(value[name], inner, f"{where}.{name}")
        elif name == key:
            yield f"{where}.{name} is missing"


def keys_of(value: object) -> Any:
    """The tables of a document without their values; lists as the union of what they hold."""
    if isinstance(value, dict):
        return {key: keys_of(inner) for key, inner in value.items()}
    if isinstance(value, list):
        merged: dict[str, Any] = {}
        for item in value:
            keys = keys_of(item)
            merged |= {k: v or merged.get(k) for k, v in keys.items()} if keys else {}
        return merged
    return None


TEXT = {"text": re.compile(r"(?s).+")}
SHORT_TEXT = {"text": re.compile(r"(?s).{1,1024}")}
SARIF_ARTIFACT = {"uri": re.compile(r"[A-Za-z0-9._~/%:-]+"), "uriBaseId?": {"%SRCROOT%"}}
SARIF_REGION = {"startLine": int, "startColumn": int, "endLine": int, "endColumn": int}
SARIF_PLACE = {"artifactLocation": SARIF_ARTIFACT, "region": SARIF_REGION}
SARIF_LOCATION = {"id?": int, "physicalLocation": SARIF_PLACE, "message?": TEXT}
SARIF_RULE = {
    "id": str,
    "name?": str,
    # What GitHub demands beyond the schema.
    "shortDescription": SHORT_TEXT,
    "fullDescription": SHORT_TEXT,
    "help": {**TEXT, "markdown?": str},
    "helpUri?": re.compile("https://.+"),
    "defaultConfiguration": {"enabled": bool, "level": {"note", "warning", "error"}},
    "properties": {
        "tags": [str],
        "precision?": {"very-high", "high", "medium", "low"},
        "problem.severity": {"error", "warning", "recommendation"},
    },
}
SARIF_FIX = {
    "description": TEXT,
    "artifactChanges": [
        {
            "artifactLocation": SARIF_ARTIFACT,
            "replacements": [{"deletedRegion": SARIF_REGION, "insertedContent": {"text": str}}],
        }
    ],
}
SARIF_RESULT = {
    "ruleId": str,
    "ruleIndex": int,
    "level": {"note", "warning", "error"},
    "message": TEXT,
    "locations": [SARIF_LOCATION],
    "partialFingerprints": {"oomlint/v1": re.compile("[0-9a-f]{32}")},
    "relatedLocations?": [SARIF_LOCATION],
    "codeFlows?": [{"threadFlows": [{"locations": [{"location": SARIF_LOCATION}]}]}],
    "fixes?": [SARIF_FIX],
}
SARIF = {
    "$schema": re.compile("https://.+sarif-2.1.0.json"),
    "version": {"2.1.0"},
    "runs": [
        {
            "tool": {
                "driver": {
                    "name": {"oomlint"},
                    "version": str,
                    "semanticVersion": re.compile(r"\d+\.\d+\.\d+.*"),
                    "informationUri": re.compile("https://.+"),
                    "rules": [SARIF_RULE],
                }
            },
            "columnKind": {"unicodeCodePoints"},
            "originalUriBaseIds": {"%SRCROOT%": {"uri": re.compile("file:///.*/")}},
            "results": [SARIF_RESULT],
        }
    ],
}

RDJSON_POSITION = {"line": int, "column": int}
RDJSON_RANGE = {"start": RDJSON_POSITION, "end": RDJSON_POSITION}
RDJSON_LOCATION = {"path": str, "range": RDJSON_RANGE}
RDJSON = {
    "source": {"name": {"oomlint"}, "url": str},
    "severity": {"WARNING"},
    "diagnostics": [
        {
            "message": str,
            "severity": {"ERROR", "WARNING", "INFO"},
            "code": {"value": str, "url?": str},
            "location": RDJSON_LOCATION,
            "suggestions?": [{"range": RDJSON_RANGE, "text": str}],
            "relatedLocations?": [{"message": str, "location": RDJSON_LOCATION}],
        }
    ],
}

GITLAB_POSITION = {"line": int, "column": int}
GITLAB = [
    {
        "check_name": str,
        "description": str,
        "severity": {"info", "minor", "major", "critical", "blocker"},
        "fingerprint": re.compile("[0-9a-f]{32}"),
        "location": {
            "path": re.compile(r"[^/].*"),
            "positions": {"begin": GITLAB_POSITION, "end": GITLAB_POSITION},
        },
    }
]
