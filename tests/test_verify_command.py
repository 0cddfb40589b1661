"""`oomlint verify` as a user calls it: table, JSON, exit status, and its refusals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parent.parent
FIXTURE = ROOT / "fixtures" / "oom201_unscaled_accumulation" / "run.py"


def verify(*arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oomlint", "verify", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=cwd
    )


def test_a_piped_table_is_plain_and_names_every_measure() -> None:
    done = verify("--device", "emulated", "--steps", 3, FIXTURE.relative_to(ROOT))
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fixtures/oom201_unscaled_accumulation/run.py on the emulated CUDA")
    for row in (
        "device bytes, peak",
        "device bytes, growth a step",
        "autograd nodes alive",
        "autograd nodes, growth a step",
        "host memory",
        "gradient norm at the step",
        "parameter update norm",
    ):
        assert any(line.strip().startswith(row) for line in lines), row
    assert "run.py:24 OOM201 unscaled-accumulation: confirmed: the gradient norm falls 4 times" in (
        done.stdout
    )


def test_json_is_the_only_thing_on_stdout(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = FIXTURE.read_text().replace("    torch.manual_seed(2)", '    print("chatter")', 1)
    script.write_text(text)
    done = verify("--json", "--steps", 2, "--device", "emulated", "--together", script)
    document = json.loads(done.stdout)
    assert "chatter" in done.stderr
    assert (document["version"], document["limits"]["steps"]) == (1, 2)
    (result,) = document["results"]
    assert (result["verdict"], result["findings"][0]["code"]) == ("confirmed", "OOM201")
    assert result["before"]["device"] == "emulated"
    assert [len(result[run]["steps"]) for run in ("before", "after")] == [2, 2]
    assert done.returncode == 0


def test_a_file_gets_the_measurement_and_is_not_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    out.write_text("mine")
    done = verify("-o", out, FIXTURE)
    assert done.returncode == 2
    assert done.stderr == f"error: {out} exists; give --force to overwrite it\n"
    assert out.read_text() == "mine"


def test_a_script_that_cannot_run_is_not_measured_and_fails(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import no_such_package_here\n" + FIXTURE.read_text())
    done = verify(script)
    assert done.returncode == 1
    assert "not measured: before the fix the script needs the package no_such_package_here" in (
        done.stdout
    )
    assert verify("--exit-zero", script).returncode == 0


REFUSALS = {
    "missing file": (("nowhere.py",), "nowhere.py does not exist"),
    "folder": (("fixtures",), "fixtures is a folder; name a script"),
    "unknown rule": (("--only", "OOM999", FIXTURE), "there is no rule `OOM999`"),
    "no size": (("--memory-limit", "much", FIXTURE), "`much` is no size such as 4GiB"),
    "no cuda": (("--device", "cuda", FIXTURE), "no CUDA device is available"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_are_one_line(name: str) -> None:
    if name == "no cuda":
        torch = pytest.importorskip("torch")
        if torch.cuda.is_available():
            pytest.skip("this machine has CUDA")
    arguments, words = REFUSALS[name]
    done = verify(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_nothing_to_measure_is_said_and_is_no_failure(tmp_path: Path) -> None:
    script = tmp_path / "clean.py"
    script.write_text("print('never runs')\n")
    done = verify(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{script}: no findings, so there is nothing to measure\n"
    for chosen in (("--only", "OOM101"), ("--line", "1")):
        other = verify(*chosen, FIXTURE)
        assert (other.returncode, "nothing to measure" in other.stdout) == (0, True)


def test_a_rule_that_is_named_is_measured_even_if_it_is_off() -> None:
    script = ROOT / "fixtures" / "oom902_device_copy_after_creation" / "run.py"
    unasked = verify(script)
    assert "no findings" in unasked.stdout
    asked = verify("--only", "OOM902", script)
    assert "OOM902" in asked.stdout
    assert asked.returncode == 0, asked.stdout


TWO_KEEPERS = """
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)]).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
running_loss = 0.0
losses = []
for step in range(20):
    inputs = torch.randn(8, 16, device=device)
    optimizer.zero_grad()
    loss = model(inputs).pow(2).mean()
    loss.backward()
    optimizer.step()
    running_loss += loss
    losses.append(loss)
"""


def test_two_findings_that_keep_one_graph_do_not_hide_each_other(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TWO_KEEPERS)
    done = verify("--json", "--steps", 4, "--device", "emulated", script)
    results = json.loads(done.stdout)["results"]
    assert [result["verdict"] for result in results] == ["confirmed", "confirmed"]
    assert all("with the other fixes made" in result["reason"] for result in results)
