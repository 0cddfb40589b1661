"""`measure --fits`: the largest batch, predicted from small runs and confirmed by others."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema")
pytest.importorskip("torch")

from record_schema import VALIDATOR, undescribed

MIB = 1024**2
SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=4)
given = parser.parse_args()
weight = torch.nn.Parameter(torch.zeros(256, 256, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(5):
    batch = torch.zeros(given.batch_size, 1024, 256, device="cuda")
    loss = (batch @ weight).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOADED = """
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.zeros(6, 1024, 256)), batch_size=2, shuffle=True)
weight = torch.nn.Parameter(torch.zeros(256, 256, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for epoch in range(2):
    for batch, in loader:
        loss = (batch.cuda() @ weight).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() > 1:
            break
"""


def fits(tmp_path: Path, text: str, *arguments: str) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, "-m", "oomlint", "measure", "--output-format", "json"]
    done = subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
    )
    assert done.stdout, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    VALIDATOR.validate(found)
    assert not list(undescribed(found, VALIDATOR.schema))
    return dict(found)


def possible(found: dict[str, Any], capacity: int) -> float:
    """The batch for which the requested bytes alone would fill the capacity."""
    first, last = found["runs"][0], found["runs"][-1]
    least, most = (one["holdings"]["requested_peak"] for one in (first, last))
    rise = most - least
    slope = rise / (last["batch"] - first["batch"])
    return float(first["batch"] + (capacity - least) / slope)


def test_the_largest_batch_fits_and_one_more_does_not(tmp_path: Path) -> None:
    found = fits(tmp_path, SCRIPT, "--fits", "200MiB", "--gpu", "A100", "train.py")
    assert found["batch"] == {"kind": "argument", "name": "--batch-size", "own": 4}
    assert found["confirmed"]
    trials = {trial["batch"]: trial for trial in found["trials"]}
    largest = found["largest"]
    assert 0.85 * possible(found, 200 * MIB) <= largest <= possible(found, 200 * MIB)
    assert (trials[largest]["fits"], trials[largest + 1]["fits"]) == (True, False)
    # What the model said of it is what the run then held.
    predicted = found["predicted"]
    assert predicted["requested"] == trials[largest]["holdings"]["requested_peak"]
    assert predicted["reserved"] == trials[largest]["holdings"]["reserved_peak"] <= 200 * MIB


def test_a_loader_is_changed_where_nothing_else_is_and_its_data_repeated(tmp_path: Path) -> None:
    found = fits(tmp_path, LOADED, "--fits", "120MiB", "train.py")
    assert found["batch"] == {"kind": "loader", "name": "batch_size", "own": 2}
    assert any("train.py:14 needs a number" in sentence for sentence in found["sentences"])
    assert found["confirmed"]
    assert 0.85 * possible(found, 120 * MIB) <= found["largest"] <= possible(found, 120 * MIB)


def test_nothing_to_change_is_said(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.replace("given.batch_size,", "4,"))
    command = [sys.executable, "-m", "oomlint", "measure", "--fits", "1GiB", "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: --batch-size changes nothing that train.py holds")
