"""`oomlint measure SNAPSHOT.pickle`: shows what a user recorded with torch.cuda.memory."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from oomlint.cli import wants_color
from oomlint.cli.written import write_file, write_page

SUFFIXES = (".pickle", ".pkl")


def show_snapshot(path: Path, given: dict[str, Any], choice: str | None) -> int:
    """`given` are the options of `measure`; those that are about running a script are not asked.

    Raises OomlintError where the file is no snapshot.
    """
    from oomlint.verify.document import snapshot_document
    from oomlint.verify.snapshot_table import draw
    from oomlint.verify.snapshots import read_snapshot

    run = read_snapshot(path)
    output, as_json = given["output_file"], given["output_format"] == "json"
    body = json.dumps(snapshot_document(path, run), indent=2) if as_json or output else ""
    if output is not None:
        write_file(output, body + "\n")
    elif as_json:
        click.echo(body)
    if not as_json:
        terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns
        color = wants_color(choice, sys.stdout)
        text = draw(path, run, terminal=terminal, color=color, width=width)
        click.echo(text, nl=False, color=color)
    if given["html"] is not None:
        from oomlint.verify.views.page import snapshot_page

        write_page(given["html"], lambda: snapshot_page(path, run))
    return 0
