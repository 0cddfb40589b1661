"""OOM211: a model that is evaluated inside the training loop and trains on in evaluation mode."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis.answers import anchor, finding, make_fix, positions, short
from oomlint.analysis.remedies import receiver_text
from oomlint.analysis.state import Event
from oomlint.analysis.training_mode import Stuck, stuck
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CALLS_BOTH


class EvalModeNotRestored(Rule):
    """
    ## What it does
    Checks for `eval()` inside the training loop, for a validation or for samples, that no `train()`
    takes back before the model is trained on.

    ## Why is this bad?
    The mode belongs to the model, not to the function that sets it. From the first validation on,
    dropout does nothing and batch norm neither uses nor updates the statistics of the batch:
    another network is trained than the one that was meant, and nothing fails.

    ## Example
    ```python
    import torch

    @torch.no_grad()
    def validate(model, loader, criterion):
        model.eval()
        total = 0.0
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
        return total / len(loader)

    def train(model, loader, held_out, criterion, optimizer, epochs):
        model.train()
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
            print(epoch, validate(model, held_out, criterion))
    ```

    Use instead:
    ```python
    import torch

    @torch.no_grad()
    def validate(model, loader, criterion):
        model.eval()
        total = 0.0
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
        model.train()
        return total / len(loader)

    def train(model, loader, held_out, criterion, optimizer, epochs):
        model.train()
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
            print(epoch, validate(model, held_out, criterion))
    ```

    ## Fix safety
    Unsafe: dropout and batch norm work again in training, so results change. Parts that were meant
    to stay in evaluation mode need their own `eval()` behind it.

    ## Measured
    The modules that a training step runs in evaluation mode: some after the first validation before
    the fix, none after it.

    ## References
    - [PyTorch: evaluation mode](https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval)
    """

    code = "OOM211"
    name = "eval-mode-not-restored"
    severity = Severity.ERROR
    tokens = (("backward(",), ("step",))
    token_pattern = CALLS_BOTH
    claims = (Claim.TRAINS_IN_TRAINING_MODE,)

    def check(self, model: Model) -> Iterator[Finding]:
        text = model.source.text
        if "backward(" not in text or "step" not in text:
            return
        seen: set[int] = set()
        for world in model.worlds:
            for found in stuck(world):
                node = anchor(model, found.mode)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    f"`{short(model.module, node)}` is not taken back: the training that follows"
                    " runs in evaluation mode, without dropout and with frozen batch norm"
                )
                path = [
                    (found.mode, "evaluation mode"),
                    (found.forward, "forward of training"),
                    (found.backward, "backward"),
                ]
                yield finding(model, self, node, message, remedy(model, found), path)


def remedy(model: Model, found: Stuck) -> Fix | None:
    """`train()` behind the last statement of the block that evaluates."""
    module, mode = model.module, found.mode
    receiver = receiver_text(mode)
    if mode.module is not module or receiver is None:
        return None
    first = module.statement_of(mode.node)
    if not isinstance(first, ast.Expr):
        return None
    block = block_of(module.parents[first], first)
    evaluated = {id(node) for event in found.evaluated for node in (seen_from(event, mode),)}
    trained = id(seen_from(found.forward, mode))
    last: ast.stmt = first
    for statement in block[block.index(first) + 1 :]:
        inside = {id(node) for node in ast.walk(statement)}
        if trained in inside:
            break
        if inside & evaluated:
            last = statement
    between = block[block.index(first) : block.index(last) + 1]
    leaves = (ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)
    if last is first or any(isinstance(n, leaves) for s in between for n in ast.walk(s)):
        return None
    line = f"{receiver}.train()"
    try:
        edit = edits.insert_after(module, last, [line])
    except edits.NoFix:
        return None
    return make_fix(f"Insert `{line}` after the evaluation", [edit], Safety.UNSAFE)


def block_of(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]


def seen_from(event: Event, mode: Event) -> ast.AST:
    """Where an event happens, seen from the call that set the mode."""
    places = positions(event)
    return places[min(len(mode.calls), len(places) - 1)][1]
