"""`--baseline` and `--write-baseline`: hides what was known, says what is gone, writes anew."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click

from oomlint.baseline import Known, compare, current, judged, parse, render, under_old_names
from oomlint.cli.options import Options
from oomlint.cli.summary import Outcome, counted
from oomlint.errors import OomlintError
from oomlint.fixer import write_atomically
from oomlint.keys import shown_path
from oomlint.reports.report import Texts
from oomlint.selection import select
from oomlint.settings import Settings

# So many entries that are gone are listed.
MOST_LISTED = 10


def against_baseline(
    options: Options,
    settings: Settings,
    outcome: Outcome,
    texts: Texts,
    files: Iterable[tuple[str, Settings]],
) -> Outcome:
    """The outcome without what is known; `files` are all that were checked."""
    writes = options.write_baseline
    path = Path(os.path.abspath(writes)) if writes else settings.baseline
    if path is None:
        return outcome
    found = current(outcome.results, path.parent, texts.get)
    before = () if writes and not path.exists() else read(path)

    def is_there(name: str) -> bool:
        return (path.parent / name).exists()

    by_name = found
    if not writes:
        by_name = under_old_names(outcome.results, found, before, is_there, texts.get)
    compared = compare(outcome.results, by_name, before)
    gone = judged(compared.unmatched, path.parent, asked(files, outcome), Path.exists)
    if writes:
        kept = set(compared.unmatched) - set(gone)
        now = [known for entries in found.values() for known in entries]
        write(options, path, [*now, *kept], len(now))
        compared = compare(outcome.results, found, now)
    else:
        say_stale(options, path, gone)
    return replace(outcome, results=compared.results, known=compared.hidden)


def asked(files: Iterable[tuple[str, Settings]], outcome: Outcome) -> dict[str, set[str]]:
    """The codes that could be found in each file; none where a problem hid what is there."""
    hidden = {str(result.path) for result in outcome.results if result.problem}
    return {
        path: set()
        if path in hidden
        else {rule.code for rule in select(settings).rules_for(path, settings)}
        for path, settings in files
    }


def read(path: Path) -> tuple[Known, ...]:
    shown = shown_path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise OomlintError(
            f"{shown}: there is no such baseline; write it with `--write-baseline {shown}`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not valid UTF-8"
        raise OomlintError(f"{shown}: the baseline cannot be read: {reason}") from None
    return parse(text, shown)


def write(options: Options, path: Path, entries: list[Known], found: int) -> None:
    data = render(entries).encode()
    try:
        if path.exists():
            write_atomically(path, data)
        else:
            path.write_bytes(data)
    except OSError as error:
        raise OomlintError(f"{shown_path(path)}: cannot be written: {error.strerror}") from None
    if options.silent or options.quiet:
        return
    others = len(entries) - found
    kept = f" and kept {others} that this run did not look at" if others else ""
    click.echo(f"Wrote {counted(found, 'finding')} to {shown_path(path)}{kept}.", err=True)


def say_stale(options: Options, path: Path, gone: tuple[Known, ...]) -> None:
    """Names the entries that no finding matches any more."""
    if not gone or options.silent:
        return
    from oomlint.cli import complain

    shown = shown_path(path)
    number = "1 entry matches" if len(gone) == 1 else f"{len(gone)} entries match"
    complain(
        "warning",
        f"{shown}: {number} no finding any more; remove with `--write-baseline {shown}`",
        options.color,
    )
    for known in gone[:MOST_LISTED]:
        click.echo(
            f"  {shown_path(path.parent / known.path)}: {known.code} {known.message}", err=True
        )
    if len(gone) > MOST_LISTED:
        click.echo(f"  and {len(gone) - MOST_LISTED} more", err=True)
