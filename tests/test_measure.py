"""`oomlint measure`: what a script held on the device, as a table and as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

# Sizes are whole blocks: 256 KiB a parameter, 1 MiB an input, 64 KiB a kept tensor.
SCRIPT = """
import sys
import torch

weight = torch.nn.Parameter(torch.zeros(256, 256, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
kept = []
for step in range(int(sys.argv[1])):
    batch = torch.zeros(1024, 256).cuda()
    (batch @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.zeros(128, 128, device="cuda"))
print("chatter")
"""
KIB = 1024


def measure(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oomlint", "measure", "--device", "emulated"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=cwd,
    )


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def measured(*arguments: object, cwd: Path) -> dict[str, Any]:
    done = measure("--output-format", "json", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_what_is_alive_at_the_peak_by_kind_and_by_line(script: Path) -> None:
    found = measured("train.py", 5, cwd=script.parent)
    held = found["run"]["holdings"]
    kinds = {share["name"]: share["size"] // KIB for share in held["kinds"]}
    # In the last step: four kept tensors, and batch, product and its gradient of 1 MiB each.
    assert kinds["parameter"] == 256
    assert kinds["optimizer state"] == 256
    assert kinds["input"] == 1024
    assert sum(share["size"] for share in held["kinds"]) == held["requested_peak"]
    lines = {share["name"]: share["size"] // KIB for share in held["lines"]}
    assert (lines["train.py:5"], lines["train.py:9"], lines["train.py:13"]) == (256, 1024, 256)
    assert sum(lines.values()) == held["requested_peak"] // KIB
    assert held["step"] == 4
    assert held["line"].startswith("train.py:1")
    assert found["run"]["summary"]["growth"] == 64 * KIB


def test_it_runs_to_its_own_end_unless_told(script: Path) -> None:
    whole = measured("train.py", 9, cwd=script.parent)
    assert (whole["run"]["ending"]["kind"], len(whole["run"]["steps"])) == ("finished", 9)
    part = measured("--steps", 3, "train.py", 9, cwd=script.parent)
    assert (part["run"]["ending"]["kind"], len(part["run"]["steps"])) == ("stopped", 3)


def test_the_table_says_it_all_and_the_script_may_speak(script: Path) -> None:
    done = measure("--gpu", "H100", "train.py", 5, cwd=script.parent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0] == "chatter"
    assert lines[1].startswith("train.py 5 on the emulated CUDA device as H100 with 79.18 GiB")
    for words in ("requested bytes, peak", "reserved bytes, peak", "growth a step", "host memory"):
        assert any(line.startswith(words) for line in lines), words
    (growth,) = (line for line in lines if line.startswith("growth a step"))
    assert growth.endswith("64.00 KiB")
    assert any(line.startswith("workspace ") and "64.00 MiB" in line for line in lines)
    assert lines[-1] == "Confidence: high"


def test_a_script_without_memory_enough_fails_and_says_where(script: Path) -> None:
    done = measure("--capacity", "3MiB", "train.py", 5, cwd=script.parent)
    assert done.returncode == 1
    assert "raises OutOfMemoryError: CUDA out of memory." in done.stdout
    assert "out-of-memory errors" in done.stdout


def test_refusals_are_one_line(tmp_path: Path) -> None:
    done = measure("nowhere.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: nowhere.py does not exist\n"
    (tmp_path / "out.json").write_text("mine")
    (tmp_path / "train.py").write_text("print()\n")
    done = measure("-o", "out.json", "train.py", cwd=tmp_path)
    assert done.stderr == "error: out.json exists; give --force to overwrite it\n"
    done = measure("--fits", "1GiB", "--html", "page.html", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `--html` is the page of one run; leave out `--fits`\n"
