"""Draws README.md's pictures, from what the commands really print and measure."""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text
from tools import beside_python

from oomlint.settings import SettingsFinder
from oomlint.verify import verify_file
from oomlint.verify.runner import Limits
from oomlint.verify.views.page import picture

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "check.svg"
CHARTS = ROOT / "docs" / "report.svg"
COMMAND = ("check", "train.py", "--select", "OOM101,OOM301")
COLUMNS = 108
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def printed(folder: Path) -> str:
    """What the command prints in a terminal with colours."""
    done = subprocess.run(
        [beside_python("oomlint"), "--color", "always", "--isolated", *COMMAND, "--no-cache"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": ""},
        capture_output=True,
        text=True,
    )
    if done.returncode != 1 or done.stderr:
        raise SystemExit(f"oomlint ended with {done.returncode}: {done.stderr}")
    return done.stdout


def drawn(output: str) -> str:
    """A terminal as SVG, the same for the same output; no font is fetched from anywhere."""
    console = Console(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
    )
    console.print(Text(f"$ oomlint {' '.join(COMMAND)}", style="bold"))
    console.print(Text.from_ansi(output.rstrip("\n")), soft_wrap=False)
    svg = console.export_svg(title="oomlint", unique_id="oomlint")
    svg = re.sub(r"\s*@font-face \{.*?\n    \}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", FONTS)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def charted(script: Path) -> str:
    """The memory of a script over time, before and after its one fix."""
    settings = SettingsFinder(isolated=True).for_file(script)
    (found,) = verify_file(script, settings, limits=Limits(device="emulated")).results
    assert found.comparison is not None
    return picture(found.comparison)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="replace the picture")
    asked = parser.parse_args()
    svg = drawn(printed(ROOT / "examples"))
    if asked.write:
        PICTURE.write_text(svg, encoding="utf-8")
        CHARTS.write_text(charted(ROOT / "examples" / "leak.py"), encoding="utf-8")
        return 0
    if PICTURE.read_text(encoding="utf-8") == svg:
        return 0
    print(f"{PICTURE} is outdated; run `python bench/pictures.py --write`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
