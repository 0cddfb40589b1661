"""Holds the emulated device's memory against that of torch's own CUDA build, by program.

The other side is a python with the CUDA build of torch on a driver whose kernels do nothing: its
dispatcher, autograd and allocator are the real ones. `--write` keeps docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from accuracy_kinds import MORE
from accuracy_programs import PROGRAMS, Program
from accuracy_scripts import SCRIPTS, Script

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
HOME = Path(os.environ.get("ORACLE_HOME", "~/.cache/oomlint-oracle")).expanduser()
GPU = "H100"
EMULATED = f"""
from oomlint.verify import emulation
from oomlint.verify.profiles import PROFILES
emulation.install(profile=PROFILES["{GPU}"])
"""
# Largest errors, as shares of what the CUDA build says; the last one is of the differences.
LIMITS = {"requested": 0.005, "allocated": 0.02, "reserved": 0.05}
PAIR_LIMIT = 0.01
WORKERS = 2
OVERHEAD = "<!-- overhead -->"  # where the table of bench/overhead.py begins
INTRODUCTION = f"""\
# How close the emulated device comes

Made by `python bench/accuracy.py --write`. Each program prints the peaks of its last two steps from
`torch.cuda.memory_stats()`. It runs on the emulated device as an {GPU}, with its values computed on
the CPU, and on the CUDA build of torch 2.13 over a driver that only counts: that build's
dispatcher, autograd and caching allocator are the real ones, its kernels compute nothing. cuDNN is
off on both sides: the sizes of its workspaces are not modelled, nor are those of custom kernels.
What cuDNN takes lowers the confidence that `oomlint measure` states. The driver's values are zeros
or leftovers, so that no program here lets values decide what it takes.

The errors are shares of what the CUDA build says. Aimed at: requested bytes within
{LIMITS["requested"]:.1%}, allocated within {LIMITS["allocated"]:.0%}, reserved within
{LIMITS["reserved"]:.0%}, and {PAIR_LIMIT:.0%} of the difference that a change makes; **bold** is
what misses it. Where the optimizer's step makes the peak, as AdamW's does with small batches, a
change of the activations moves nothing on either side.

| program | requested, MiB | error | allocated, MiB | error | reserved, MiB | error |
|---|--:|--:|--:|--:|--:|--:|"""


@dataclass(frozen=True, slots=True)
class Row:
    """Peaks in bytes by measure, as CUDA's build and as the emulated device gives them."""

    program: Program | Script
    real: dict[str, int]
    emulated: dict[str, int]

    def error(self, measure: str) -> float:
        return self.emulated[measure] / self.real[measure] - 1


def run(program: Program | Script, python: str, prelude: str) -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "program.py"
        script.write_text(prelude + program.source(), "utf-8")
        done = subprocess.run(
            [python, "-W", "ignore", script, *program.arguments()],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC": "0"},
        )
    for line in done.stdout.splitlines():
        if line.startswith("MEMORY "):
            found = json.loads(line.removeprefix("MEMORY "))
            assert isinstance(found, dict)
            return found
    raise SystemExit(f"{program.name} on {python}: {done.stderr[-800:]}")


def truth(program: Program | Script, ghost: str, known: Path | None) -> dict[str, int]:
    """What the CUDA build says; of a program that has not changed, what it said before."""
    text = "\n".join((program.source(), *program.arguments()))
    kept = known and known / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if kept and kept.exists():
        found = json.loads(kept.read_text("utf-8"))
        assert isinstance(found, dict)
        return found
    found = run(program, ghost, "")
    if kept:
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(found), "utf-8")
    return found


def measure(programs: list[Program | Script], ghost: str, known: Path | None) -> list[Row]:
    def one(program: Program | Script) -> Row:
        row = Row(program, truth(program, ghost, known), run(program, sys.executable, EMULATED))
        errors = "  ".join(f"{name} {row.error(name):+.3%}" for name in LIMITS)
        print(f"{program.name:36} {errors}  {json.dumps([row.real, row.emulated])}", flush=True)
        return row

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(one, programs))


def pairs(rows: list[Row]) -> list[tuple[Row, Row, float]]:
    """Programs with the one that they mend, and the error of the difference in requested bytes."""
    named = {row.program.name: row for row in rows}
    found = []
    for row in rows:
        before = named.get(row.program.than or "")
        if before is None:
            continue
        true = row.real["requested"] - before.real["requested"]
        ours = row.emulated["requested"] - before.emulated["requested"]
        found.append((before, row, share(ours, true)))
    return found


def share(ours: int, true: int) -> float:
    """The error as a share of the true value; of nothing, any error is infinite."""
    if ours == true:
        return 0.0
    return ours / true - 1 if true else float("inf")


def mib(size: int) -> str:
    return f"{size / 2**20:,.2f}"


def page(rows: list[Row]) -> str:
    lines = [INTRODUCTION]
    for row in rows:
        cells = [row.program.name]
        for name, limit in LIMITS.items():
            cells += [mib(row.real[name]), marked(row.error(name), limit)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| change | requested bytes by CUDA, MiB | emulated | error |",
        "|---|--:|--:|--:|",
    ]
    for before, after, error in pairs(rows):
        change = f"{before.program.name} → {after.program.name}"
        true = after.real["requested"] - before.real["requested"]
        ours = after.emulated["requested"] - before.emulated["requested"]
        lines.append(f"| {change} | {mib(true)} | {mib(ours)} | {marked(error, PAIR_LIMIT)} |")
    lines += ["", f"All {len(rows)} programs ran on {datetime.date.today().isoformat()}."]
    return "\n".join(lines) + "\n"


def marked(error: float, limit: float) -> str:
    text = f"{error:+.2%}" if math.isfinite(error) else "CUDA shows none"
    return text if abs(error) <= limit else f"**{text}**"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="programs whose name contains this")
    parser.add_argument("--write", action="store_true", help="keep docs/accuracy.md")
    parser.add_argument("--reuse", action="store_true", help="what the CUDA build said before")
    parser.add_argument("--ghost", default=str(HOME / "ghost"), help="python of the CUDA build")
    given = parser.parse_args()
    every = (*PROGRAMS, *SCRIPTS, *MORE)
    chosen = [one for one in every if given.only is None or given.only in one.name]
    rows = measure(chosen, given.ghost, HOME / "accuracy" if given.reuse else None)
    if given.write:
        _, mark, rest = PAGE.read_text("utf-8").partition(OVERHEAD)
        PAGE.write_text(page(rows) + (f"\n{mark}{rest}" if mark else ""), "utf-8")
    missed = [row for row in rows if any(abs(row.error(n)) > limit for n, limit in LIMITS.items())]
    wrong = [pair for pair in pairs(rows) if abs(pair[2]) > PAIR_LIMIT]
    for before, after, error in pairs(rows):
        print(f"{before.program.name} -> {after.program.name}: {error:+.2%}")
    print(f"{len(rows) - len(missed)} of {len(rows)} programs, {len(wrong)} differences missed")
    return int(bool(missed or wrong))


if __name__ == "__main__":
    raise SystemExit(main())
