"""What the emulated device costs: time and memory of training on it and on the plain CPU.

Both sides run the same models of 10 million parameters at batch 32, one process after the other in
turn. Time is the processor's, of the median step; memory is the largest resident size of a process,
torch included. `--write` keeps the table in docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
MARK = "<!-- overhead -->"
LIMITS = {"time": 3.0, "memory": 1.3}
MODELS = ("MLP", "transformer", "convolutions")
PROGRAM = """
import json, resource, sys, time
kind, side, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
if side == "emulated":
    from oomlint.verify import emulation
    from oomlint.verify.profiles import PROFILES
    emulation.install(profile=PROFILES["H100"])
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
device = "cuda" if side == "emulated" else "cpu"

def convolution(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

if kind == "MLP":
    model = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 3072), nn.ReLU(),
                          nn.Linear(3072, 704), nn.ReLU(), nn.Linear(704, 10))
    make = lambda: torch.randn(32, 784, device=device)
elif kind == "transformer":
    layer = nn.TransformerEncoderLayer(384, 6, 1536, 0.1, "gelu", batch_first=True)
    model = nn.Sequential(nn.Linear(64, 384), nn.TransformerEncoder(layer, 6), nn.Flatten(),
                          nn.Linear(384 * 32, 10))
    make = lambda: torch.randn(32, 32, 64, device=device)
else:
    parts = [convolution(3, 64), convolution(64, 128, 2), convolution(128, 256, 2)]
    parts += [convolution(256, 512, 2), convolution(512, 512), convolution(512, 512)]
    parts += [convolution(512, 864)]
    model = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(864, 10))
    make = lambda: torch.randn(32, 3, 32, 32, device=device)
model = model.to(device)
optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
took = []
for _ in range(steps):
    begin = time.process_time()
    loss = nn.functional.cross_entropy(model(make()), torch.zeros(32, dtype=int, device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    took.append(time.process_time() - begin)
took = sorted(took[2:])
print(json.dumps({
    "parameters": sum(p.numel() for p in model.parameters()),
    "time": took[len(took) // 2],
    "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
}))
"""


def run(kind: str, side: str, steps: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, kind, side, str(steps)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=ROOT,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-800:])
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def compare(kind: str, rounds: int, steps: int) -> dict[str, tuple[float, float]]:
    """The medians of both sides by measure."""
    sides: dict[str, list[dict[str, float]]] = {"plain": [], "emulated": []}
    for _ in range(rounds):
        for side, found in sides.items():
            found.append(run(kind, side, steps))
    return {
        name: (
            median(found[name] for found in sides["plain"]),
            median(found[name] for found in sides["emulated"]),
        )
        for name in ("parameters", *LIMITS)
    }


def row(kind: str, found: dict[str, tuple[float, float]]) -> str:
    (parameters, _), time, memory = found["parameters"], found["time"], found["memory"]
    return (
        f"| {kind} | {parameters / 1e6:.1f} M | {time[0] * 1e3:.0f} | {time[1] * 1e3:.0f} "
        f"| {time[1] / time[0]:.2f} | {memory[0] / 2**20:.0f} | {memory[1] / 2**20:.0f} "
        f"| {memory[1] / memory[0]:.2f} |"
    )


def section(rows: list[str]) -> str:
    lines = [
        MARK,
        "## What the emulated device costs",
        "",
        "Made by `python bench/overhead.py --write`: training steps with AdamW at batch 32 on one",
        "processor core, on the plain CPU and on the emulated device in turn. Aimed at: at most",
        f"{LIMITS['time']:g} times the time and {LIMITS['memory']:g} times the resident memory.",
        "",
        "| model | size | CPU, ms | emulated, ms | times | CPU, MiB | emulated, MiB | times |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
        *rows,
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--write", action="store_true", help="keep the table in docs/accuracy.md")
    given = parser.parse_args()
    found = {kind: compare(kind, given.rounds, given.steps) for kind in MODELS}
    rows = [row(kind, measures) for kind, measures in found.items()]
    print("\n".join(rows))
    if given.write:
        kept = re.split(re.escape(MARK), PAGE.read_text("utf-8"))[0].rstrip()
        PAGE.write_text(f"{kept}\n\n{section(rows)}", "utf-8")
    over = [
        kind
        for kind, measures in found.items()
        if any(measures[name][1] > limit * measures[name][0] for name, limit in LIMITS.items())
    ]
    return int(bool(over))


if __name__ == "__main__":
    raise SystemExit(main())
