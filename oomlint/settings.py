"""Reads `[tool.oomlint]` and command-line overrides into frozen settings, one set per project."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oomlint.effects import Effect, Taught
from oomlint.errors import OomlintError
from oomlint.keys import Table, read_settings_file, shown_path
from oomlint.patterns import Pattern

OWN_FILES = (".oomlint.toml", "oomlint.toml")
PROJECT_MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", ".git")
LIBRARY_FOLDERS = ("site-packages", "dist-packages")
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
    # What the project says about its own functions.
    effects: tuple[Taught, ...] = ()
    output_format: str = "full"
    unsafe_fixes: bool | None = None
    fail_on: str = "advice"
    cache_dir: Path | None = None
    baseline: Path | None = None
    # Suffixes that are looked for in folders beside those of Python and of notebooks.
    extension: tuple[str, ...] = ()
    # Whether comments that silence count for nothing in this run.
    ignore_noqa: bool = False
    # What gives `oomlint verify` the arguments of a function, and the folder that it is named from.
    harness: str = ""
    harness_folder: str = ""

    @property
    def taught_words(self) -> tuple[str, ...]:
        """Words of which a file that uses what was taught holds one, but for what only silences."""
        return tuple({t.last: None for t in self.effects if t.effect is not Effect.OPAQUE})

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
        facts: tuple[object, ...] = (layers, ignores, self.preview, self.explicit_preview_rules)
        facts += (self.torch_version, self.effects, self.ignore_noqa)
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def build(
    root: Path,
    is_project: bool,
    source: Path | None,
    own: tuple[Table, ...],
    overrides: tuple[Table, ...] = (),
    ignore_noqa: bool = False,
) -> Settings:
    """Settings from the tables of a file and those it extends, then of `--config` and options."""
    tables = (*own, *overrides)
    merged: dict[str, tuple[Any, Table]] = {}
    for table in tables:
        merged.update({key: (value, table) for key, value in table.values.items()})

    def last(key: str, default: Any) -> Any:
        return merged[key][0] if key in merged else default

    cache_dir, baseline = merged.get("cache-dir"), merged.get("baseline")
    verify = merged.get("verify")
    return Settings(
        root=root,
        base=Path(own[-1].base) if source and own else root,
        source=source,
        is_project=is_project,
        layers=tuple(layer(table) for table in tables),
        per_file_ignores=tuple(file_ignores(merged, tables)),
        exclude=tuple(excludes(merged, tables, str(root))),
        force_exclude=last("force-exclude", False),
        respect_gitignore=last("respect-gitignore", True),
        preview=last("preview", False),
        explicit_preview_rules=last("explicit-preview-rules", False),
        torch_version=last("torch-version", None),
        effects=last("effects", ()),
        output_format=last("output-format", "full"),
        unsafe_fixes=last("unsafe-fixes", None),
        fail_on=last("fail-on", "advice"),
        cache_dir=Path(cache_dir[1].base, os.path.expanduser(cache_dir[0])) if cache_dir else None,
        # An empty one switches off what a settings file names.
        baseline=Path(baseline[1].base, baseline[0]) if baseline and baseline[0] else None,
        extension=last("extension", ()),
        ignore_noqa=ignore_noqa,
        harness=verify[0].get("harness", "") if verify else "",
        harness_folder=verify[1].base if verify else "",
    )


def with_extended(table: Table, path: Path) -> tuple[Table, ...]:
    """The table of the file `path` behind those that it extends, the farthest first.

    Raises OomlintError for a file that is not there, has no table, or extends itself.
    """
    tables = [table]
    seen = [os.path.realpath(path)]
    while (wanted := tables[-1].values.get("extend")) is not None:
        above = Path(tables[-1].base, os.path.expandvars(os.path.expanduser(wanted)))
        origin = f"{tables[-1].origin}: `extend`"
        if os.path.realpath(above) in seen:
            raise OomlintError(f"{origin} leads back to {shown_path(above)}; remove one of them")
        if not above.is_file():
            raise OomlintError(f"{origin} names {shown_path(above)}, which is no file")
        found = read_settings_file(above)
        if found is None:
            raise OomlintError(
                f"{origin} names {shown_path(above)}, which has no `[tool.oomlint]` table"
            )
        seen.append(os.path.realpath(above))
        tables.append(found)
    return tuple(reversed(tables))


def layer(table: Table) -> Layer:
    names = Layer.__dataclass_fields__
    found = {key.replace("-", "_"): value for key, value in table.values.items()}
    return Layer(table.origin, **{key: found[key] for key in found if key in names})


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
        self,
        overrides: Iterable[Table] = (),
        config: Path | None = None,
        isolated: bool = False,
        ignore_noqa: bool = False,
    ) -> None:
        self.overrides = tuple(overrides)
        self.isolated = isolated
        self.ignore_noqa = ignore_noqa
        self.fixed: tuple[Table, ...] = ()
        self.fixed_path = config
        if config is not None:
            table = read_settings_file(config, Path.cwd())
            if table is None:
                raise OomlintError(f"{shown_path(config)}: has no `[tool.oomlint]` table")
            self.fixed = with_extended(table, config)
        self.tables: dict[str, tuple[Path, tuple[Table, ...]] | None] = {}
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
            own = self.fixed or (found[1] if found else ())
            self.settings[key] = build(
                Path(root), is_project, source, own, self.overrides, self.ignore_noqa
            )
        self.by_folder[folder] = self.settings[key]
        return self.settings[key]

    def table_of(self, folder: str) -> tuple[Path, tuple[Table, ...]] | None:
        """The closest settings file at or above a folder."""
        if folder in self.tables:
            return self.tables[folder]
        found = self.own_table(folder)
        parent = os.path.dirname(folder)
        if found is None and parent != folder:
            found = self.table_of(parent)
        self.tables[folder] = found
        return found

    def own_table(self, folder: str) -> tuple[Path, tuple[Table, ...]] | None:
        for name in (*OWN_FILES, "pyproject.toml"):
            path = os.path.join(folder, name)
            if not os.path.isfile(path):
                continue
            table = read_settings_file(Path(path))
            if table is not None:
                return Path(path), with_extended(table, Path(path))
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
