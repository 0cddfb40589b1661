"""Options of the commands that run a script: how long, on what, and where results go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

# The profiles of the emulated device, which are not imported for a help text.
GPUS = (
    *("A10G", "A100", "A100-40GB", "H100", "H200", "L4", "L40S"),
    *("RTX3090", "RTX4090", "T4", "V100"),
)
UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}


class Size(click.ParamType):  # type: ignore[type-arg]
    """`4GiB`, `512M` or a number of bytes."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if match is None:
            self.fail(f"`{value}` is no size such as 4GiB, 512MiB or 1000000", param, ctx)
        return int(float(match[1]) * UNITS[match[2]])


# What `verify` and `measure` share: the options of a run, and that a script keeps its own.
PASSED_ON = {
    "help_option_names": ["-h", "--help"],
    "ignore_unknown_options": True,
    "allow_interspersed_args": False,
}
seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Random seed."
)
host_memory_option = click.option(
    "--memory-limit", type=Size(), help="Host memory that a run may take: 8GiB."
)
device_option = click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "emulated"]),
    default="auto",
    show_default=True,
    help="Where to measure; `auto` takes cuda where torch sees one.",
)
gpu_option = click.option(
    "--gpu",
    type=click.Choice(GPUS, case_sensitive=False),
    help="What the emulated device stands for, cuBLAS workspaces included.",
)
capacity_option = click.option(
    "--capacity", type=Size(), help="Memory of the emulated device: 24GiB."
)
writes_option = click.option(
    "--allow-writes",
    is_flag=True,
    help="Let the script write its files; else they go to a temporary folder.",
)
python_option = click.option(
    "--python", help="The interpreter that runs the script (default: this one)."
)
file_option = click.option(
    "-o", "--output-file", type=click.Path(path_type=Path), help="Write the JSON to a file."
)
force_option = click.option("-f", "--force", is_flag=True, help="Overwrite files of results.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
