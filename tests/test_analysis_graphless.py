"""Forwards whose graph nobody uses: where evaluation is pointed at, and where it is left alone."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest
from stories import model_of

from oomlint.analysis import graphless, turning_off


def regions(text: str) -> list[str]:
    """`row: forward (reason)` for each region, rows counted from the one below `def`."""
    text = dedent(text)
    base = next(i for i, row in enumerate(text.splitlines(), 1) if row.startswith("def "))
    model = model_of(text)
    return [
        f"{region.node.lineno - base}: {ast.unparse(region.node)} ({region.reason})"
        for region in graphless.regions(model)
    ]


def function(
    body: str, head: str = "def evaluate(model, loader, criterion, optimizer, args):"
) -> str:
    return f"import torch\n{head}\n{indent(dedent(body), '    ')}\n"


EVALUATION = "evaluation mode"

FOUND = {
    "a loop": ("model.eval()\nfor x in loader:\n    model(x)", f"3: model(x) ({EVALUATION})"),
    "train(False)": (
        "model.train(False)\nfor x in loader:\n    model(x)",
        f"3: model(x) ({EVALUATION})",
    ),
    "a loss": (
        "model.eval()\nfor x, y in loader:\n    criterion(model(x), y).item()",
        f"3: model(x) ({EVALUATION})",
    ),
    "a part of the model": (
        "model.eval()\nfor x in loader:\n    part = model.decoder\n    part(x)",
        f"4: part(x) ({EVALUATION})",
    ),
    "outputs that are kept": (
        "model.eval()\nkept = []\nfor x in loader:\n    kept.append(model(x).cpu())",
        f"4: model(x) ({EVALUATION})",
    ),
    "no_grad in another loop": (
        "model.eval()\nfor x in loader:\n    with torch.no_grad():\n        model(x)\n"
        "for x in loader:\n    model(x)",
        f"6: model(x) ({EVALUATION})",
    ),
    "evaluation behind training": (
        "model.train()\nfor x, y in loader:\n    criterion(model(x), y).backward()\n"
        "    optimizer.step()\nmodel.eval()\nfor x in args.val_loader:\n    model(x)",
        f"7: model(x) ({EVALUATION})",
    ),
    "gradients that are switched on again": (
        "torch.set_grad_enabled(False)\ntorch.set_grad_enabled(True)\nmodel.eval()\n"
        "for x in loader:\n    model(x)",
        f"5: model(x) ({EVALUATION})",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_evaluation_with_gradients_on(name: str) -> None:
    body, expected = FOUND[name]
    assert regions(function(body)) == [expected]


SILENT = {
    "no_grad": "model.eval()\nwith torch.no_grad():\n    for x in loader:\n        model(x)",
    "gradients off for good": "torch.set_grad_enabled(False)\nmodel.eval()\n"
    "for x in loader:\n    model(x)",
    "a mode that cannot be told": "model.eval()\nwith torch.set_grad_enabled(args.grad):\n"
    "    for x in loader:\n        model(x)",
    "training mode": "model.train()\nfor x in loader:\n    model(x)",
    "no mode": "for x in loader:\n    model(x)\nargs.other.eval()",
    "back in training mode": "model.eval()\nmodel.train()\nfor x in loader:\n    model(x)",
    "another model": "args.teacher.eval()\nfor x in loader:\n    model(x)",
    "no loop": "model.eval()\nmodel(args.x)",
    "a gradient of the input": "model.eval()\nfor x in loader:\n"
    "    torch.autograd.grad(model(x).sum(), x)",
    "an adversarial input": "model.eval()\nfor x in loader:\n    x.requires_grad_(True)\n"
    "    criterion(model(x), 1).backward()",
    "training with frozen statistics": "model.eval()\nfor x in loader:\n"
    "    criterion(model(x), 1).backward()\n    optimizer.step()",
    "a frozen model": "model.eval()\nmodel.requires_grad_(False)\nfor x in loader:\n    model(x)",
    "a frozen teacher beside training": "args.teacher.eval()\nteacher = args.teacher\n"
    "for x in loader:\n    criterion(model(x), teacher(x)).backward()\n    optimizer.step()",
    "a generator expression under no_grad": "model.eval()\nwith torch.inference_mode():\n"
    "    return sum(model(x).sum() for x in loader)",
}


@pytest.mark.parametrize("name", SILENT)
def test_what_is_left_alone(name: str) -> None:
    assert regions(function(SILENT[name])) == []


def test_one_region_for_a_function() -> None:
    body = "model.eval()\nfor x in loader:\n    model(x)\n    model(x + 1)\nmodel(args.x)"
    assert regions(function(body)) == [f"3: model(x) ({EVALUATION})"]


def test_a_hook_that_a_framework_calls() -> None:
    text = """
    import lightning as L
    class Module(L.LightningModule):
        def validation_step(self, batch, index):
            self.eval()
            for x in batch:
                self(x)
    """
    assert list(graphless.regions(model_of(text))) == []


def rollout(action: str) -> list[str]:
    body = f"""
        env = args.env
        obs = env.reset()
        for _ in range(100):
            action = {action}
            obs, reward, done, info = env.step(action)
    """
    return regions(function(body, "def play(policy, args):"))


@pytest.mark.parametrize(
    "action",
    [
        "policy(obs).detach().cpu().numpy()",
        "policy(obs).detach().numpy()",
        "policy(obs).argmax().item()",
        "policy(obs).max(1)[1].item()",
        "torch.max(policy(obs), 1)[1].item()",
    ],
)
def test_a_rollout_that_only_acts(action: str) -> None:
    assert rollout(action) == ["5: policy(obs) (environment step)"]


def test_a_rollout_that_uses_the_largest_output_itself() -> None:
    assert rollout("policy(obs).max(1)[0]") == []


def test_the_function_that_evaluates_is_pointed_at() -> None:
    text = """
    import torch
    def predict(model, x):
        return model(x)

    def evaluate(model, loader):
        model.eval()
        for x in loader:
            predict(model, x)

    def train(model, loader, criterion, optimizer):
        for x in loader:
            criterion(predict(model, x)).backward()
            optimizer.step()
    """
    assert regions(text) == [f"6: predict(model, x) ({EVALUATION})"]


FIXES = {
    "a whole function": (
        "model.eval()\nfor x in loader:\n    model(x)",
        "Decorate `evaluate` with `@torch.no_grad()`",
    ),
    "a loop beside training": (
        FOUND["evaluation behind training"][0],
        "Run the loop under `torch.no_grad()`",
    ),
}


@pytest.mark.parametrize("name", FIXES)
def test_how_gradients_are_turned_off(name: str) -> None:
    body, title = FIXES[name]
    model = model_of(function(body))
    (region,) = graphless.regions(model)
    fix = turning_off.turn_off(model, region)
    assert fix is not None
    assert fix.title == title
    text = model.source.text
    for edit in reversed(fix.edits):
        text = text[: edit.start] + edit.content + text[edit.end :]
    assert list(graphless.regions(model_of(text))) == []
