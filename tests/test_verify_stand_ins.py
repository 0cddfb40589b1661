"""Functions without a harness: what can be stood in for, what is said of it, and what cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from shell import Answer, call, write

pytest.importorskip("torch")

CLASSIFIER = """\
import torch

def evaluate(model, data_loader, criterion, device):
    model.eval()
    total, correct = 0.0, 0
    for step, (images, target) in enumerate(data_loader):
        images, target = images.to(device), target.to(device)
        output = model(images)
        total += criterion(output, target).item()
        correct += (output.argmax(1) == target).sum().item()
    return total / len(data_loader), correct / len(data_loader.dataset)
"""
SEGMENTER = """\
import torch
import torch.nn.functional as F

@torch.no_grad()
def scores(net, val_loader):
    for batch in val_loader:
        yield net(batch["image"].cuda())

def train_epoch(net, train_loader, optimizer, scaler, args):
    losses = []
    for i, batch in enumerate(train_loader):
        image, mask = batch["image"].cuda(), batch["mask"].cuda()
        with torch.autocast("cuda", enabled=args.amp):
            prediction = net(image)
            loss = F.binary_cross_entropy_with_logits(prediction, mask)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), args.clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss)
        if i % args.log_freq == 0:
            print(args.name, i, loss.item())
    return sum(losses) / len(losses)
"""
LANGUAGE = """\
import torch

def run(model, batches, opt, lr_scheduler, vocab_size):
    history = []
    for batch in batches:
        batch = {key: value.cuda() for key, value in batch.items()}
        outputs = model(**batch)
        assert outputs.logits.shape[-1] == vocab_size
        outputs.loss.backward()
        opt.step()
        lr_scheduler.step()
        opt.zero_grad()
        history.append(outputs.loss)
    return history
"""
TRAINER = """\
import torch

class Trainer:
    def __init__(self, config, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
        self.loss_fn = torch.nn.CrossEntropyLoss()
        self.device = config.device
        self.loader = config.loader()

    def forward(self, batch):
        x, y = batch
        return self.loss_fn(self.model(x.to(self.device)), y.to(self.device))

    def fit(self, epochs):
        total = 0
        for epoch in range(epochs):
            for batch in self.loader:
                loss = self.forward(batch)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                total += loss
        return total
"""
STEP = """\
import torch

def train_step(model, x, y, optimizer, criterion, scaler, clip=0.01):
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
"""
DETECTOR = """\
import torch

def epoch(model, data_loader, optimizer, logger, print_freq):
    total = 0.0
    for images, targets in data_loader:
        images = [image.cuda() for image in images]
        targets = [{key: value.cuda() for key, value in one.items()} for one in targets]
        assert targets[0]["boxes"].shape[1] == 4
        loss_dict = model(images, targets)
        loss = sum(value for value in loss_dict.values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss
        logger.update(loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
    return total
"""

SCRIPT = """\
import argparse
import torch

def save(path):
    if args.rank == 0:
        torch.save(model.state_dict(), path)

def train(epoch):
    history = []
    for step, (views, _) in enumerate(train_loader):
        if args.arch == "pair":
            views = torch.cat([views[0], views[1]], dim=0).cuda()
        else:
            raise ValueError(args.arch)
        output, target = model(views)
        loss = torch.nn.functional.cross_entropy(output, target)
        optimizer.zero_grad()
        if scaler is not None:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
            history.append(loss)
    save("weights.pt")
    return history

if __name__ == "__main__":
    args = argparse.ArgumentParser().parse_args()
    train(0)
"""
REGRESSION = """\
import torch

def fit(net, batches, optimizer, augment, config):
    total = 0.0
    for batch in batches:
        ids, types = batch["ids"].cuda(), batch["token_type_ids"].cuda()
        targets = batch["targets"].cuda()
        if augment is not None:
            ids, targets = augment(ids, targets)
        if config.TRAIN.USE_AMP:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = torch.nn.BCEWithLogitsLoss()(net(ids, types), targets.view(-1, 1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss
    return total / config.TRAIN.STEPS
"""
OWN_LOADER = """\
import torch
import torch.distributed as dist

def validate(model, valset, batch_size):
    model.eval()
    loader = torch.utils.data.DataLoader(valset, batch_size=batch_size, drop_last=True)
    total = 0
    for image, label in loader:
        image, label = image.cuda(), label.cuda()
        correct = (model(image).argmax(1) == label).sum()
        dist.all_reduce(correct)
        total += correct
    return total
"""

RUN = {
    "classifier": (CLASSIFIER, "evaluate", "OOM101", "target labels of 10 classes"),
    "segmenter": (SEGMENTER, "train_epoch", "OOM102", "mask maps of 1x32x32 zeros and ones"),
    "language": (LANGUAGE, "run", "OOM102", "labels 16 tokens of 32"),
    "trainer": (TRAINER, "Trainer.fit", "OOM102", "x images of 3x32x32, y labels of 10 classes"),
    "detector": (DETECTOR, "epoch", "OOM102", "dicts of boxes and labels"),
    "step": (STEP, "train_step", "OOM301", "images of 3x32x32"),
    "script": (SCRIPT, "train", "OOM102", "None, for the line to be reached, as a global name"),
    "own loader": (OWN_LOADER, "validate", "OOM101", "a group of one process"),
    "regression": (REGRESSION, "fit", "OOM102", "a network of 6 layers, called for 16x1"),
}


def verify(folder: Path, text: str, function: str, *options: str) -> Answer:
    write(folder, {"pyproject.toml": "", "engine.py": text})
    return call(
        "verify", "--device", "emulated", "--steps", "4", *options, f"engine.py::{function}"
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def result(answer: Answer) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(answer.out)
    (found,) = document["results"]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", RUN)
def test_a_function_is_run_with_stand_ins(name: str, folder: Path) -> None:
    text, function, code, sentence = RUN[name]
    answer = verify(folder, text, function, "--json")
    assert answer.err == ""
    found = result(answer)
    assert (found["findings"][0]["code"], found["verdict"]) == (code, "confirmed"), found["reason"]
    assert sentence in " ".join(what for _, what, _ in found["before"]["stood"])
    assert len(found["before"]["steps"]) == 4
    assert found["losses"]["equal"] == (code != "OOM301")  # a fix that corrects a gradient


def test_without_losses_the_outputs_are_compared(folder: Path) -> None:
    text = CLASSIFIER.replace("total += criterion(output, target).item()", "total += 1")
    found = result(verify(folder, text, "evaluate", "--json"))
    assert found["verdict"] == "confirmed"
    assert found["losses"] == {
        **{"what": "outputs", "unit": "iteration", "equal": True, "steps": 4, "exact": True},
        **{"first": None, "before": None, "after": None},
    }
    assert len({step["output"] for step in found["before"]["steps"]}) == 4


def test_the_table_states_every_stand_in_and_how_its_part_was_known(folder: Path) -> None:
    answer = verify(folder, CLASSIFIER, "evaluate")
    lines = answer.out.splitlines()
    start = lines.index("Stood in for, in evaluate:")
    assert lines[start + 1 : start + 6] == [
        "  model: a network of 6 layers, called for 10 scores a sample (by its use)",
        "  data_loader: 8 batches of 16: images images of 3x32x32, target labels of 10 classes"
        " (by its name)",
        "  criterion: cross entropy for integer targets, else mean squared error (by its name)",
        "  device: cuda (by its use)",
        "",
    ]


def test_a_harness_may_leave_out_what_can_be_stood_in_for(folder: Path) -> None:
    write(
        folder, {"mine.py": "import torch\ndef make():\n    return {'model': torch.nn.Flatten()}\n"}
    )
    answer = verify(folder, CLASSIFIER, "evaluate", "--json", "--harness", "mine:make")
    stood = [name for name, _, _ in result(answer)["before"]["stood"]]
    assert stood == ["data_loader", "criterion", "device"]


PARTICULAR = """\
import torch

def evaluate(model, loader, {parameter}):
    model.eval()
    total = 0.0
    for x, y in loader:
        {line}
        total += torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).item()
    return total
"""
CANNOT = {
    "needs a class": ("sampler", "x = sampler[3].draw(x).flip(1) @ x", "`sampler` is not known"),
    "raises": ("device", "assert len(x) == 7, 'odd'", "raises AssertionError: odd at line 7"),
    "exits": ("device", "import sys; sys.exit(3)", "exits with status 3"),
    "dies": ("device", "import os; os._exit(1)", "ends its process"),
}


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_stood_in_for_is_one_sentence(name: str, folder: Path) -> None:
    parameter, line, sentence = CANNOT[name]
    answer = verify(folder, PARTICULAR.format(parameter=parameter, line=line), "evaluate")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("error: engine.py::evaluate cannot be called: with stand-ins it ")
    assert sentence in answer.err
    named = {"needs a class": "sampler", "raises": "loader"}
    asked = named.get(name, 'model": ..., "loader')
    assert f'`def make(): return {{"{asked}": ...}}` into a file harness.py' in answer.err
    assert answer.err.endswith("--harness harness.py:make; the rest stays stood in for\n")
    assert answer.err.count("\n") == 1


def test_a_function_that_hangs_with_stand_ins_is_given_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = PARTICULAR.format(parameter="device", line="while True: pass")
    answer = verify(folder, text, "evaluate", "--timeout", "4")
    assert answer.code == 2
    assert "did not come to an end within 4 s" in answer.err


def test_a_number_is_known_by_whole_words() -> None:
    from oomlint.verify.values_by_name import setting

    assert setting("n_batches") == setting("max_samples") == 4
    assert setting("train_dataset") is None  # an `n_` inside of a word
