"""`measure --budget`: the textbook's formula, and where a run shows it to be wrong."""

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

from oomlint.verify.textbook import Facts, Layer, Optimizer, Weights, formula, state_of

MIB = 1024**2
# A parameter, its gradient and each value of the state have 1 MiB, what the layer returns 2 MiB.
SCRIPT = """
import sys
import torch

half, ema = "half" in sys.argv, "ema" in sys.argv
model = torch.nn.Linear(512, 512, bias=False).cuda()
model = model.bfloat16() if half else model
copy = torch.nn.Linear(512, 1536, bias=False).cuda() if ema else None
optimizer = torch.optim.AdamW(model.parameters())
for step in range(3):
    batch = torch.ones(1024, 512, device="cuda", dtype=model.weight.dtype)
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
TRANSFORMER = """
import torch

layer = torch.nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(2):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.ones(8, 32, 64, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def measure(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "oomlint", "measure", "--device", "emulated", "--budget"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=cwd,
    )


def budget(tmp_path: Path, text: str, *arguments: str) -> dict[str, Any]:
    (tmp_path / "train.py").write_text(text)
    done = measure("--output-format", "json", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    VALIDATOR.validate(found)
    assert not list(undescribed(found, VALIDATOR.schema))
    return dict(found["budget"])


def parts(found: dict[str, Any]) -> dict[str, tuple[int | None, int | None, int | None]]:
    return {part["name"]: (part["formula"], part["peak"], part["most"]) for part in found["parts"]}


def test_parts_of_a_training_step_in_float32(tmp_path: Path) -> None:
    found = budget(tmp_path, SCRIPT, "train.py")
    assert (found["precision"], found["optimizers"]) == ("float32", ["AdamW"])
    named = parts(found)
    assert named["parameter"] == (MIB, MIB, MIB)
    # In the backward, where the peak is, the gradient is the last thing that is made.
    assert named["gradient"][::2] == (MIB, MIB)
    scalars = 4  # AdamW counts its steps on the host
    assert named["optimizer state"][0] == 2 * MIB
    assert 2 * MIB <= (named["optimizer state"][2] or 0) <= 2 * MIB + scalars
    assert named["activation"][0] == 4 * MIB
    peaks = sum(part["peak"] or 0 for part in found["parts"])
    assert peaks == found["reserved"]
    assert found["total"] == sum(part["formula"] or 0 for part in found["parts"]) == 8 * MIB
    assert found["off"] == pytest.approx(found["total"] / found["reserved"] - 1)


def test_weights_in_halves_have_no_copy_and_no_state_in_float32(tmp_path: Path) -> None:
    found = budget(tmp_path, SCRIPT, "train.py", "half", "ema")
    assert found["precision"] == "half precision"
    named = parts(found)
    assert named["optimizer state"] == (3 * MIB, MIB, MIB)
    assert any("torch keeps the state in the precision" in text for text in found["remarks"])
    # Another model, which nothing trains, is no part of the formula.
    assert named["parameter"] == (MIB // 2, MIB // 2 + 3 * MIB, MIB // 2)
    assert any("take no part in the training" in text for text in found["remarks"])


def test_layers_with_attention_are_counted_by_their_shapes(tmp_path: Path) -> None:
    found = budget(tmp_path, TRANSFORMER, "train.py")
    assert (found["precision"], found["optimizers"]) == ("autocast", ["SGD"])
    named = parts(found)
    parameters = named["parameter"][0] or 0
    assert named["copies in half precision"][0] == parameters // 2
    assert named["optimizer state"][0] == named["gradient"][0] == parameters
    assert named["activation"][0] == 2 * 8 * 32 * 64 * 34
    assert any("2 layers with fused attention" in source for source in found["sources"])


def test_it_is_drawn_and_has_its_place_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = measure("--html", "page.html", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "The textbook's formula gives 8.00 MiB, " in done.stdout
    assert "optimizer state" in done.stdout
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count("<section") == 3
    assert "arXiv" not in page
    assert "model_memory_anatomy" in page


def test_what_has_no_budget_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "memory.pickle").write_bytes(b"")
    done = measure("--fits", "1GiB", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: `--budget` is about one run; leave out `--fits`\n"
    done = measure("memory.pickle", cwd=tmp_path)
    assert done.stderr == "error: memory.pickle does not tell what `--budget` asks; name a script\n"


# Bytes a parameter, as the sources of the formula state them.
@pytest.mark.parametrize(
    ("size", "autocast", "total"),
    [(4, False, 4 + 4 + 8), (4, True, 6 + 4 + 8), (2, False, 2 + 2 + 12)],
)
def test_bytes_of_a_parameter_under_adam(size: int, autocast: bool, total: int) -> None:
    adam = Optimizer("Adam", state_of("Adam", {}), 100)
    facts = Facts((Weights(size, 100, 0),), (adam,), autocast=autocast, backward=True)
    assert formula(facts).total == 100 * total


def test_a_layer_of_gpt3_is_as_large_as_its_paper_says() -> None:
    # s = 2048, h = 12288, a = 96: 5 a s / h is 80 there, and 34 + 80 are 114 s b h bytes.
    written = Layer(1, 2048, 12288, 96, fused=False)
    facts = Facts((Weights(2, 1, 0),), layers=(written,), backward=True)
    assert formula(facts).activations == 2048 * 12288 * (34 + 80)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("SGD", {"momentum": 0}, 0),
        ("SGD", {"momentum": 0.9}, 4),
        ("Adam", {"amsgrad": True}, 12),
        ("RMSprop", {"centered": True, "momentum": 0.9}, 12),
        ("AdamW8bit", {}, 2),
        ("Adafactor", {}, None),
        ("Mine", {}, None),
    ],
)
def test_state_of_optimizers(name: str, options: dict[str, Any], expected: int | None) -> None:
    assert state_of(name, options) == expected
