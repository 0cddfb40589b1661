"""`oomlint verify`: runs a script before and after each fix and reports what was measured."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from oomlint.cli import global_options, wants_color
from oomlint.cli.runs import (
    PASSED_ON,
    capacity_option,
    device_option,
    file_option,
    force_option,
    gpu_option,
    host_memory_option,
    python_option,
    quiet_option,
    seed_option,
    writes_option,
)
from oomlint.cli.written import html_option, refuse_to_overwrite, write_file, write_page
from oomlint.errors import OomlintError
from oomlint.settings import Layer


@click.command(context_settings=PASSED_ON)
@click.argument("target", required=False, metavar="FILE[::FUNCTION]")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as `python -m` does.")
@click.option(
    "--harness",
    metavar="MODULE:NAME",
    help="The function that returns the arguments of FUNCTION: pkg.module:name or file.py:name.",
)
@click.option(
    "--of",
    "measured",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Measure the findings of this file, which the script or module imports.",
)
@click.option("--steps", type=click.IntRange(1), default=6, show_default=True, help="Steps a run.")
@seed_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds that a run may take.",
)
@host_memory_option
@click.option(
    "--only", multiple=True, metavar="CODE", help="Measure the findings of these rules only."
)
@click.option(
    "--line",
    "lines",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Measure the findings that start on this line only.",
)
@click.option(
    "--each/--together",
    default=True,
    help="Measure every fix by itself (default), or all of them at once.",
)
@device_option
@click.option(
    "--ranks",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    help="Processes that run the script together, as under torchrun.",
)
@gpu_option
@capacity_option
@writes_option
@python_option
@click.option("--json", "as_json", is_flag=True, help="Print the measurement as JSON.")
@file_option
@html_option
@force_option
@click.option("-e", "--exit-zero", is_flag=True, help="Exit with 0 whatever the verdicts.")
@quiet_option
@click.option("-v", "--verbose", is_flag=True, help="Say off a terminal, too, what is being run.")
@global_options
@click.pass_context
def verify(
    ctx: click.Context, /, target: str | None, arguments: tuple[str, ...], **given: Any
) -> int:
    """Measure what the fixes of training code change.

    Runs FILE with ARGS, a MODULE with ARGS or one FUNCTION of FILE before and after each fix, in
    child processes on the same seeds, for a few steps each. Options of oomlint come before FILE.
    Exits with 1 unless every fix is confirmed.
    """
    from oomlint.verify import verify_file
    from oomlint.verify.runner import Limits
    from oomlint.verify.verdict import CONFIRMED

    asked = asked_for(target, arguments, given)
    settings = settings_of(ctx, asked.file, given)
    chosen = target_of(asked, settings)
    output, as_json = given["output_file"], given["as_json"]
    refuse_to_overwrite((output, given["html"]), given["force"])
    limits = Limits(
        steps=given["steps"],
        seed=given["seed"],
        timeout=given["timeout"],
        memory=given["memory_limit"],
        device=given["device"],
        capacity=given["capacity"],
        gpu=given["gpu"],
        writes=given["allow_writes"],
        python=given["python"] or sys.executable,
        ranks=given["ranks"],
    )
    only = codes(given["only"])
    # Who names a rule wants it measured, whether the settings select it or not.
    named = Layer("--only", extend_select=only)
    settings = replace(settings, layers=(*settings.layers, named))
    with progress(given["quiet"], given["verbose"]) as watch:
        report = verify_file(
            asked.file,
            settings,
            target=chosen,
            limits=limits,
            only=only,
            lines=given["lines"],
            together=not given["each"],
            quiet_stdout=as_json,
            watch=watch,
        )
    write(report, output, as_json, given["color"] or (ctx.obj or {}).get("color"))
    if given["html"] is not None:
        from oomlint.verify.views.page import report_page

        write_page(given["html"], lambda: report_page(report))
    failed = any(result.verdict.kind != CONFIRMED for result in report.results)
    return int(failed and not given["exit_zero"])


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line names; `file` is the one whose findings are measured."""

    file: Path
    main: Path
    arguments: tuple[str, ...]
    module: str
    function: str
    harness: str


def asked_for(target: str | None, arguments: tuple[str, ...], given: dict[str, Any]) -> Asked:
    from oomlint.keys import HARNESS
    from oomlint.verify.targets import find_module

    module, harness = given["module"] or "", given["harness"] or ""
    if module:
        function = ""
        arguments = (target, *arguments) if target is not None else arguments
        main = Path(os.path.relpath(find_module(module)))
    elif target is None:
        raise OomlintError("name a script, FILE::FUNCTION or -m MODULE")
    else:
        name, mark, function = target.partition("::")
        if mark and not all(part.isidentifier() for part in function.split(".")):
            raise OomlintError(f"`{target}` names no function; write FILE::FUNCTION")
        main = Path(name)
    if harness and not function:
        raise OomlintError("--harness gives the arguments of a function; name it: FILE::FUNCTION")
    if harness and not HARNESS.fullmatch(harness):
        raise OomlintError(
            f"`{harness}` names no harness; write package.module:function or file.py:function"
        )
    if given["measured"] and function:
        raise OomlintError("--of belongs to a script or module; FILE::FUNCTION measures FILE")
    for file in dict.fromkeys((main, given["measured"] or main)):
        refuse_no_script(file)
    return Asked(given["measured"] or main, main, arguments, module, function, harness)


def refuse_no_script(file: Path) -> None:
    if file.suffix == ".ipynb":
        raise OomlintError(f"{file}: notebooks cannot be run by verify; export it as a script")
    if not file.is_file():
        what = "is a folder; name a script" if file.is_dir() else "does not exist"
        raise OomlintError(f"{file} {what}")


def target_of(asked: Asked, settings: Any) -> Any:
    from oomlint.verify import targets

    if asked.function:
        text = text_of(asked.main)
        harness, folder = asked.harness, os.getcwd()
        if not harness and settings.harness:
            harness, folder = settings.harness, settings.harness_folder
        found = targets.function(asked.main, asked.function, text, asked.arguments, harness)
        return replace(found, folder=folder)
    if asked.module:
        found = targets.module(asked.module, asked.arguments)
    else:
        found = targets.script(asked.main, asked.arguments)
    return replace(found, file=str(asked.file.resolve()))


def text_of(file: Path) -> str:
    from oomlint.source import Unreadable, read

    try:
        text = read(file).text
        ast.parse(text)
    except Unreadable as error:
        raise OomlintError(f"{file}: {error}") from None
    except SyntaxError as error:
        raise OomlintError(f"{file}:{error.lineno}: {error.msg}") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{file}: cannot be read: {reason}") from None
    return text


def settings_of(ctx: click.Context, file: Path, given: dict[str, Any]) -> Any:
    from oomlint.cli.options import split_config
    from oomlint.settings import SettingsFinder

    above = ctx.obj or {}
    isolated = given["isolated"] or above.get("isolated", False)
    config, tables = split_config((*above.get("config", ()), *given["config"]), isolated)
    return SettingsFinder(tuple(tables), config, isolated).for_file(file)


def codes(values: tuple[str, ...]) -> tuple[str, ...]:
    from oomlint.registry import find_rule

    names = [part.strip() for value in values for part in value.split(",") if part.strip()]
    return tuple(find_rule(name).code for name in names)


SLOW = 1.0  # seconds after which a line says what is being run


@contextlib.contextmanager
def progress(quiet: bool, verbose: bool = False) -> Iterator[Callable[[str], None] | None]:
    """A line on a terminal that says what is being run, once it takes longer than a moment.

    Elsewhere a line a run, if asked for.
    Whoever ends this process with SIGTERM or by closing the terminal ends the children, too.
    """
    with ended_by_signals():
        if not quiet and verbose and not sys.stderr.isatty():
            yield lambda what: click.echo(f"oomlint: running {what}", err=True)
            return
        if quiet or not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
        shown = Progress(*columns, console=Console(stderr=True), transient=True)
        task = shown.add_task("starting")
        waiting = threading.Timer(SLOW, shown.start)
        waiting.daemon = True
        waiting.start()
        try:
            yield lambda what: shown.update(task, description=f"running {what}")
        finally:
            waiting.cancel()
            waiting.join()
            shown.stop()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turns signals that would end the process at once into one that lets it clean up."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def write(report: Any, output: Path | None, as_json: bool, choice: str | None) -> None:
    from oomlint.verify.document import document
    from oomlint.verify.table import draw

    body = json.dumps(document(report), indent=2) if as_json or output is not None else ""
    if output is not None:
        write_file(output, body + "\n")
    if as_json:
        if output is None:
            click.echo(body)
        return
    if not report.results:
        where = f"{report.path}::{name}" if (name := report.target.function) else report.path
        click.echo(f"{where}: no findings, so there is nothing to measure")
        return
    terminal = sys.stdout.isatty()
    color = wants_color(choice, sys.stdout)
    width = shutil.get_terminal_size().columns
    click.echo(draw(report, terminal=terminal, color=color, width=width), nl=False, color=color)
    if output is not None:
        click.echo(f"The whole measurement is in {output}.", err=True)
