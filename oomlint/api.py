"""What `import oomlint` offers to programs: check and fix a text, check files and folders."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomlint.errors import OomlintError
from oomlint.keys import Table, checked_table
from oomlint.settings import Settings, SettingsFinder, build

if TYPE_CHECKING:
    from oomlint.linter import FileResult
    from oomlint.rule import Finding
    from oomlint.source import Source

# Where a text without a name lies: in a folder of its own, beside nothing.
NOWHERE = Path(os.path.abspath(os.sep), "<text>")
NAMELESS = "<text>.py"

Config = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Fixed:
    """A text after fixes; `applied` are the findings that they removed, `remaining` those left."""

    text: str
    applied: tuple[Finding, ...]
    remaining: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in one file; `problem` says why it could not be checked, if it could not."""

    path: Path
    findings: tuple[Finding, ...]
    problem: str | None = None


def check(
    text: str, filename: str | os.PathLike[str] | None = None, *, config: Config | None = None
) -> tuple[Finding, ...]:
    """The findings in a text, in their order.

    `filename` is the place where the text stands or would stand: it decides on the settings file,
    on other files of the project that are followed, and on how the text is read (a notebook's is
    its JSON). The file need not exist and is not read. Without one, nothing but the text counts.
    `config` holds keys of settings files and their values, on top of what the project says.

    Offsets and columns count code points, rows and columns start at 1, ends are exclusive. Excludes
    do not count; comments that silence do. Raises SyntaxError for what is no Python (with its row
    and column) or no notebook, and OomlintError for a setting that cannot be.
    """
    from oomlint.linter import check_source

    source, settings = prepared(text, filename, config)
    result = check_source(source, settings)
    refuse(result)
    return result.findings


def fix(
    text: str,
    filename: str | os.PathLike[str] | None = None,
    *,
    unsafe: bool = False,
    config: Config | None = None,
) -> Fixed:
    """The text after its safe fixes, with `unsafe` after those too that change what it computes.

    `filename`, `config` and what is raised are those of `check`. Nothing is written.
    """
    from oomlint.fixer import fix_text

    source, settings = prepared(text, filename, config)
    fixed = fix_text(source, settings, unsafe)
    refuse(fixed.result)
    after = fixed.source
    whole = f"\ufeff{after.document}" if after.bom else after.document
    return Fixed(whole, fixed.applied, fixed.result.findings)


def check_paths(
    paths: Iterable[str | os.PathLike[str]],
    *,
    config: Config | None = None,
    jobs: int | None = None,
    use_cache: bool = True,
) -> tuple[Checked, ...]:
    """Checks files and folders as the command does: in processes, with stored results.

    Returns the files with findings or a problem, in order of their paths. Excludes and what git
    ignores are left out. Raises OomlintError for a path that does not exist or a wrong setting.
    """
    from oomlint.files import find_files
    from oomlint.tree import check_paths as check_files

    found = find_files([os.fspath(path) for path in paths], finder(config))
    checked = check_files(found.files, jobs=jobs, use_cache=use_cache)
    return tuple(
        Checked(result.path, result.findings, result.problem.message if result.problem else None)
        for result in checked.results
        if result.findings or result.problem
    )


def finder(config: Config | None) -> SettingsFinder:
    return SettingsFinder((table_of(config, os.getcwd()),))


def table_of(config: Config | None, base: str) -> Table:
    """What a caller says as the last table of settings. Raises OomlintError."""
    if config and "extend" in config:
        raise OomlintError("config: `extend` can only stand in a settings file")
    return checked_table(config or {}, "config", base, lambda *keys: "config")


def prepared(
    text: str, filename: str | os.PathLike[str] | None, config: Config | None
) -> tuple[Source, Settings]:
    from oomlint.analysis.project import forget_files
    from oomlint.source import Unreadable, from_text

    # A program lives longer than a run of the command: other files may have changed meanwhile.
    forget_files()
    if filename is None:
        path = NOWHERE / NAMELESS
        settings = build(NOWHERE, False, None, (), (table_of(config, str(NOWHERE)),))
    else:
        path = Path(os.path.abspath(filename))
        settings = finder(config).for_file(path)
    try:
        return from_text(path, text), settings
    except Unreadable as error:
        raise SyntaxError(f"{shown(path)}: {error}") from None


def refuse(result: FileResult) -> None:
    """Raises for a text that could not be checked."""
    problem = result.problem
    if problem is None:
        return
    if problem.kind == "internal-error":
        raise OomlintError(f"{shown(result.path)}: {problem.message}")
    place = (shown(result.path), problem.row or None, problem.column or None, None)
    raise SyntaxError(problem.message, place)


def shown(path: Path) -> str:
    return "<text>" if path.parent == NOWHERE else str(path)
