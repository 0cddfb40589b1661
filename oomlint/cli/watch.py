"""`oomlint check --watch`: checks again whenever a file changes, until it is interrupted."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from oomlint.cli import complain
from oomlint.cli.check import check_tree, settings_of
from oomlint.cli.options import Options
from oomlint.errors import OomlintError
from oomlint.files import SUFFIXES
from oomlint.settings import OWN_FILES, PROJECT_MARKERS, SettingsFinder

# What decides which files are checked and how, beside the files themselves.
OTHERS = frozenset((*OWN_FILES, *PROJECT_MARKERS, ".gitignore", "requirements.txt"))
# Editors write a file in several steps.
SETTLE_MS = 100


def watch(options: Options) -> None:
    """Checks at once and after each change; an error is said and waited out."""
    changes = watcher()
    finder, _ = settings_of(options)
    folders = watched(options.paths or (".",), finder)
    seen = changes(
        *folders,
        watch_filter=lambda change, path: matters(path),
        step=SETTLE_MS,
        debounce=10 * SETTLE_MS,
        rust_timeout=SETTLE_MS,
        yield_on_timeout=True,
        raise_interrupt=True,
    )
    next(seen)  # from here on changes are kept, those during a check, too
    run(options, "Checked")
    for changed in filter(None, seen):
        names = sorted({os.path.relpath(path) for _, path in changed})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        run(options, f"{names[0]}{more} changed")


def watcher() -> Callable[..., Iterator[Any]]:
    try:
        from watchfiles import watch as changes
    except ImportError:
        raise OomlintError(
            '`--watch` needs watchfiles; install it with `pip install "oomlint[watch]"`'
        ) from None
    return changes


def watched(paths: tuple[str, ...], finder: SettingsFinder) -> list[str]:
    """The paths and their projects: a change elsewhere in a project can change a result."""
    found = set()
    for path in paths:
        absolute = os.path.abspath(path)
        if not os.path.exists(absolute):
            raise OomlintError(f"{path}: no such file or directory")
        folder = absolute if os.path.isdir(absolute) else os.path.dirname(absolute)
        settings = finder.for_folder(folder)
        found.add(str(settings.root) if settings.is_project else folder)
    return sorted(one for one in found if not any(is_below(one, other) for other in found))


def is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def matters(path: str) -> bool:
    name = os.path.basename(path)
    return name.endswith((*SUFFIXES, ".md", ".markdown", ".qmd")) or name in OTHERS


def run(options: Options, why: str) -> None:
    if sys.stdout.isatty():
        click.clear()
    try:
        finder, settings = settings_of(options)
        check_tree(options, finder, settings)
    except OomlintError as error:
        complain("error", str(error), options.color)
    sys.stdout.flush()
    if not (options.quiet or options.silent):
        # Behind the report: what stands before a long one has left the screen.
        click.echo(f"[{time.strftime('%H:%M:%S')}] {why}; watching, stop with Ctrl-C.", err=True)
