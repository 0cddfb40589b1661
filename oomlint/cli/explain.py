"""`oomlint explain`: what the model made of one line, and what each rule has to say about it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomlint.cli import global_options, wants_color
from oomlint.cli.options import split_config
from oomlint.errors import OomlintError
from oomlint.keys import shown_path
from oomlint.settings import Settings, SettingsFinder

if TYPE_CHECKING:
    from oomlint.analysis import Model
    from oomlint.analysis.explanation import Explanation
    from oomlint.rule import Finding, Rule
    from oomlint.source import Source


@dataclass(frozen=True, slots=True)
class Found:
    """A finding that is about the line; `silenced` says by what it is not reported."""

    row: int
    column: int
    message: str
    # Whether it starts there, or only an event of its path lies there.
    starts_here: bool
    silenced: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What a rule has to say about a line, and if nothing: why."""

    code: str
    name: str
    # Why the rule is off; empty where it is on.
    off: str
    # Groups of words of which the file holds none; empty where the gate is open.
    missing: tuple[tuple[str, ...], ...]
    found: tuple[Found, ...]
    failed: str = ""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("place", metavar="FILE:LINE")
@click.option("--rule", "wanted", multiple=True, metavar="CODE|NAME", help="Only these rules.")
@click.option(
    "--output-format", type=click.Choice(["text", "json"]), default="text", show_default=True
)
@global_options
@click.pass_context
def explain(
    ctx: click.Context, /, place: str, wanted: tuple[str, ...], output_format: str, **given: Any
) -> int:
    """Explain a line: what oomlint takes it for, how it is reached, why a rule is silent there.

    Made for bug reports: it says of every part of the line what it is taken for and how that is
    known, from where the line was followed, what happens before and after it, and of every rule
    whether it was asked. Exits with 0, or with 2 where there is nothing to explain.
    """
    above = ctx.obj or {}
    isolated = given["isolated"] or above.get("isolated", False)
    config, tables = split_config((*above.get("config", ()), *given["config"]), isolated)
    name, cell, row = parsed(place)
    source = source_of(name)
    row = row_in(source, cell, row)
    settings = SettingsFinder(tables, config, isolated).for_file(source.path)
    explanation, standings = answers(source, settings, row, wanted)
    shown = shown_path(source.path)
    notes = tuple(notes_on(source, settings))
    if output_format == "json":
        document = {
            "filename": str(source.path),
            **asdict(explanation),
            "rules": [asdict(standing) for standing in standings],
            "notes": notes,
        }
        click.echo(json.dumps(document, indent=2))
        return 0
    from oomlint.cli import explained

    color = wants_color(given["color"] or above.get("color"), sys.stdout)
    for line in explained.render(shown, explanation, standings, notes, bool(wanted)):
        click.echo(line.encode("utf-8", "replace").decode("utf-8"), color=color)
    return 0


def parsed(place: str) -> tuple[str, int, int]:
    """`train.py:42`, or `train.py:42:7` as findings are printed. Raises OomlintError.

    In a notebook `train.ipynb:cell 3:2`; the cell is 0 where none is named.
    """
    in_cell = re.fullmatch(r"(.+):cell (\d+):(\d+)(?::\d+)?", place)
    if in_cell:
        return in_cell[1], int(in_cell[2]), int(in_cell[3])
    name, _, number = place.rpartition(":")
    head, _, middle = name.rpartition(":")
    if head and middle.isdigit() and number.isdigit():
        name, number = head, middle
    if not name or not number.isdigit():
        raise OomlintError(f"`{place}` is not of the form FILE:LINE, as in `train.py:42`")
    return name, 0, int(number)


def row_in(source: Source, cell: int, row: int) -> int:
    """The row of the text that a row of a cell is. Raises OomlintError."""
    shown = shown_path(source.path)
    if source.notebook is None:
        if cell:
            raise OomlintError(f"{shown} is no notebook; name a line as in `{shown}:{row}`")
        return row
    if not cell:
        raise OomlintError(f"{shown} is a notebook; name a cell as in `{shown}:cell 1:{row}`")
    for found in source.notebook.cells:
        if found.number == cell:
            last = source.rows_around(found.row)[1]
            if not 1 <= row <= last - found.row + 1:
                raise OomlintError(f"{shown}:cell {cell}: there is no line {row}")
            return found.row + row - 1
    raise OomlintError(f"{shown}: cell {cell} is no Python, or there is no such cell")


def source_of(name: str) -> Source:
    from oomlint.source import Unreadable, read

    path = Path(os.path.abspath(name))
    try:
        return read(path)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{name}: cannot be read: {reason}") from None
    except Unreadable as error:
        raise OomlintError(f"{name}: {error}") from None


def answers(
    source: Source, settings: Settings, row: int, wanted: Iterable[str]
) -> tuple[Explanation, tuple[Standing, ...]]:
    """The explanation of a row and the standings of the wanted rules, of all if none is wanted."""
    from oomlint import registry
    from oomlint.analysis import SyntaxProblem, analyse
    from oomlint.analysis.explanation import explain as explanation_of

    shown = shown_path(source.path)
    rules = tuple(dict.fromkeys(registry.find_rule(text) for text in wanted))
    rows = len(source.line_starts)
    if not 1 <= row <= rows:
        raise OomlintError(f"{shown} has {rows} lines; there is no line {row}")
    try:
        model = analyse(source, settings.root, settings.torch_version, settings.effects)
        explanation = explanation_of(model, row)
    except SyntaxProblem as error:
        at = source.place(error.row)
        raise OomlintError(f"{shown}:{at}: is no Python: {error.message}") from None
    except RecursionError:
        raise OomlintError(f"{shown}: holds an expression that is nested too deeply") from None
    if explanation is None:
        where = next_row(model, row)
        raise OomlintError(f"{shown}:{source.place(row)}: no statement stands on this line{where}")
    return explanation, tuple(
        standings(model, settings, rules or registry.all_rules(), explanation)
    )


def next_row(model: Model, row: int) -> str:
    from ast import stmt, walk

    below = [n.lineno for n in walk(model.module.tree) if isinstance(n, stmt) and n.lineno > row]
    if not below:
        return ""
    place = model.source.place(min(below))
    return f"; the next one stands on {'line ' if place.cell is None else ''}{place}"


def standings(
    model: Model, settings: Settings, rules: Iterable[type[Rule]], line: Explanation
) -> Iterator[Standing]:
    from oomlint.gate import missing_words, uses_taught

    data = model.source.text.encode("utf-8", "replace")
    opens_all = uses_taught(data, settings.taught_words)
    for rule in rules:
        missing = () if opens_all else missing_words(rule, data)
        off = why_off(rule, model.source.path, settings)
        found: tuple[Found, ...] = ()
        failed = ""
        if not missing:
            try:
                findings = findings_of(rule, model, settings)
            except Exception as error:
                failed = f"{type(error).__name__}: {error}"
            else:
                found = tuple(about(model.source, findings, line, off))
        yield Standing(rule.code, rule.name, off, missing, found, failed)


def findings_of(rule: type[Rule], model: Model, settings: Settings) -> list[Finding]:
    """What a rule finds; one about comments is asked after all the others that are on."""
    from oomlint.linter import check_source

    if not rule.of_comments:
        return list(dict.fromkeys(rule().check(model)))
    result = check_source(model.source, settings)
    return [finding for finding in result.findings if finding.code == rule.code]


def about(
    source: Source, findings: Iterable[Finding], line: Explanation, off: str
) -> Iterator[Found]:
    """The findings that start on the rows of the line, or whose path leads over them."""
    for finding in findings:
        starts_here = line.row <= finding.row <= line.end_row
        passes = any(
            not point.filename and line.row <= point.row <= line.end_row for point in finding.path
        )
        if starts_here or passes:
            silenced = off or silencing_comment(source, finding)
            yield Found(finding.row, finding.column, finding.message, starts_here, silenced)


def why_off(rule: type[Rule], path: Path, settings: Settings) -> str:
    from oomlint.selection import select

    selection = select(settings)
    if rule not in selection.rules:
        if rule.preview and not settings.preview:
            return "in preview, which is not enabled"
        return "not selected" if not rule.default else "ignored, or not selected, by the settings"
    for item, codes in zip(settings.per_file_ignores, selection.ignored, strict=True):
        if rule.code in codes and item.applies(str(path)):
            sign = "!" if item.negated else ""
            return f"per-file-ignores for `{sign}{item.pattern.glob}` ({item.origin})"
    return ""


def silencing_comment(source: Source, finding: Finding) -> str:
    from oomlint.suppressions import read_suppressions

    found = read_suppressions(source)
    if not found.silences(finding):
        return ""
    rows = {finding.row, found.moved.get(finding.row, finding.row)}
    for row in sorted(rows & found.rows.keys()):
        if any(s is None or finding.code in s or finding.name in s for s in found.rows[row]):
            return f"a comment for line {row}"
    return "a comment for the whole file"


def notes_on(source: Source, settings: Settings) -> Iterator[str]:
    path = source.path
    if source.notebook:
        starts = ", ".join(f"cell {c.number} from {c.row}" for c in source.notebook.cells)
        yield f"lines are counted over all cells: {starts}"
    pattern = next((item for item in settings.exclude if item.covers(str(path))), None)
    if pattern is not None:
        yield f"`oomlint check` leaves this file out of folders: `exclude` holds `{pattern.glob}`"
