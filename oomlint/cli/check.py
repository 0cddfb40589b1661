"""`oomlint check`: options in, results out."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oomlint.cli import complain, global_options, wants_color
from oomlint.cli.options import (
    CheckCommand,
    Options,
    check_options,
    conflict,
    overrides,
    split_config,
)
from oomlint.cli.summary import Outcome, exit_code, summary_lines
from oomlint.errors import OomlintError
from oomlint.files import Found, find_files
from oomlint.keys import MACHINE_FORMATS, shown_path
from oomlint.reports.report import Report, Texts
from oomlint.settings import Settings, SettingsFinder

if TYPE_CHECKING:
    from oomlint.rule import Rule


@click.command(cls=CheckCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, metavar="[PATHS]...", type=click.Path())
@check_options
@global_options
@click.pass_context
def check(ctx: click.Context, /, paths: tuple[str, ...], **given: Any) -> int:
    """Check Python files, notebooks and folders (default: the current folder; `-` reads stdin)."""
    above = ctx.obj or {}
    given["config"] = (*above.get("config", ()), *given["config"])
    given["isolated"] = given["isolated"] or above.get("isolated", False)
    given["color"] = given["color"] or above.get("color")
    options = Options(paths, **given)
    clash = conflict(options)
    if clash is not None:
        raise OomlintError(clash)
    if options.watch:
        from oomlint.cli.watch import watch

        watch(options)
        return 0
    finder, settings = settings_of(options)
    if paths == ("-",) or (options.stdin_filename and not paths):
        from oomlint.cli.stdin import check_stdin

        outcome = check_stdin(options, finder, settings)
    else:
        outcome = check_tree(options, finder, settings)
    return exit_code(outcome, options, settings)


def settings_of(options: Options) -> tuple[SettingsFinder, Settings]:
    """What finds each file's settings, and those of the working folder. Raises OomlintError."""
    config, tables = split_config(options.config, options.isolated)
    finder = SettingsFinder(
        (*tables, overrides(options)), config, options.isolated, options.ignore_noqa
    )
    return finder, finder.for_folder(os.getcwd())


def check_tree(options: Options, finder: SettingsFinder, settings: Settings) -> Outcome:
    """Checks files and folders, fixes what is asked for, and prints the report."""
    from oomlint.tree import check_paths

    started = time.perf_counter()
    found = find_files(options.paths or (".",), finder)
    if options.show_files:
        write_lines(options, (path for path, _ in found.files), color=False)
        return Outcome()
    if options.show_settings and found.files:
        from oomlint.cli.shown import settings_lines

        write_lines(options, settings_lines(*found.files[0]), color=False)
        return Outcome()
    if not found.files:
        from oomlint.selection import select

        warn(options, select(settings).warnings)  # refuses unknown selectors all the same
        warn(options, ["No Python files found under the given path(s)"])
    progress = Meter(options)
    with progress:
        checked = check_paths(
            found.files,
            jobs=options.jobs,
            use_cache=not options.no_cache,
            progress=progress.update,
        )
    warn(options, checked.warnings)
    outcome = Outcome(checked.results)
    if options.changes_text:
        from oomlint.cli.fix import fix_tree

        outcome = fix_tree(options, settings, found, checked)
    verbose(options, found, checked.cached, time.perf_counter() - started, settings)
    if options.diff:
        return outcome
    texts = Texts()
    outcome = without_known(options, settings, outcome, texts, found.files)
    if options.add_noqa:
        from oomlint.cli.noqa import add_noqa

        outcome = add_noqa(options, outcome, texts)
    report(options, settings, outcome, texts)
    return outcome


def without_known(
    options: Options,
    settings: Settings,
    outcome: Outcome,
    texts: Texts,
    files: Iterable[tuple[str, Settings]],
) -> Outcome:
    """The outcome after `--baseline` and `--write-baseline`."""
    if settings.baseline is None and options.write_baseline is None:
        return outcome
    from oomlint.cli.baselines import against_baseline

    return against_baseline(options, settings, outcome, texts, files)


def verbose(
    options: Options, found: Found, cached: int, seconds: float, settings: Settings
) -> None:
    if not options.verbose:
        return
    source = shown_path(settings.source) if settings.source else "none"
    click.echo(f"settings file: {source}", err=True)
    click.echo(
        f"{len(found.files)} files, {cached} unchanged since the last run,"
        f" {found.excluded} left out, {seconds:.2f} s",
        err=True,
    )


def warn(options: Options, messages: Iterable[str]) -> None:
    for message in () if options.silent else messages:
        complain("warning", message, options.color)


def report(
    options: Options, settings: Settings, outcome: Outcome, texts: Texts, *, err: bool = False
) -> None:
    """Prints warnings about comments, then the findings in the chosen format and the summary."""
    for result in outcome.results:
        warn(options, (f"{shown_path(result.path)}:{text}" for text in result.warnings))
    if options.silent or (options.fix_only and not options.show_fixes):
        return
    to_file = options.output_file is not None
    is_machine = settings.output_format in MACHINE_FORMATS
    color = (
        not to_file
        and not is_machine
        and wants_color(options.color, sys.stderr if err else sys.stdout)
    )
    data = Report(
        outcome.results,
        texts,
        bool(settings.unsafe_fixes),
        color,
        root=source_root(os.getcwd()),
        rules=documented(settings),
    )
    lines: Iterable[str] = () if options.fix_only else body(options, settings, data)
    if not is_machine and not options.quiet:
        lines = [*lines, *summary_lines(outcome, options, data)]
    write_lines(options, lines, color, err)


def body(options: Options, settings: Settings, data: Report) -> Iterator[str]:
    chosen = settings.output_format
    if options.statistics:
        from oomlint.reports import statistics

        return statistics.render(data, chosen == "json")
    module = importlib.import_module(f"oomlint.reports.{chosen.replace('-', '_')}")
    lines: Iterator[str] = module.render(data)
    return lines


def documented(settings: Settings) -> tuple[type[Rule], ...]:
    """The rules that are on, for the one format that lists them: no other must import them."""
    if settings.output_format != "sarif":
        return ()
    from oomlint.selection import select

    return select(settings).rules


def source_root(folder: str) -> Path:
    """Where names in reports for CI start: GitLab's checkout, the repository, or `folder`."""
    checkout = os.environ.get("CI_PROJECT_DIR")
    if checkout and f"{folder}{os.sep}".startswith(f"{checkout.rstrip(os.sep)}{os.sep}"):
        return Path(checkout)
    above = (folder, *map(str, Path(folder).parents))
    return Path(next((top for top in above if os.path.exists(f"{top}/.git")), folder))


def write_lines(options: Options, lines: Iterable[str], color: bool, err: bool = False) -> None:
    """To stdout, or to the file that `--output-file` names. Raises OomlintError."""
    if options.output_file is None:
        for line in lines:
            click.echo(line.encode("utf-8", "replace").decode("utf-8"), err=err, color=color)
        return
    try:
        with open(options.output_file, "w", encoding="utf-8", errors="replace") as file:
            file.writelines(f"{line}\n" for line in lines)
    except OSError as error:
        raise OomlintError(
            f"--output-file {options.output_file}: cannot be written: {error.strerror}"
        ) from None


class Meter:
    """A progress bar on stderr, for long runs on a terminal only."""

    def __init__(self, options: Options, after_seconds: float = 0.5) -> None:
        self.active = sys.stderr.isatty() and not (options.quiet or options.silent)
        self.begins = time.perf_counter() + after_seconds
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> Meter:
        return self

    def update(self, done: int, total: int) -> None:
        if not self.active or time.perf_counter() < self.begins:
            return
        if self.bar is None:
            from rich.console import Console
            from rich.progress import Progress

            self.bar = Progress(console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task("checking", total=total)
            self.bar.start()
        self.bar.update(self.task, completed=done)

    def __exit__(self, *exception: object) -> None:
        if self.bar is not None:
            self.bar.stop()
