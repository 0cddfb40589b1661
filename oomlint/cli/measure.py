"""`oomlint measure`: runs a script once and reports what it held on the device."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from oomlint.cli import global_options, wants_color
from oomlint.cli.runs import (
    GPUS,
    PASSED_ON,
    Size,
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
from oomlint.cli.snapshot import SUFFIXES, show_snapshot
from oomlint.cli.verify import progress
from oomlint.cli.written import html_option, refuse_to_overwrite, write_file, write_page
from oomlint.errors import OomlintError

FITTING_STEPS = 3


@dataclass(frozen=True, slots=True)
class Memory:
    """What a batch is to fit: bytes, and the GPU that has them if one was named."""

    memory: int
    gpu: str | None = None


class Room(click.ParamType):  # type: ignore[type-arg]
    """`24GiB`, a number of bytes, or a GPU."""

    name = "size|gpu"

    def convert(self, value: Any, param: Any, ctx: Any) -> Memory:
        if isinstance(value, Memory):
            return value
        named = next((gpu for gpu in GPUS if gpu.lower() == str(value).lower()), None)
        if named is not None:
            from oomlint.verify.profiles import PROFILES

            return Memory(PROFILES[named].memory, named)
        try:
            return Memory(Size().convert(value, param, ctx))
        except click.BadParameter:
            gpus = ", ".join(GPUS)
            self.fail(f"`{value}` is neither a size such as 24GiB nor one of {gpus}", param, ctx)


@click.command(context_settings=PASSED_ON)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.option(
    "--steps",
    type=click.IntRange(1),
    help="Stop after so many optimizer steps (with --fits: 3).",
)
@seed_option
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds that a run may take.",
)
@host_memory_option
@device_option
@gpu_option
@capacity_option
@click.option(
    "--fits",
    type=Room(),
    help="Find the largest batch for this memory, 24GiB, or this GPU, RTX4090.",
)
@click.option(
    "--batch-argument",
    metavar="NAME",
    help="With --fits: the argument, or the number in the script, that is the batch size.",
)
@click.option(
    "--want",
    type=click.IntRange(1),
    metavar="BATCH",
    help="With --fits: a batch that should fit; what could make it fit is run.",
)
@click.option(
    "--budget",
    is_flag=True,
    help="Compare what was held with the textbook's formula, part by part.",
)
@click.option(
    "--shapes-only",
    is_flag=True,
    help="Run without values, for models larger than this machine's memory.",
)
@click.option(
    "--assume",
    type=float,
    metavar="NUMBER",
    help="With --shapes-only: what a number is that the script reads from a tensor.",
)
@writes_option
@python_option
@click.option(
    "--output-format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How the measurement is written.",
)
@file_option
@html_option
@force_option
@quiet_option
@global_options
@click.pass_context
def measure(ctx: click.Context, /, file: Path, arguments: tuple[str, ...], **given: Any) -> int:
    """Measure what a training script holds on the device.

    Runs FILE with ARGS once, to its own end, in a child process. Options of oomlint come before
    FILE. Exits with 1 where the script does not come to a good end, or the batch does not fit. A
    FILE.pickle is read as a recording of torch.cuda.memory, and nothing is run.
    """
    from oomlint.verify.measure import Gauge

    check_script(file)
    check_options(given)
    output, as_json = given["output_file"], given["output_format"] == "json"
    refuse_to_overwrite((output, given["html"]), given["force"])
    if file.suffix in SUFFIXES:
        if given["budget"]:
            raise OomlintError(f"{file} does not tell what `--budget` asks; name a script")
        return show_snapshot(file, given, given["color"] or (ctx.obj or {}).get("color"))
    color = wants_color(given["color"] or (ctx.obj or {}).get("color"), sys.stdout)
    with progress(given["quiet"]) as watch:
        gauge = Gauge(file, arguments, limits_of(given), as_json, watch)
        if given["fits"] is not None:
            found, good = fitted(gauge, given)
        else:
            found, good = measured(gauge, given)
    if as_json or output is not None:
        write_json(found.document(), output, as_json)
    if not as_json:
        terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns
        click.echo(found.draw(terminal, color, width), nl=False, color=color)
    if given["html"] is not None:
        from oomlint.verify.views.page import measure_page

        write_page(given["html"], lambda: measure_page(found.result))
    return int(not good)


@dataclass(frozen=True, slots=True)
class Shown:
    """A result with what makes JSON of it and what draws it."""

    result: Any
    to_document: Callable[[Any], dict[str, Any]]
    to_text: Callable[..., str]

    def document(self) -> dict[str, Any]:
        return self.to_document(self.result)

    def draw(self, terminal: bool, color: bool, width: int) -> str:
        return self.to_text(self.result, terminal=terminal, color=color, width=width)


def measured(gauge: Any, given: dict[str, Any]) -> tuple[Shown, bool]:
    from oomlint.verify.document import measure_document
    from oomlint.verify.measure_table import draw
    from oomlint.verify.record import FINISHED, STOPPED

    found = gauge.measure(gauge.path.name, probe_of(given))
    return Shown(found, measure_document, draw), found.run.ending.kind in (FINISHED, STOPPED)


def fitted(gauge: Any, given: dict[str, Any]) -> tuple[Shown, bool]:
    from oomlint.verify.fit_table import Found, document, draw
    from oomlint.verify.fitting import Fitter
    from oomlint.verify.trying import Trier

    fitter = Fitter(gauge, given["fits"].memory, given["batch_argument"], given["assume"])
    fit = fitter.fit()
    batch = given["want"] or fit.knob.value or 0
    wanted = Trier(fitter, fit, batch).run() if batch > fit.largest else None
    good = batch <= fit.largest and fit.largest > 0
    return Shown(Found(fit, wanted), document, draw), good


def check_options(given: dict[str, Any]) -> None:
    """Raises OomlintError where two options exclude each other or one needs another."""
    fits, shapes = given["fits"] is not None, given["shapes_only"]
    if given["assume"] is not None and not (shapes or fits):
        raise OomlintError("`--assume` says what numbers are with `--shapes-only`; give both")
    for name in ("batch_argument", "want"):
        if given[name] is not None and not fits:
            option = "--" + name.replace("_", "-")
            raise OomlintError(f"`{option}` goes with `--fits`; give both")
    for option, on in (("--shapes-only", shapes), ("--fits", fits)):
        if on and given["device"] == "cuda":
            raise OomlintError(f"`{option}` runs on the emulated device; leave out `--device cuda`")
    if fits and given["capacity"] is not None:
        raise OomlintError("`--fits` names the capacity; leave out `--capacity`")
    if fits and given["budget"]:
        raise OomlintError("`--budget` is about one run; leave out `--fits`")
    if fits and given["html"] is not None:
        raise OomlintError("`--html` is the page of one run; leave out `--fits`")


def check_script(file: Path) -> None:
    if file.suffix == ".ipynb":
        raise OomlintError(f"{file}: notebooks cannot be run by measure; export it as a script")
    if not file.is_file():
        what = "is a folder; name a script" if file.is_dir() else "does not exist"
        raise OomlintError(f"{file} {what}")


def probe_of(given: dict[str, Any]) -> Any:
    from oomlint.verify.probe import Probe

    return Probe(stock=given["budget"], shapes=given["shapes_only"], assumed=given["assume"])


def limits_of(given: dict[str, Any]) -> Any:
    from oomlint.verify.measure import TO_THE_END
    from oomlint.verify.runner import Limits

    room = given["fits"]
    emulated = given["shapes_only"] or room is not None
    return Limits(
        steps=given["steps"] or (TO_THE_END if room is None else FITTING_STEPS),
        seed=given["seed"],
        timeout=given["timeout"],
        memory=given["memory_limit"],
        device="emulated" if emulated else given["device"],
        capacity=given["capacity"],
        gpu=given["gpu"] or (room.gpu if room is not None else None),
        writes=given["allow_writes"],
        python=given["python"] or sys.executable,
    )


def write_json(values: dict[str, Any], output: Path | None, as_json: bool) -> None:
    body = json.dumps(values, indent=2)
    if output is None:
        click.echo(body)
        return
    write_file(output, body + "\n")
    if not as_json:
        click.echo(f"The whole measurement is in {output}.", err=True)
