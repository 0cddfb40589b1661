"""OOM205: micro-batches at the end of an epoch that fill no window and are erased."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.counting import (
    Count,
    count_of,
    twins,
)
from oomlint.analysis.modules import Module, written
from oomlint.analysis.unfinished import erased_between_epochs, is_handled, place, starts_anew
from oomlint.analysis.windows import counted_windows
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CALLS_BOTH


class DroppedLastWindow(Rule):
    """
    ## What it does
    Checks for accumulation windows that start anew in every epoch, without a step for the
    micro-batches that are left at the end, while the next epoch begins with `zero_grad()`.

    ## Why is this bad?
    Where the number of batches is no multiple of the window, the last ones of every epoch are
    computed and thrown away: their gradients never reach the parameters. With fewer batches than
    one window nothing is ever trained.

    Where gradients are zeroed behind the step only, the rest is carried into the next epoch's first
    window, and nothing is reported.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion, optimizer, epochs, accumulation_steps=4):
        for epoch in range(epochs):
            optimizer.zero_grad()
            for i, (inputs, targets) in enumerate(loader):
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, optimizer, epochs, accumulation_steps=4):
        for epoch in range(epochs):
            optimizer.zero_grad()
            for i, (inputs, targets) in enumerate(loader):
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: there is one more step an epoch, made with fewer micro-batches than the others.

    ## Measured
    With six batches and windows of four, the step after the first epoch's sees four of the six
    backward passes since the one before it; after the fix every step sees all of them.

    ## References
    - [PyTorch: gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "OOM205"
    name = "dropped-last-window"
    severity = Severity.WARNING
    tokens = (("backward(",), ("step(",), ("zero_grad",))
    token_pattern = CALLS_BOTH
    claims = (Claim.GRADIENT_WHOLE,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for window in counted_windows(world):
                erasure = erased_between_epochs(window)
                if erasure is None or not ask.is_accumulation(window):
                    continue
                if is_handled(model, window) or not starts_anew(window):
                    continue
                count = count_of(window)
                node = place(model, window, count)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    "the micro-batches behind the last full window of an epoch are lost: "
                    "no step uses them and the next epoch erases them"
                )
                path = [
                    (erasure, "every epoch begins with erased gradients"),
                    (window.backward, "backward of every micro-batch"),
                    (window.step, "step for full windows only"),
                ]
                fix = step_at_the_end(model, count) if count is not None else None
                yield finding(model, self, node, message, fix, path)


def step_at_the_end(model: Model, count: Count) -> Fix | None:
    """`... or i + 1 == len(loader)` behind every test of the window's end."""
    module, loader = model.module, count.loader
    if count.module is not module or not isinstance(loader, ast.Name | ast.Attribute):
        return None
    if count.start not in (0, 1):
        return None
    number = written(count.counter) + (" + 1" if count.start == 0 else "")
    places = twins(count)
    if not all(stands_free(module, node) for node in places):
        return None
    changes = []
    for node in places:
        positive = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)
        negated = isinstance(module.parents[node], ast.UnaryOp)
        word, sign = ("or", "==") if positive or negated else ("and", "!=")
        _, end = module.span(node)
        text = f" {word} {number} {sign} len({written(loader)})"
        changes.append(Edit(end, end, text))
    title = f"Step for the last micro-batches, too: `{number} == len({written(loader)})`"
    return make_fix(title, changes, Safety.UNSAFE)


def stands_free(module: Module, node: ast.expr) -> bool:
    """Whether `or ...` may follow a test: it is all of a condition, an argument or a value."""
    parent = module.parents[node]
    if isinstance(parent, ast.UnaryOp):
        return isinstance(node, ast.BinOp) and isinstance(module.parents[parent], ast.If)
    return isinstance(parent, ast.If | ast.Assign | ast.keyword)
