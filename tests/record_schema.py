"""The schema of records, and what of a document it does not describe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

import oomlint

SCHEMA = Path(oomlint.__file__).parent / "verify" / "record.schema.json"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))


def undescribed(value: Any, schema: dict[str, Any], place: str = "") -> Iterator[str]:
    """Fields of a document that the schema does not know."""
    if "$ref" in schema:
        schema = VALIDATOR.schema["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
        yield from undescribed(value, schema, place) if value is not None else ()
        return
    if isinstance(value, dict) and "properties" in schema:
        for key, item in value.items():
            if key not in schema.get("properties", {}):
                yield f"{place}.{key}"
            else:
                yield from undescribed(item, schema["properties"][key], f"{place}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            yield from undescribed(item, schema["items"], f"{place}[]")
