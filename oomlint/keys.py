"""The keys of settings files: what each may hold, and where a wrong one stands."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oomlint.errors import OomlintError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Formats for people, which end with a summary, and those that hold a document and nothing else.
TEXT_FORMATS = ("full", "concise", "grouped")
MACHINE_FORMATS = (
    "json",
    "json-lines",
    "github",
    "gitlab",
    "sarif",
    "junit",
    "pylint",
    "rdjson",
    "azure",
)
FORMATS = TEXT_FORMATS + MACHINE_FORMATS
FAIL_ON = ("error", "warning", "advice")


def text_list(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise ValueError("must be a list of strings")


def boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("must be true or false")


def text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError("must be a string")


def one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value in choices:
            return str(value)
        raise ValueError("must be one of " + ", ".join(f"`{choice}`" for choice in choices))

    return check


def ignore_table(value: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError("must be a table of pattern = [selectors]")
    return {key: text_list(selectors) for key, selectors in value.items()}


def torch_release(value: object) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", value) if isinstance(value, str) else None
    if match is None:
        raise ValueError('must be a release as a string, such as "2.4"')
    return int(match[1]), int(match[2])


def effects(value: object) -> object:
    from oomlint.effects import effects_table

    return effects_table(value)


# What `extension` may name, beside what is always looked for.
EXTENSIONS = ("md", "markdown", "qmd")


def extensions(value: object) -> tuple[str, ...]:
    names = tuple(name.removeprefix(".") for name in text_list(value))
    for name in names:
        one_of(EXTENSIONS)(name)
    return names


HARNESS = re.compile(r"([A-Za-z_]\w*(\.\w+)*|[^:]+\.py):[A-Za-z_]\w*")


def harness(value: object) -> str:
    """`package.module:function` or `file.py:function`."""
    if isinstance(value, str) and HARNESS.fullmatch(value):
        return value
    raise ValueError('must name a function, as "package.module:function" or "file.py:function"')


def verify_table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("must be a table")
    for key in value:
        if key != "harness":
            raise ValueError(f"has an unknown key `{key}`; the key is harness")
    try:
        return {key: harness(name) for key, name in value.items()}
    except ValueError as error:
        raise ValueError(f"has a harness that {error}") from None


KEYS: dict[str, Callable[[object], Any]] = {
    "extend": text,
    "select": text_list,
    "extend-select": text_list,
    "ignore": text_list,
    "per-file-ignores": ignore_table,
    "extend-per-file-ignores": ignore_table,
    "effects": effects,
    "exclude": text_list,
    "extend-exclude": text_list,
    "extension": extensions,
    "force-exclude": boolean,
    "respect-gitignore": boolean,
    "fixable": text_list,
    "extend-fixable": text_list,
    "unfixable": text_list,
    "extend-safe-fixes": text_list,
    "extend-unsafe-fixes": text_list,
    "preview": boolean,
    "explicit-preview-rules": boolean,
    "output-format": one_of(FORMATS),
    "unsafe-fixes": boolean,
    "fail-on": one_of(FAIL_ON),
    "torch-version": torch_release,
    "cache-dir": text,
    "baseline": text,
    "verify": verify_table,
}


@dataclass(frozen=True, slots=True)
class Table:
    """Checked keys from one place, and the folder that its paths are relative to."""

    origin: str
    base: str
    values: Mapping[str, Any] = field(default_factory=dict)


def checked_table(
    raw: Mapping[str, object], origin: str, base: str, locate: Callable[..., str]
) -> Table:
    """Checks keys and types; `locate` turns the first key that it finds into `file:line`.

    Raises OomlintError.
    """
    values = {}
    for key, value in raw.items():
        if key not in KEYS:
            raise OomlintError(
                f"{locate(key)}: unknown key `{key}`; the keys are {', '.join(sorted(KEYS))}"
            )
        try:
            values[key] = KEYS[key](value)
        except ValueError as error:
            # An entry of a table knows its own name.
            where = locate(getattr(error, "name", key), key)
            raise OomlintError(f"{where}: `{key}` {error}") from None
    return Table(origin, base, values)


def read_settings_file(path: Path, base: Path | None = None) -> Table | None:
    """The table of a settings file, None for a pyproject.toml without one. Raises OomlintError."""
    shown = shown_path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OomlintError(f"{shown}: cannot be read: {error.strerror}") from None
    in_pyproject = path.name == "pyproject.toml"
    if in_pyproject and b"oomlint" not in data:
        return None
    try:
        content = data.decode("utf-8")
        document = tomllib.loads(content)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OomlintError(f"{shown}: is not valid TOML: {error}") from None
    raw = document.get("tool", {}).get("oomlint") if in_pyproject else document
    if raw is None:
        return None
    if not isinstance(raw, dict):
        raise OomlintError(f"{shown}: `tool.oomlint` must be a table")

    def locate(*keys: str) -> str:
        rows = (key_row(content, key, in_pyproject) for key in keys)
        row = next((row for row in rows if row), None)
        return f"{shown}:{row}" if row else shown

    return checked_table(raw, shown, str(base or path.parent), locate)


def key_row(content: str, key: str, in_pyproject: bool) -> int | None:
    """The 1-based row where a key of our table stands, if it is written in the usual way."""
    inside = not in_pyproject
    wanted = re.compile(rf"""\s*(?:\[(?:tool\.oomlint\.)?)?["']?{re.escape(key)}["']?\s*[.=\]]""")
    for row, line in enumerate(content.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
        if header and in_pyproject:
            inside = header[1] == "tool.oomlint" or header[1].startswith("tool.oomlint.")
        if inside and wanted.match(line):
            return row
    return None


def shown_path(path: Path) -> str:
    """A path as users see it: relative to the working folder when it lies below it."""
    absolute, here = os.path.abspath(path), os.getcwd()
    below = absolute.startswith(here.rstrip(os.sep) + os.sep)
    return os.path.relpath(absolute, here) if below else absolute


def relative_name(path: Path, root: Path) -> str:
    """A path with slashes, relative to `root` when it lies below it."""
    absolute, top = os.path.abspath(path), os.path.abspath(root)
    if absolute.startswith(top.rstrip(os.sep) + os.sep):
        absolute = os.path.relpath(absolute, top)
    return absolute.replace(os.sep, "/")
