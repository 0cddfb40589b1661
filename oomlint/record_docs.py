"""Writes docs/record.md out of the JSON schema that oomlint ships for its records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SCHEMA = Path(__file__).parent / "verify" / "record.schema.json"
INTRODUCTION = (
    "# The record of a measurement",
    "`oomlint verify --json FILE` and `oomlint measure --output-format json FILE` print one JSON"
    " document for each run of the command, `-o` writes it to a file, and `--html` shows the same"
    " as a page. `oomlint measure SNAPSHOT.pickle` makes one of a recording of torch.cuda.memory,"
    " `oomlint measure --fits` one of its answer."
    " [record.schema.json](../oomlint/verify/record.schema.json) is its JSON schema, from which"
    " this page is made; it is installed with oomlint.",
    "`version` rises when a field goes away or comes to mean something else. New fields may come"
    " at any time: leave alone what you do not know. Bytes are bytes, seconds are seconds, norms"
    " are L2 unless said otherwise. JSON has no infinity: `inf`, `-inf` and `nan` are strings.",
)


def record_page() -> str:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    parts = [*INTRODUCTION, "## The document", table(schema)]
    for name, definition in schema["$defs"].items():
        parts += [f"## {name}", definition["description"], table(definition)]
    return "\n\n".join(parts) + "\n"


def table(definition: dict[str, Any]) -> str:
    rows = [
        f"| `{name}` | {kind(field)} | {field['description']} |"
        for name, field in definition["properties"].items()
        if "description" in field
    ]
    return "\n".join(["| Field | Value | Meaning |", "|---|---|---|", *rows])


def kind(field: dict[str, Any]) -> str:
    """A type in words, with a link where it is one of the page's own."""
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "anyOf" in field:
        return " or ".join(kind(choice) for choice in field["anyOf"])
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    types = field["type"] if isinstance(field["type"], list) else [field["type"]]
    return " or ".join(f"list of {kind(field['items'])}" if t == "array" else t for t in types)
