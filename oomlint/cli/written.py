"""Writes the files that a measurement goes to: its record as JSON, its page as HTML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from oomlint.errors import OomlintError

html_option: Callable[[Any], Any] = click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="PAGE",
    help="Write a page of charts and tables that needs no network: report.html.",
)


def refuse_to_overwrite(paths: tuple[Path | None, ...], force: bool) -> None:
    """Comes before the measurement, which may take long."""
    for path in paths:
        if path is not None and path.exists() and not force:
            raise OomlintError(f"{path} exists; give --force to overwrite it")


def write_file(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{path}: cannot be written: {reason}") from None


def write_page(path: Path, draw: Callable[[], str]) -> None:
    """Raises OomlintError where what draws pages is not installed."""
    try:
        text = draw()
    except ModuleNotFoundError as error:
        if error.name != "jinja2":
            raise
        raise OomlintError("--html needs jinja2; install oomlint[verify]") from None
    write_file(path, text)
    click.echo(f"The page is in {path}.", err=True)
