"""Proves on a real GPU, in five minutes, what is otherwise measured on the emulated device.

Verifies every rule's fixture with `--device cuda`; the programs of `accuracy_programs.py` run
on the GPU and on the emulated device as that GPU. The dated record goes to results/. With
`--device emulated` the same script runs dry, without a GPU: it shows that the script works, proves
nothing about a GPU, and keeps no record.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import accuracy
from accuracy import LIMITS, Row, marked, mib, run
from accuracy_programs import PROGRAMS, Program
from proofs import RESULTS, Proof, pairs, prove

from oomlint.registry import all_rules
from oomlint.verify.profiles import PROFILES
from oomlint.verify.verdict import CONFIRMED

SECONDS = 280.0
NO_RECORD = "No GPU record exists yet: no GPU was at hand when oomlint was made."
ASK = """
import torch
if torch.cuda.is_available():
    free, total = torch.cuda.mem_get_info()
    print(torch.cuda.get_device_name(), total, torch.__version__, torch.version.cuda, sep="\\t")
"""
Given = TypeVar("Given")
Made = TypeVar("Made")


def gpu() -> list[str] | None:
    """Name, bytes, torch's version and CUDA's; None without a GPU."""
    asked = [sys.executable, "-W", "ignore", "-c", ASK]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.rstrip("\n").split("\t") if done.stdout.strip() else None


def in_time(
    work: Callable[[Given], Made], all_of: Iterable[Given], end: float, jobs: int
) -> list[Made | None]:
    """What `work` makes of each; None for those whose turn comes after `end`."""

    def one(given: Given) -> Made | None:
        return work(given) if time.monotonic() < end else None

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, all_of))


def prelude(profile: str) -> str:
    return accuracy.EMULATED.replace(f'"{accuracy.GPU}"', f'"{profile}"')


def compare(program: Program, device: str, profile: str) -> Row:
    """The program on the GPU, or where it runs dry on the emulated device, and as emulated."""
    emulated = run(program, sys.executable, prelude(profile))
    real = run(program, sys.executable, "") if device == "cuda" else emulated
    return Row(program, real, emulated)


def report(head: list[str], proofs: list[Proof | None], rows: list[Row | None]) -> str:
    done = [proof for proof in proofs if proof is not None]
    confirmed = sum(proof.verdict == CONFIRMED for proof in done)
    lines = [
        *head,
        "",
        f"{confirmed} of {len(proofs)} pairs confirmed, "
        f"{len(proofs) - len(done)} not reached in time.",
        "",
        "| rule | repair | verdict | measured |",
        "|---|---|---|---|",
        *(f"| {p.rule} | {p.repaired} | {p.verdict} | {p.measured} |" for p in done),
        "",
        f"{len(rows) - rows.count(None)} of {len(rows)} programs reached in time; errors of the "
        "emulated device as shares of what the GPU says, **bold** beyond the limit.",
        "",
        "| program | requested, MiB | error | allocated, MiB | error | reserved, MiB | error |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        if row is None:
            continue
        cells = [row.program.name]
        for name, limit in LIMITS.items():
            cells += [mib(row.real[name]), marked(row.error(name), limit)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "emulated"])
    parser.add_argument("--rules", default="OOM", metavar="OOM1,OOM301", help="only these")
    parser.add_argument("--programs", default="", help="only those whose name contains this")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="what is later is left out")
    given = parser.parse_args()
    found = gpu()
    if given.device == "cuda" and found is None:
        print(f"no GPU is here; try --device emulated. {NO_RECORD}", file=sys.stderr)
        return 2
    name, *facts = found if given.device == "cuda" and found else ["the emulated device, dry"]
    profile = next((key for key, one in PROFILES.items() if one.name == name), accuracy.GPU)
    # On a GPU the processes share its memory; without one they share the processors.
    jobs = max(1, min(6, (os.cpu_count() or 2) // 2))
    wanted = tuple(given.rules.split(","))
    begin = time.monotonic()
    scripts = [
        (rule, *pair)
        for rule in all_rules()
        if rule.__module__.startswith("oomlint.rules.") and rule.code.startswith(wanted)
        for pair in pairs(rule)
    ]
    chosen = [one for one in PROGRAMS if given.programs in one.name]
    rows = in_time(
        lambda one: compare(one, given.device, profile), chosen, begin + given.seconds / 2, jobs
    )
    proofs = in_time(lambda one: prove(*one, given.device), scripts, begin + given.seconds, jobs)
    today = datetime.date.today().isoformat()
    head = [f"# Proofs on {name}, {today}", "", " ".join([f"As profile {profile}.", *facts])]
    if given.device == "emulated":
        head.append(f"A dry run: the programs' two sides are one and the same. {NO_RECORD}")
    text = report(head, proofs, rows)
    print(text)
    if given.device == "cuda":
        target: Path = RESULTS / f"gpu-{profile}-{today}.md"
        target.write_text(text, "utf-8")
        print(f"written to {target}")
    right = all(proof is not None and proof.verdict == CONFIRMED for proof in proofs)
    near = all(
        row is not None and all(abs(row.error(n)) <= limit for n, limit in LIMITS.items())
        for row in rows
    )
    return int(not (right and near))


if __name__ == "__main__":
    raise SystemExit(main())
