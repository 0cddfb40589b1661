"""`measure --shapes-only`: the same peaks without values, and a refusal where values count."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("torch")

from oomlint.verify.measure import TO_THE_END, Gauge, Measurement
from oomlint.verify.probe import Probe
from oomlint.verify.record import FINISHED, NEEDS_VALUES
from oomlint.verify.runner import Limits

BLOCKS = """
import sys
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.norm(x)
        x = x + self.attend(y, y, y, need_weights=False)[0]
        return x + F.dropout(self.down(F.gelu(self.up(x))), 0.1, self.training)

class Model(nn.Module):
    def __init__(self, width, tokens=500):
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embed.weight
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, indices):
        x = self.embed(indices)
        for block in self.blocks:
            x = block(x)
        return self.head(x)

width = int(sys.argv[1])
model = Model(width).to("cuda")
data = torch.randint(0, 500, (24, 65))
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=1)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler()
for batch in loader:
    batch = batch.cuda(non_blocking=True)
    with torch.autocast("cuda"):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


def run(folder: Path, text: str, *argv: str, probe: Probe, **limits: object) -> Measurement:
    path = folder / "train.py"
    path.write_text(dedent(text))
    given = Limits(steps=TO_THE_END, device="emulated", gpu="A100", timeout=200, **limits)  # type: ignore[arg-type]
    return Gauge(path, argv, given).measure("", probe)


def test_peaks_are_those_of_a_run_with_values(folder: Path) -> None:
    real = run(folder, BLOCKS, "64", probe=Probe())
    shapes = run(folder, BLOCKS, "64", probe=Probe(shapes=True))
    assert shapes.run.ending.kind == real.run.ending.kind == FINISHED
    assert len(shapes.run.steps) == len(real.run.steps) == 3
    assert shapes.held.requested_peak == pytest.approx(real.held.requested_peak, rel=0.01)
    assert shapes.held.reserved_peak == pytest.approx(real.held.reserved_peak, rel=0.05)
    for one, other in zip(shapes.run.steps, real.run.steps, strict=True):
        assert one.requested_peak == pytest.approx(other.requested_peak, rel=0.01)
        assert one.requested == pytest.approx(other.requested, rel=0.01)


def test_a_model_larger_than_the_machine(folder: Path) -> None:
    """130 GB of parameters and as much in gradients; the run itself may take 2 GiB."""
    text = """
    import torch
    from torch import nn

    model = nn.Sequential(*[nn.Linear(65_536, 65_536, bias=False) for _ in range(8)]).cuda()
    batch = torch.randn(4, 65_536, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    """
    found = run(folder, text, probe=Probe(shapes=True), capacity=300 << 30, memory=2 << 30)
    assert found.run.ending.kind == FINISHED
    kinds = {share.name: share.size for share in found.held.kinds}
    assert kinds["parameter"] == 8 * 4 * 65_536**2
    assert kinds["gradient"] == kinds["parameter"]
    assert found.held.host < 1 << 30


NEEDS = {
    "item": ("total = loss.item()", "a number that is read from a tensor"),
    "branch": ("if loss > 3: pass", "a number that is read from a tensor"),
    "format": ("print(f'{loss:.3f}')", "a number that is read from a tensor"),
    "list": ("batch.tolist()", "a number that is read from a tensor"),
    "array": ("loss.detach().cpu().numpy()", "a tensor as an array of NumPy"),
    "host": (
        "total = torch.zeros(1); total += loss.detach().cpu(); print(total.item())",
        "a number",
    ),
    "shape": ("batch[batch > 0]", "whose result depends on values"),
    "unique": ("batch.unique()", "whose result depends on values"),
}
STEP = """
import torch

weight = torch.nn.Parameter(torch.zeros(8, 8, device="cuda"))
batch = torch.randn(8, 8).cuda()
loss = (batch @ weight).sum()
try:
    {line}
except Exception:
    print("goes on")
loss.backward()
"""


@pytest.mark.parametrize("name", NEEDS)
def test_where_values_count_it_refuses_and_names_the_line(folder: Path, name: str) -> None:
    line, words = NEEDS[name]
    found = run(folder, STEP.format(line=line), probe=Probe(shapes=True))
    assert found.run.ending.kind == NEEDS_VALUES
    assert "train.py:8 needs " in found.run.ending.message
    assert words in found.run.ending.message


@pytest.mark.parametrize("name", ["item", "branch", "format", "list"])
def test_a_number_may_be_assumed(folder: Path, name: str) -> None:
    line, _ = NEEDS[name]
    found = run(folder, STEP.format(line=line), probe=Probe(shapes=True, assumed=1.0))
    assert found.run.ending.kind == FINISHED
