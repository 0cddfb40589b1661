"""What `measure --fits` tries: each remedy changes what the script holds, or nothing."""

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

from oomlint.verify import remedies
from oomlint.verify.fitting import Fitter
from oomlint.verify.measure import Gauge, Measurement
from oomlint.verify.probe import Probe
from oomlint.verify.runner import Limits
from oomlint.verify.trying import written_out

SCRIPT = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))

    def forward(self, x):
        return x + self.inner(x)

model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(6):
    optimizer.zero_grad()
    model(torch.randn(2048, 64, device="cuda")).square().mean().backward()
    optimizer.step()
"""


def run(folder: Path, *parts: str, every: int = 1) -> Measurement:
    path = folder / "train.py"
    path.write_text(SCRIPT)
    gauge = Gauge(path, (), Limits(steps=2, device="emulated", timeout=200))
    return gauge.measure("", Probe(remedies=parts, every=every, shapes=True))


def test_each_remedy_shows_in_what_is_held(tmp_path: Path) -> None:
    plain = run(tmp_path).held
    kinds = {share.name: share.size for share in plain.kinds}
    parameters = kinds["parameter"]
    for part, least in ((remedies.CHECKPOINT, 0.5), (remedies.AUTOCAST, 0.8)):
        found = run(tmp_path, part)
        assert found.run.notes is not None
        assert found.run.notes.changed
        assert found.held.requested_peak < least * plain.requested_peak
    sgd = run(tmp_path, remedies.SGD)
    assert plain.requested_peak - sgd.held.requested_peak == pytest.approx(2 * parameters, rel=0.01)
    untouched = run(tmp_path, remedies.NONE_GRADIENTS)
    assert untouched.run.notes is not None
    assert not untouched.run.notes.changed
    assert untouched.held.requested_peak == plain.requested_peak


def test_micro_batches_add_up_to_one_step(tmp_path: Path) -> None:
    found = run(tmp_path, every=2)
    assert found.run.notes is not None
    assert found.run.notes.changed == 4  # attempts of the optimizer, of which two were steps
    assert len(found.run.steps) == 2


# Every remedy has something to change here, and 12 MiB hold half of the batch only.
EVERYTHING = """
import torch
from torch import nn

BATCH_SIZE = 32

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))

    def forward(self, x):
        y, _ = self.attention(x, x, x)
        return x + self.inner(x + y)

model = nn.Sequential(*[Block() for _ in range(2)]).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad(set_to_none=False)
    model(torch.randn(BATCH_SIZE, 64, 64, device="cuda")).square().mean().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the command says of each change, by its title."""
    folder = tmp_path_factory.mktemp("remedies")
    (folder / "train.py").write_text(EVERYTHING)
    command = [sys.executable, "-m", "oomlint", "measure", "--fits", "12MiB", "--steps", "2"]
    done = subprocess.run(
        [*command, "--output-format", "json", "train.py"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
        cwd=folder,
    )
    assert (done.returncode, done.stderr) == (1, "")  # the script's own batch does not fit
    found = json.loads(done.stdout)
    VALIDATOR.validate(found)
    assert not list(undescribed(found, VALIDATOR.schema))
    assert found["wanted"]["batch"] == 32
    plain = {"title": "as it is", "fits": False, **found["wanted"]["needs"]}
    return {one["title"]: one for one in (plain, *found["wanted"]["tried"])}


# The share of the requested bytes that is left with each change.
LEFT = {
    remedies.AUTOCAST: (0.5, 0.9),
    remedies.CHECKPOINT: (0.3, 0.8),
    remedies.ATTENTION: (0.5, 0.95),
    remedies.NONE_GRADIENTS: (0.9, 0.999),
    remedies.SINGLE_TENSOR: (0.9, 1.0),
    remedies.SGD: (0.9, 0.999),
}


@pytest.mark.parametrize("name", LEFT)
def test_each_row_of_the_table_is_what_a_run_held(
    tried: dict[str, dict[str, Any]], name: str
) -> None:
    (remedy,) = (one for one in remedies.REMEDIES if one.name == name)
    row, plain = tried[remedy.title], tried["as it is"]
    least, most = LEFT[name]
    assert row["reason"] == ""
    assert least <= row["requested"] / plain["requested"] <= most
    assert row["requested"] <= row["reserved"]
    assert row["fits"] is False or row["requested"] <= 12 * 1024**2
    assert row["numbers"] == remedy.numbers


def test_micro_batches_are_the_largest_that_divide_the_batch_and_fit(
    tried: dict[str, dict[str, Any]],
) -> None:
    (row,) = (one for title, one in tried.items() if title.startswith("micro-batches"))
    assert row["title"] == "micro-batches of 16 added up over 2"
    assert row["fits"]
    assert 0.4 < row["requested"] / tried["as it is"]["requested"] < 0.6


def test_attention_that_is_written_out_is_named_where_it_cannot_be_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "train.py"
    path.write_text(WRITTEN)
    fitter = Fitter(Gauge(path, (), Limits(device="emulated")), 1 << 30)
    assert "written out at line 5; call torch.nn.functional" in written_out(fitter)
    path.write_text(SCRIPT)
    assert written_out(fitter) == ""


WRITTEN = """\
import torch

def attend(query, key, value):
    scores = query @ key.transpose(-2, -1) / query.size(-1) ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ value
"""
