"""What an editor's own configuration says about oomlint, for all or for one of its folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oomlint.errors import OomlintError
from oomlint.keys import Table, checked_table

ORIGIN = "the editor's settings"
# Keys of settings files that mean nothing to a server.
WITHOUT_MEANING = ("output-format", "fail-on", "cache-dir", "unsafe-fixes")
# Keys that only editors have: a settings file, and what is measured how.
OWN_KEYS = ("configuration", "measure")


@dataclass(frozen=True, slots=True)
class Options:
    """Settings as the client wrote them, unchecked; they beat those of files."""

    # Names and values of JSON, and what paths in them are relative to.
    values: tuple[tuple[str, Any], ...] = ()
    folder: Path = Path()
    isolated: bool = False

    def file(self) -> Path | None:
        """The settings file that replaces those of the projects. Raises OomlintError."""
        name = dict(self.values).get("configuration")
        if name is None:
            return None
        path = self.folder / os.path.expanduser(str(name))
        if not path.is_file():
            raise OomlintError(f"{ORIGIN}: `configuration` names no file: {name}")
        return path

    def measuring(self) -> tuple[list[str] | None, list[str] | None]:
        """Options of `oomlint verify` and arguments of scripts; None what is no list of strings."""
        table = self.measure()
        return strings(table.get("options", [])), strings(table.get("arguments", []))

    def has_lenses(self) -> bool:
        return self.measure().get("lens") is not False

    def measure(self) -> Mapping[str, Any]:
        table = dict(self.values).get("measure")
        return table if isinstance(table, Mapping) else {}

    def tables(self) -> tuple[Table, ...]:
        """The table of the settings that stand beside `configuration`. Raises OomlintError."""
        keyed = {kebab(key): value for key, value in self.values if key not in OWN_KEYS}
        for key in WITHOUT_MEANING:
            if key in keyed:
                raise OomlintError(f"{ORIGIN}: `{key}` means nothing in an editor")
        if not keyed:
            return ()
        return (checked_table(keyed, ORIGIN, str(self.folder), lambda *keys: ORIGIN),)


def strings(value: object) -> list[str] | None:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    return None


def kebab(name: str) -> str:
    """`perFileIgnores` as settings files write it: `per-file-ignores`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()


def options(raw: object, folder: Path) -> Options:
    """Options from what a client sent: the settings, or an object that holds them."""
    return Options(tuple(entries(plain(raw))), folder)


def entries(raw: object) -> Iterator[tuple[str, Any]]:
    if not isinstance(raw, Mapping):
        return
    for outer in ("settings", "oomlint"):
        if isinstance(raw.get(outer), Mapping):
            yield from entries(raw[outer])
            return
    yield from ((str(key), value) for key, value in raw.items() if value is not None)


def plain(value: object) -> Any:
    """JSON as dicts and lists; the protocol's library turns objects into named tuples."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "__dict__"):
        return {key: plain(item) for key, item in vars(value).items()}
    return value
