"""What `oomlint verify` can run: scripts, modules, functions with a harness, and files of those."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shell import call, write

from oomlint.errors import OomlintError
from oomlint.verify import targets

pytest.importorskip("torch")

NETS = """\
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)], nn.Linear(32, 5))

    def forward(self, x):
        return self.body(x)
"""
ENGINE = """\
import torch

from ..nets import Net


def evaluate(model, loader, criterion, device):
    model.eval()
    total = 0.0
    for x, y in loader:
        total += criterion(model(x.to(device)), y.to(device)).item()
    return total / len(loader)


def train(model, loader, criterion, optimizer, device):
    model.train()
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        total += loss
    return total / len(loader)


class Trainer:
    def step(self, model, x):
        return train(model, [(x, x)], None, None, "cuda")
"""
TRAIN = """\
import argparse

import torch

from .nets import Net
from .sub.engine import evaluate, train

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, required=True)
    args = parser.parse_args()
    data = torch.utils.data.TensorDataset(torch.randn(128, 32), torch.randint(0, 5, (128,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    criterion = torch.nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        train(model, loader, criterion, optimizer, "cuda")
        evaluate(model, loader, criterion, "cuda")
"""
HARNESS = """\
import torch

from pkg.nets import Net


def make(function):
    data = torch.utils.data.TensorDataset(torch.randn(128, 32), torch.randint(0, 5, (128,)))
    loader = torch.utils.data.DataLoader(data, batch_size=32)
    model = Net().cuda()
    given = {"model": model, "loader": loader, "device": "cuda"}
    given["criterion"] = torch.nn.CrossEntropyLoss()
    if function.__name__ == "train":
        given["optimizer"] = torch.optim.SGD(model.parameters(), lr=0.1)
    return given


def one_step():
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(32, 32), torch.randint(0, 5, (32,))
    return model, [(x, y)], torch.nn.CrossEntropyLoss(), optimizer, "cuda"


def number():
    return 7


def broken():
    raise ValueError("no data here")
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = {
        "pkg/__init__.py": "",
        "pkg/sub/__init__.py": "",
        "pkg/nets.py": NETS,
        "pkg/sub/engine.py": ENGINE,
        "pkg/train.py": TRAIN,
        "harness.py": HARNESS,
        "pyproject.toml": "",
    }
    write(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def verify(*arguments: str, steps: int = 3, code: int = 0) -> dict[str, Any]:
    answer = call("verify", "--json", "--device", "emulated", "--steps", str(steps), *arguments)
    assert (answer.err, answer.code) == ("", code), answer
    found = json.loads(answer.out)
    assert isinstance(found, dict)
    return found


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {r["findings"][0]["code"]: r["verdict"] for r in document["results"]}


def test_the_findings_of_a_module_are_measured_in_the_module_that_imports_it(package: Path) -> None:
    found = verify("--of", "pkg/sub/engine.py", "-m", "pkg.train", "--epochs", "2")
    assert verdicts(found) == {"OOM101": "confirmed", "OOM102": "confirmed"}
    assert [result["losses"]["equal"] for result in found["results"]] == [True, True]
    assert found["target"]["module"] == "pkg.train"


def test_a_harness_gives_a_function_its_arguments(package: Path) -> None:
    found = verify("--harness", "harness:make", "pkg/sub/engine.py::evaluate")
    assert verdicts(found) == {"OOM101": "confirmed"}  # that of `train` is not reached
    found = verify("--harness", "harness.py:make", "pkg/sub/engine.py::train")
    assert verdicts(found) == {"OOM102": "confirmed"}


def test_a_function_is_called_until_the_steps_are_taken(package: Path) -> None:
    (package / "pyproject.toml").write_text('[tool.oomlint.verify]\nharness = "harness:one_step"\n')
    found = verify("pkg/sub/engine.py::train", steps=5, code=1)  # one loss a call is none kept
    assert len(found["results"][0]["before"]["steps"]) == 5


REFUSALS = {
    "no module": (("-m", "pkg.trian"), "no module pkg.trian is found from"),
    "package": (("-m", "pkg"), "pkg is a package without a __main__.py"),
    "no module's name": (("-m", "pkg/train.py"), "`pkg/train.py` is no module's name"),
    "nothing": ((), "name a script, FILE::FUNCTION or -m MODULE"),
    "no function": (("pkg/sub/engine.py::evalute",), "did you mean `evaluate`?"),
    "a class": (("pkg/nets.py::Net",), "pkg/nets.py has no function `Net`; it has Net.__init__"),
    "harness of a script": (("--harness", "a:b", "pkg/train.py"), "name it: FILE::FUNCTION"),
    "no harness": (("--harness", "a", "pkg/sub/engine.py::train"), "`a` names no harness"),
    "harness's module": (
        ("--harness", "nowhere:make", "pkg/sub/engine.py::train"),
        "engine.py::train cannot be called: the harness nowhere:make: no module nowhere is found",
    ),
    "harness's name": (
        ("--harness", "harness:mak", "pkg/sub/engine.py::train"),
        "harness has no function `mak`",
    ),
    "what it returns": (
        ("--harness", "harness:number", "pkg/sub/engine.py::train"),
        "returns int; it must return the arguments of train: a tuple, or a dict by parameter",
    ),
    "what it raises": (
        ("--harness", "harness:broken", "pkg/sub/engine.py::train"),
        "the harness harness:broken raises ValueError: no data here",
    ),
    "what does not fit": (
        ("--harness", "harness:make", "pkg/sub/engine.py::Trainer.step"),
        "the harness's arguments do not fit: got an unexpected keyword argument 'loader'",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_run_is_one_sentence(name: str, package: Path) -> None:
    arguments, sentence = REFUSALS[name]
    answer = call("verify", "--device", "emulated", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert sentence in answer.err
    assert answer.err.count("\n") == 1


@pytest.mark.parametrize("value", ["7", '"make"', "{ harnes = 'a:b' }", "{ harness = 'make' }"])
def test_a_wrong_setting_is_named(value: str, package: Path) -> None:
    (package / "pyproject.toml").write_text(f"[tool.oomlint]\nverify = {value}\n")
    answer = call("verify", "pkg/sub/engine.py::train")
    assert answer.code == 2
    assert answer.err.startswith("error: pyproject.toml:2: `verify` ")


def test_nothing_is_imported_to_find_a_module(package: Path) -> None:
    (package / "pkg" / "__init__.py").write_text("raise SystemExit('imported')\n")
    assert targets.find_module("pkg.sub.engine") == str(package / "pkg" / "sub" / "engine.py")
    with pytest.raises(OomlintError):
        targets.find_module("pkg.sub.engine.deeper")
