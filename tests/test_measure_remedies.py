"""What `measure --fits` tries: each remedy changes what the script holds, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from oomlint.verify import remedies
from oomlint.verify.measure import Gauge, Measurement
from oomlint.verify.probe import Probe
from oomlint.verify.runner import Limits

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
