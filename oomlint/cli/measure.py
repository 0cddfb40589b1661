"""`oomlint measure`: runs a script once and reports what it held on the device."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from oomlint.cli import global_options, wants_color
from oomlint.cli.snapshot import SUFFIXES, show_snapshot
from oomlint.cli.verify import GPUS, Size, progress
from oomlint.cli.written import html_option, refuse_to_overwrite, write_file, write_page
from oomlint.errors import OomlintError


@click.command(
    context_settings={
        "help_option_names": ["-h", "--help"],
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
    }
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.option("--steps", type=click.IntRange(1), help="Stop after so many optimizer steps.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds that a run may take.",
)
@click.option("--memory-limit", type=Size(), help="Host memory that a run may take: 8GiB.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "emulated"]),
    default="auto",
    show_default=True,
    help="Where to measure; `auto` takes cuda where torch sees one.",
)
@click.option(
    "--gpu",
    type=click.Choice(GPUS, case_sensitive=False),
    help="What the emulated device stands for, cuBLAS workspaces included.",
)
@click.option("--capacity", type=Size(), help="Memory of the emulated device: 24GiB.")
@click.option(
    "--allow-writes",
    is_flag=True,
    help="Let the script write its files; else they go to a temporary folder.",
)
@click.option("--python", help="The interpreter that runs the script (default: this one).")
@click.option(
    "--output-format",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How the measurement is written.",
)
@click.option(
    "-o", "--output-file", type=click.Path(path_type=Path), help="Write the JSON to a file."
)
@html_option
@click.option("-f", "--force", is_flag=True, help="Overwrite files of results.")
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
@global_options
@click.pass_context
def measure(ctx: click.Context, /, file: Path, arguments: tuple[str, ...], **given: Any) -> int:
    """Measure what a training script holds on the device.

    Runs FILE with ARGS once, to its own end, in a child process. Options of oomlint come before
    FILE. Exits with 1 where the script does not come to a good end. A FILE.pickle is read as a
    recording of torch.cuda.memory, and nothing is run.
    """
    from oomlint.verify.document import measure_document
    from oomlint.verify.measure import Gauge
    from oomlint.verify.measure_table import draw

    check_script(file)
    output, as_json = given["output_file"], given["output_format"] == "json"
    refuse_to_overwrite((output, given["html"]), given["force"])
    if file.suffix in SUFFIXES:
        return show_snapshot(file, given, given["color"] or (ctx.obj or {}).get("color"))
    with progress(given["quiet"]) as watch:
        gauge = Gauge(file, arguments, limits_of(given), as_json, watch)
        found = gauge.measure(file.name)
    color = wants_color(given["color"] or (ctx.obj or {}).get("color"), sys.stdout)
    if as_json or output is not None:
        write_json(measure_document(found), output, as_json)
    if not as_json:
        terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns
        click.echo(draw(found, terminal=terminal, color=color, width=width), nl=False, color=color)
    if given["html"] is not None:
        from oomlint.verify.views.page import measure_page

        write_page(given["html"], lambda: measure_page(found))
    return int(not found.run.measured and found.run.ending.kind != "finished")


def check_script(file: Path) -> None:
    if file.suffix == ".ipynb":
        raise OomlintError(f"{file}: notebooks cannot be run by measure; export it as a script")
    if not file.is_file():
        what = "is a folder; name a script" if file.is_dir() else "does not exist"
        raise OomlintError(f"{file} {what}")


def limits_of(given: dict[str, Any]) -> Any:
    from oomlint.verify.measure import TO_THE_END
    from oomlint.verify.runner import Limits

    return Limits(
        steps=given["steps"] or TO_THE_END,
        seed=given["seed"],
        timeout=given["timeout"],
        memory=given["memory_limit"],
        device=given["device"],
        capacity=given["capacity"],
        gpu=given["gpu"],
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
