"""`oomlint clean`: removes stored results, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import click

from oomlint.cache import FOLDER, is_cache, results_outside
from oomlint.errors import OomlintError
from oomlint.keys import Table, checked_table, shown_path
from oomlint.settings import SettingsFinder


@click.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...")
@click.option(
    "--cache-dir",
    metavar="FOLDER",
    envvar="OOMLINT_CACHE_DIR",
    help="Where results were stored.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print nothing.")
def clean(paths: tuple[str, ...], cache_dir: str | None, quiet: bool) -> None:
    """Remove the stored results of projects (default: that of the current folder)."""
    finder = SettingsFinder(cache_override(cache_dir))
    for path in paths or (".",):
        folder = os.path.abspath(path)
        if not os.path.isdir(folder):
            raise OomlintError(f"{path}: is no folder")
        for found in stored(folder, finder):
            remove(found)
            if not quiet:
                click.echo(f"Removed {shown_path(found)}", err=True)


def cache_override(cache_dir: str | None) -> tuple[Table, ...]:
    given = {} if cache_dir is None else {"cache-dir": cache_dir}
    return (checked_table(given, "command line", os.getcwd(), lambda key, *outer: f"--{key}"),)


def stored(folder: str, finder: SettingsFinder) -> Iterator[Path]:
    """The cache folders of a project and of those below `folder`, and results kept elsewhere."""
    settings = finder.for_folder(folder)
    above = settings.root / FOLDER
    if str(settings.root) != folder and is_cache(above):
        yield above
    yield from results_outside(settings)
    for inner, folders, _ in os.walk(folder):
        if FOLDER in folders:
            folders.remove(FOLDER)
            if is_cache(Path(inner, FOLDER)):
                yield Path(inner, FOLDER)


def remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{shown_path(path)}: cannot be removed: {reason}") from None
