"""OOM212: an epoch function that backpropagates during validation too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis.answers import anchor, finding, short
from oomlint.analysis.shared_epochs import Misused, flagged, misused
from oomlint.rule import Claim, Finding, Rule, Severity

Way = list[tuple[ast.expr | ast.stmt, str]]


class BackwardInEval(Rule):
    """
    ## What it does
    Checks for a backward that runs in evaluation mode, in an epoch function or a loss object that
    training and validation share, without a condition that keeps validation out.

    ## Why is this bad?
    The gradients of the validation batches are summed into those that the optimizer uses, or it
    steps on them at once. The model is trained on what it is measured with, so its score is too
    good, and early stopping and the choice of the best model mean nothing.

    ## Example
    ```python
    def run_epoch(model, loader, criterion, optimizer, is_train):
        if is_train:
            model.train()
        else:
            model.eval()
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def run_epoch(model, loader, criterion, optimizer, is_train):
        if is_train:
            model.train()
        else:
            model.eval()
        for inputs, targets in loader:
            with torch.set_grad_enabled(is_train):
                loss = criterion(model(inputs), targets)
            if is_train:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    ```

    ## Measured
    The steps that run modules in evaluation mode: those of every validation before the repair, none
    after it.

    ## References
    - [PyTorch: evaluation mode](https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval)
    """

    code = "OOM212"
    name = "backward-in-eval"
    severity = Severity.ERROR
    tokens = (("backward(",), ("eval()", ".train("))
    claims = (Claim.TRAINS_IN_TRAINING_MODE,)

    def check(self, model: Model) -> Iterator[Finding]:
        text = model.source.text
        if "backward(" not in text or not ("eval()" in text or ".train(" in text):
            return
        seen: set[int] = set()
        for world in model.worlds:
            for found in misused(model.module, world):
                node = anchor(model, found.backward)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                yield self.of(model, node, found)
        for mode, backward, steps in flagged(model.module):
            if id(backward) not in seen:
                seen.add(id(backward))
                way: Way = [(mode, "the mode"), (backward, "backward")]
                message = told(short(model.module, backward), steps)
                yield finding(model, self, backward, message, None, way)

    def of(self, model: Model, node: ast.expr | ast.stmt, found: Misused) -> Finding:
        path = [(found.mode, "evaluation mode"), (found.backward, "backward")]
        if found.step is not None:
            path.append((found.step, "step"))
        message = told(short(model.module, node), found.step is not None)
        return finding(model, self, node, message, None, path)


def told(backward: str, steps: bool) -> str:
    use = (
        "the model is trained on the data that it is measured with"
        if steps
        else "the gradients of validation are added to those of training"
    )
    return f"`{backward}` runs in evaluation mode too: {use}"
