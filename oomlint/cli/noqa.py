"""`--add-noqa`: silences what is found, by a comment on each line."""

from __future__ import annotations

from dataclasses import replace

import click

from oomlint.cli import complain
from oomlint.cli.options import Options
from oomlint.cli.summary import Outcome
from oomlint.errors import OomlintError
from oomlint.fixer import write_atomically
from oomlint.keys import shown_path
from oomlint.linter import FileResult
from oomlint.reports.report import Texts
from oomlint.source import Source
from oomlint.suppressions import ignore_edit, noqa_row, suppress


def add_noqa(options: Options, outcome: Outcome, texts: Texts) -> Outcome:
    """Writes the comments and says how many; what remains is what could not be silenced."""
    reason = " ".join((options.noqa_reason or "").split())
    added = 0
    remaining = []
    for result in outcome.results:
        source = texts.get(result.path)
        written = silence(options, result, source, reason) if source and result.findings else 0
        added += written
        remaining.append(replace(result, findings=()) if written else result)
    if not (options.silent or options.quiet):
        click.echo(f"Added {added} {'comment' if added == 1 else 'comments'}.", err=True)
    return replace(outcome, results=tuple(remaining))


def silence(options: Options, result: FileResult, source: Source, reason: str) -> int:
    """The number of comments that were written into one file."""
    codes: dict[int, set[str]] = {}
    for finding in result.findings:
        codes.setdefault(noqa_row(source, finding.row), set()).add(finding.code)
    edits = [ignore_edit(source, row, sorted(codes[row]), reason) for row in sorted(codes)]
    after = source.edited((edit.start, edit.end, edit.content) for edit in edits)
    # Comments stand at the ends of lines: rows are the same as before.
    left = suppress(after, result.findings)[0] if after is not None else result.findings
    if after is None or left:
        complain(
            "warning",
            f"{shown_path(result.path)}: row {source.place(left[0].row)} can hold no comment that"
            f" silences {left[0].code}; the file is unchanged",
            options.color,
        )
        return 0
    try:
        write_atomically(result.path, after.data)
    except OomlintError as error:
        complain("error", str(error), options.color)
        return 0
    return len(edits)
