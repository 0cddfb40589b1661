"""The precision of a forward, by the autocast around it and what its world assumes."""

from __future__ import annotations

import pytest
from stories import model_of

from oomlint.analysis.autocast import precision_at
from oomlint.analysis.state import Kind

TRAIN = """
import torch
from contextlib import nullcontext

def train(model, loader, optimizer, criterion, device, amp, scaler, dtype):
    bf16 = torch.bfloat16
    for x, y in loader:
        optimizer.zero_grad()
        with {context}:
            loss = criterion(model(x), y)
        if {test}:
            optimizer.step()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ("torch.no_grad()", {("", True)}),
        ('torch.autocast("cuda")', {("float16", True)}),
        ('torch.autocast("cuda:0")', {("float16", True)}),
        ('torch.autocast("cpu")', {("bfloat16", True)}),
        ('torch.autocast("cuda", torch.bfloat16)', {("bfloat16", True)}),
        ('torch.autocast("cuda", dtype=bf16)', {("bfloat16", True)}),
        ('torch.autocast("cuda", dtype=torch.half)', {("float16", True)}),
        ('torch.autocast("cuda", dtype=None)', {("float16", True)}),
        ('torch.autocast("cuda", dtype=dtype)', {("?", True)}),
        ("torch.autocast(device.type)", {("?", True)}),
        ("torch.autocast(device.type, dtype=torch.float16)", {("float16", True)}),
        ('torch.autocast("cuda", enabled=False)', {("off", True)}),
        ("torch.cuda.amp.autocast()", {("float16", True)}),
        ("torch.cuda.amp.autocast(False)", {("off", True)}),
        ("torch.cuda.amp.autocast(True, torch.bfloat16)", {("bfloat16", True)}),
        ('torch.autocast("cuda") if device else nullcontext()', {("float16", False)}),
        ('torch.autocast("cuda", enabled=device)', {("float16", False)}),
        ('torch.autocast("cuda", enabled=amp)', {("float16", True), ("off", True)}),
        ('torch.autocast("cuda"), torch.autocast("cuda", enabled=False)', {("off", True)}),
    ],
)
def test_precision_of_a_forward(context: str, expected: set[tuple[str, bool]]) -> None:
    assert precisions(TRAIN.format(context=context, test="amp")) == expected


def test_a_test_for_none_is_the_same_flag() -> None:
    context = 'torch.autocast("cuda", enabled=scaler is not None)'
    found = precisions(TRAIN.format(context=context, test="scaler is not None"))
    assert found == {("float16", True), ("off", True)}


def precisions(text: str) -> set[tuple[str, bool]]:
    return {
        precision_at(world, event)
        for world in model_of(text).worlds
        for event in world.events
        if event.kind is Kind.FORWARD
    }
