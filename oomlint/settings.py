"""Reads `[tool.oomlint]` and command-line overrides into frozen settings, one set per project."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from oomlint.errors import OomlintError
from oomlint.patterns import Pattern

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

OWN_FILES = (".oomlint.toml", "oomlint.toml")
PROJECT_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
FORMATS = ("full", "concise", "json")
FAIL_ON = ("error", "warning", "advice")
DEFAULT_EXCLUDE = (
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".git-rewrite",
    ".hg",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    ".oomlint_cache",
    ".pants.d",
    ".pyenv",
    ".pytest_cache",
    ".pytype",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    ".vscode",
    "__pycache__",
    "__pypackages__",
    "_build",
    "buck-out",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)


@dataclass(frozen=True, slots=True)
class Layer:
    """Selectors from one place; a later layer beats an earlier one."""

    origin: str
    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fixable: tuple[str, ...] | None = None
    extend_fixable: tuple[str, ...] = ()
    unfixable: tuple[str, ...] = ()
    extend_safe_fixes: tuple[str, ...] = ()
    extend_unsafe_fixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileIgnore:
    """Selectors that are ignored in files that match (or, negated, that do not match)."""

    pattern: Pattern
    negated: bool
    selectors: tuple[str, ...]
    origin: str

    def applies(self, path: str) -> bool:
        return self.pattern.covers(path) != self.negated


@dataclass(frozen=True, slots=True)
class Settings:
    """All that decides a file's result; `root` is the folder of the file's project."""

    root: Path
    base: Path
    source: Path | None = None
    # Whether `root` was found by a marker, so that a cache folder may be put there.
    is_project: bool = False
    layers: tuple[Layer, ...] = ()
    per_file_ignores: tuple[FileIgnore, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    force_exclude: bool = False
    respect_gitignore: bool = True
    preview: bool = False
    explicit_preview_rules: bool = False
    torch_version: tuple[int, int] | None = None
    output_format: str = "full"
    unsafe_fixes: bool | None = None
    fail_on: str = "advice"
    cache_dir: Path | None = None

    @property
    def fingerprint(self) -> str:
        """A digest of what decides findings, the same wherever the project lies."""
        ignores = tuple(
            (
                item.pattern.glob,
                os.path.relpath(item.pattern.base, self.root),
                item.negated,
                item.selectors,
            )
            for item in self.per_file_ignores
        )
        layers = tuple(replace(layer, origin="") for layer in self.layers)
        facts = (layers, ignores, self.preview, self.explicit_preview_rules, self.torch_version)
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


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


KEYS: dict[str, Callable[[object], Any]] = {
    "select": text_list,
    "extend-select": text_list,
    "ignore": text_list,
    "per-file-ignores": ignore_table,
    "extend-per-file-ignores": ignore_table,
    "exclude": text_list,
    "extend-exclude": text_list,
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
}


@dataclass(frozen=True, slots=True)
class Table:
    """Checked keys from one place, and the folder that its paths are relative to."""

    origin: str
    base: str
    values: Mapping[str, Any] = field(default_factory=dict)

    def layer(self) -> Layer:
        names = Layer.__dataclass_fields__
        found = {key.replace("-", "_"): value for key, value in self.values.items()}
        return Layer(self.origin, **{key: found[key] for key in found if key in names})


def checked_table(
    raw: Mapping[str, object], origin: str, base: str, locate: Callable[[str], str] = str
) -> Table:
    """Checks keys and types; `locate` turns a key into `file:line`. Raises OomlintError."""
    values = {}
    for key, value in raw.items():
        if key not in KEYS:
            raise OomlintError(
                f"{locate(key)}: unknown key `{key}`; the keys are {', '.join(sorted(KEYS))}"
            )
        try:
            values[key] = KEYS[key](value)
        except ValueError as error:
            raise OomlintError(f"{locate(key)}: `{key}` {error}") from None
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

    def locate(key: str) -> str:
        row = key_row(content, key, in_pyproject)
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


def build(root: Path, is_project: bool, source: Path | None, tables: Iterable[Table]) -> Settings:
    """Settings from the tables of a file, of `--config key=value` and of options, in this order."""
    tables = tuple(tables)
    merged: dict[str, tuple[Any, Table]] = {}
    for table in tables:
        merged.update({key: (value, table) for key, value in table.values.items()})

    def last(key: str, default: Any) -> Any:
        return merged[key][0] if key in merged else default

    cache_dir = merged.get("cache-dir")
    return Settings(
        root=root,
        base=Path(tables[0].base) if source and tables else root,
        source=source,
        is_project=is_project,
        layers=tuple(table.layer() for table in tables),
        per_file_ignores=tuple(file_ignores(merged, tables)),
        exclude=tuple(excludes(merged, tables, str(root))),
        force_exclude=last("force-exclude", False),
        respect_gitignore=last("respect-gitignore", True),
        preview=last("preview", False),
        explicit_preview_rules=last("explicit-preview-rules", False),
        torch_version=last("torch-version", None),
        output_format=last("output-format", "full"),
        unsafe_fixes=last("unsafe-fixes", None),
        fail_on=last("fail-on", "advice"),
        cache_dir=Path(cache_dir[1].base, os.path.expanduser(cache_dir[0])) if cache_dir else None,
    )


def excludes(
    merged: Mapping[str, tuple[Any, Table]], tables: tuple[Table, ...], root: str
) -> Iterable[Pattern]:
    globs, base = merged.get("exclude", (DEFAULT_EXCLUDE, None))
    yield from (Pattern(glob, base.base if base else root) for glob in globs)
    for table in tables:
        yield from (Pattern(glob, table.base) for glob in table.values.get("extend-exclude", ()))


def file_ignores(
    merged: Mapping[str, tuple[Any, Table]], tables: tuple[Table, ...]
) -> Iterable[FileIgnore]:
    found = [merged["per-file-ignores"]] if "per-file-ignores" in merged else []
    found += [
        (table.values["extend-per-file-ignores"], table)
        for table in tables
        if "extend-per-file-ignores" in table.values
    ]
    for ignores, table in found:
        for glob, selectors in ignores.items():
            pattern = Pattern(glob.removeprefix("!"), table.base)
            yield FileIgnore(pattern, glob.startswith("!"), selectors, table.origin)


class SettingsFinder:
    """Finds each file's settings once per folder, for one run.

    `config` replaces discovery, `isolated` switches it off; `overrides` come last.
    """

    def __init__(
        self, overrides: Iterable[Table] = (), config: Path | None = None, isolated: bool = False
    ) -> None:
        self.overrides = tuple(overrides)
        self.isolated = isolated
        self.fixed: Table | None = None
        self.fixed_path = config
        if config is not None:
            table = read_settings_file(config, Path.cwd())
            if table is None:
                raise OomlintError(f"{shown_path(config)}: has no `[tool.oomlint]` table")
            self.fixed = table
        self.tables: dict[str, tuple[Path, Table] | None] = {}
        self.roots: dict[str, tuple[str, bool]] = {}
        self.settings: dict[tuple[str, str | None], Settings] = {}
        self.by_folder: dict[str, Settings] = {}

    def for_file(self, path: str | Path) -> Settings:
        return self.for_folder(os.path.dirname(os.path.abspath(path)))

    def for_folder(self, folder: str) -> Settings:
        """The settings of the files that lie directly in the absolute `folder`."""
        known = self.by_folder.get(folder)
        if known is not None:
            return known
        root, is_project = self.root_of(folder)
        found = None if self.isolated or self.fixed else self.table_of(folder)
        source = self.fixed_path if self.fixed else found[0] if found else None
        key = (root, str(source) if source else None)
        if key not in self.settings:
            table = self.fixed or (found[1] if found else None)
            tables = (*((table,) if table else ()), *self.overrides)
            self.settings[key] = build(Path(root), is_project, source, tables)
        self.by_folder[folder] = self.settings[key]
        return self.settings[key]

    def table_of(self, folder: str) -> tuple[Path, Table] | None:
        """The closest settings file at or above a folder."""
        if folder in self.tables:
            return self.tables[folder]
        found = self.own_table(folder)
        parent = os.path.dirname(folder)
        if found is None and parent != folder:
            found = self.table_of(parent)
        self.tables[folder] = found
        return found

    def own_table(self, folder: str) -> tuple[Path, Table] | None:
        for name in (*OWN_FILES, "pyproject.toml"):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue
            table = read_settings_file(Path(path))
            if table is not None:
                return Path(path), table
        return None

    def root_of(self, folder: str) -> tuple[str, bool]:
        """The project's folder and whether a marker names it; what was asked for plays no part."""
        if folder in self.roots:
            return self.roots[folder]
        parent = os.path.dirname(folder)
        if os.path.basename(folder) in LIBRARY_FOLDERS:
            found = (folder, False)
        elif any(os.path.exists(os.path.join(folder, n)) for n in (*OWN_FILES, *PROJECT_MARKERS)):
            found = (folder, True)
        elif parent == folder:
            found = (folder, False)
        else:
            found = self.root_of(parent)
            in_package = os.path.exists(os.path.join(folder, "__init__.py"))
            above_is_package = os.path.exists(os.path.join(parent, "__init__.py"))
            if not found[1] and not (in_package and above_is_package):
                found = (folder, False)
        self.roots[folder] = found
        return found


def settings_for(path: Path, isolated: bool = False) -> Settings:
    """The settings that apply to one file, found afresh. Raises OomlintError."""
    return SettingsFinder(isolated=isolated).for_file(path)
