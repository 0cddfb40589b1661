"""Holds oomlint's allocator model against torch's own compiled one, and records what that answers.

The oracle is a program that links torch's libc10_cuda over a CUDA runtime that only counts, reads
the operations of `allocator_traffic` and prints the allocator's own statistics.
"""

from __future__ import annotations

import argparse
import lzma
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from allocator_traffic import SETTINGS, Setting, play, traffic

HOME = Path(os.environ.get("ORACLE_HOME", "~/.cache/oomlint-oracle")).expanduser()
TRACES = Path(__file__).resolve().parents[1] / "tests" / "allocator_traces.txt.xz"
CHUNK = 2500  # operations of one process


def ask(setting: Setting, operations: list[str], program: Path) -> list[str]:
    """What torch's allocator answers."""
    environment = {**os.environ, "PYTORCH_CUDA_ALLOC_CONF": setting.options}
    environment["TORCH_CUDA_EXPANDABLE_SEGMENTS_IPC"] = "0"
    done = subprocess.run(
        [program, str(setting.capacity), "0", "1"],
        input="\n".join(operations),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{program} ends with {done.returncode}: {done.stderr[-400:]}")
    return answers(done.stdout)


def answers(text: str) -> list[str]:
    """The lines that the model gives too, segments sorted and without addresses."""
    found: list[str] = []
    rows: list[str] = []
    for line in text.splitlines():
        if line.startswith("seg "):
            line = re.sub(r"addr=\S+ ", "", line).replace("stream=(nil)", "stream=0")
            rows.append(re.sub(r"stream=0x(\w+)", lambda m: f"stream={int(m[1], 16)}", line))
            continue
        found += sorted(rows)
        rows = []
        if line.startswith(("p ", "OOM ")):
            found.append(line)
        elif line.startswith("   CUDA"):
            found.append(line.strip())
    return found + sorted(rows)


def difference(setting: Setting, operations: list[str], program: Path) -> str | None:
    """The first answer that is not the oracle's."""
    ours, theirs = play(setting, operations), ask(setting, operations, program)
    for place, (own, other) in enumerate(zip(ours, theirs, strict=False)):
        if own != other:
            return f"answer {place}\n  model  {own}\n  oracle {other}"
    return None if len(ours) == len(theirs) else f"{len(ours)} answers, the oracle {len(theirs)}"


def compare(total: int, seed: int, program: Path, only: str | None) -> int:
    chosen = [setting for setting in SETTINGS if only is None or setting.name == only]
    rounds = -(-total // (CHUNK * len(chosen)))
    wrong, started = 0, time.monotonic()
    for setting in chosen:
        bad = 0
        for number in range(rounds):
            found = difference(setting, traffic(setting, CHUNK, seed + number), program)
            if found is not None:
                bad += 1
                if bad == 1:
                    print(f"{setting.name}, seed {seed + number}: {found}")
        wrong += bad
        print(f"{setting.name:30} {rounds * CHUNK:>9,} operations, {bad} of {rounds} runs differ")
    spent = time.monotonic() - started
    print(
        f"{rounds * CHUNK * len(chosen):,} operations over {len(chosen)} settings in {spent:.0f} s"
    )
    return int(wrong > 0)


def record(program: Path, operations: int = 700) -> None:
    """Writes the operations and the oracle's answers, which CI replays without the oracle."""
    lines = []
    for setting in SETTINGS:
        asked = traffic(setting, operations, seed=2026, every=15)
        told = ask(setting, asked, program)
        lines += [f"# {setting.name}", *asked, "=", *told]
    TRACES.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TRACES}: {TRACES.stat().st_size:,} bytes, {len(SETTINGS)} settings")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="the name of one setting")
    parser.add_argument("--record", action="store_true", help="write the traces of the tests")
    parser.add_argument("--program", type=Path, default=HOME / "allocator")
    given = parser.parse_args()
    if not given.program.exists():
        print(f"{given.program} does not exist; set ORACLE_HOME", file=sys.stderr)
        return 2
    if given.record:
        record(given.program)
        return 0
    return compare(given.operations, given.seed, given.program, given.only)


if __name__ == "__main__":
    raise SystemExit(main())
