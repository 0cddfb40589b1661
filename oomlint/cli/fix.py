"""What `--fix`, `--fix-only` and `--diff` do to a tree: workers compute, this process writes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import click

from oomlint.cli import complain, wants_color
from oomlint.cli.options import Options
from oomlint.cli.summary import Outcome, counted
from oomlint.errors import OomlintError
from oomlint.files import Found
from oomlint.fixer import FixedFile, is_applicable, write_atomically
from oomlint.keys import shown_path
from oomlint.linter import FileResult
from oomlint.reports.diff import unified
from oomlint.rule import Finding
from oomlint.settings import Settings
from oomlint.source import Source
from oomlint.tree import TreeResult, check_paths, fix_paths

# A fix in one file can make a fix in another possible, or needless.
MAX_ROUNDS = 10


def fix_tree(options: Options, settings: Settings, found: Found, checked: TreeResult) -> Outcome:
    """Fixes all files with applicable fixes; with `--diff`, only shows what that would change."""
    unsafe = bool(settings.unsafe_fixes)
    owners = dict(found.files)
    if options.diff:
        return show_diffs(options, unsafe, fixable(checked.results, owners, unsafe), checked)
    results = {result.path: result for result in checked.results}
    fixed: dict[Path, list[Finding]] = {}
    refused: set[tuple[Path, str, str]] = set()
    for _ in range(MAX_ROUNDS):
        wanted = fixable(results.values(), owners, unsafe, refused)
        if not wanted:
            break
        changed = write_all(options, fix_paths(wanted, unsafe, options.jobs), fixed, refused)
        if not changed:
            break
        again = affected(results.values(), changed, owners)
        # The cache holds what was true before; the texts have just changed under it.
        after = check_paths(again, jobs=options.jobs, use_cache=False)
        for path, _ in again:
            results.pop(Path(path), None)
        results.update({result.path: result for result in after.results})
    ordered = tuple(results[path] for path in sorted(results, key=str))
    return Outcome(ordered, tuple((path, tuple(fixed[path])) for path in sorted(fixed, key=str)))


def fixable(
    results: Iterable[FileResult],
    owners: dict[str, Settings],
    unsafe: bool,
    refused: Collection[tuple[Path, str, str]] = (),
) -> list[tuple[str, Settings]]:
    """The files in which at least one fix may be applied that was not refused before."""
    return [
        (str(result.path), owners[str(result.path)])
        for result in results
        if any(
            is_applicable(finding.fix, unsafe)
            and (result.path, finding.code, finding.message) not in refused
            for finding in result.findings
        )
    ]


def affected(
    results: Iterable[FileResult], changed: set[Path], owners: dict[str, Settings]
) -> list[tuple[str, Settings]]:
    """The changed files and those whose result rested on one of them."""
    paths = {str(path) for path in changed}
    for result in results:
        if result.depends_on_callers or changed & set(result.dependencies):
            paths.add(str(result.path))
    return [(path, owners[path]) for path in sorted(paths)]


def write_all(
    options: Options,
    files: Iterable[tuple[str, FixedFile | str]],
    fixed: dict[Path, list[Finding]],
    refused: set[tuple[Path, str, str]],
) -> set[Path]:
    """Writes what changed, after every text was computed from the same state of the project."""
    changed = set()
    for path, outcome in sorted(files, key=lambda item: item[0]):
        if isinstance(outcome, str):
            complain("warning", f"{shown_path(Path(path))}: {outcome}", options.color)
            continue
        for refusal in outcome.fixed.refusals:
            complain("warning", f"{shown_path(Path(path))}: {refusal}", options.color)
        refused |= {(Path(path), f.code, f.message) for f in outcome.fixed.refused}
        if outcome.fixed.text == outcome.source.text:
            continue
        try:
            write_atomically(Path(path), outcome.fixed.source.data)
        except OomlintError as error:
            complain("error", str(error), options.color)
            continue
        changed.add(Path(path))
        fixed.setdefault(Path(path), []).extend(outcome.fixed.applied)
    return changed


def show_diffs(
    options: Options, unsafe: bool, wanted: list[tuple[str, Settings]], checked: TreeResult
) -> Outcome:
    """Diffs on stdout, the count on stderr."""
    applied = held_back = 0
    differs = False
    for path, outcome in sorted(fix_paths(wanted, unsafe, options.jobs), key=lambda item: item[0]):
        if isinstance(outcome, str):
            complain("warning", f"{shown_path(Path(path))}: {outcome}", options.color)
            continue
        applied += len(outcome.fixed.applied)
        held_back += len(outcome.fixed.held_back)
        label = shown_path(Path(path))
        differs |= print_diff(options, label, outcome.source, outcome.fixed.source)
    fixed_paths = {path for path, _ in wanted}
    held_back += sum(
        finding.fix is not None
        for result in checked.results
        if str(result.path) not in fixed_paths
        for finding in result.findings
    )
    say_would_fix(options, applied, held_back)
    return Outcome(
        tuple(replace(result, findings=()) for result in checked.results), differs=differs
    )


def print_diff(options: Options, label: str, before: Source, after: Source) -> bool:
    """Prints what differs, cell by cell in a notebook, and tells whether anything does."""
    color = wants_color(options.color, sys.stdout)
    colors = {"+": "green", "-": "red", "@": "cyan"}
    differs = before.text != after.text
    for line in differences(label, before, after):
        if options.silent:
            break
        text = line.encode("utf-8", "replace").decode("utf-8")
        shown = click.style(text, fg=colors.get(line[0])) if color else text
        click.echo(shown, nl=False, color=color)
    return differs


def differences(label: str, before: Source, after: Source) -> Iterator[str]:
    if before.notebook is None or after.notebook is None:
        yield from unified(label, before.written, after.written)
        return
    cells = dict(after.notebook.written_cells())
    for number, text in before.notebook.written_cells():
        yield from unified(f"{label}:cell {number}", text, cells[number])


def say_would_fix(options: Options, applied: int, held_back: int) -> None:
    if options.silent or options.quiet:
        return
    more = f" ({held_back} more with `--unsafe-fixes`)" if held_back else ""
    if applied or held_back:
        click.echo(f"Would fix {counted(applied, 'problem')}{more}.", err=True)
