"""OOM203: an optimizer whose gradients are never zeroed between its steps."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, edits, zeroing
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.remedies import argument_text, here, receiver_text, statement
from oomlint.analysis.state import Event, Kind
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CALLS_BOTH


class MissingZeroGrad(Rule):
    """
    ## What it does
    Checks for a loop that calls `backward` and `optimizer.step` again and again with nothing on the
    way that zeroes this optimizer's gradients.

    ## Why is this bad?
    `backward` adds to `.grad`, so every step uses the sum of all gradients since the start. The
    update grows with the number of steps and points in the wrong direction. Memory does not change.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    Unsafe: the parameters are updated with their true gradients from then on, so results change.

    ## Measured
    The gradient norm at the step grows from step to step before the fix and does not after it.

    ## References
    - [PyTorch: zeroing out gradients](https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html)
    """

    code = "OOM203"
    name = "missing-zero-grad"
    severity = Severity.ERROR
    tokens = (("backward(",), ("step(",))
    token_pattern = CALLS_BOTH
    claims = (Claim.GRADIENT_STOPS_GROWING,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        zeroed = {id(e.node) for world in model.worlds for e in zeroing.zeroed_steps(world)}
        for world in model.worlds:
            for step in ask.steps(world):
                backward = zeroing.unzeroed(world, step) if id(step.node) not in zeroed else None
                if backward is None:
                    continue
                node = anchor(model, step, backward)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    "gradients are never zeroed between steps: every step uses the sum of all "
                    "gradients so far"
                )
                path = [(step, "step"), (backward, "next backward adds to the old gradients")]
                yield finding(model, self, node, message, zero_before(model, backward, step), path)


def zero_before(model: Model, backward: Event, step: Event) -> Fix | None:
    """`optimizer.zero_grad()` in the line before the backward."""
    optimizer = receiver_text(step) if step.kind is Kind.STEP else argument_text(step)
    if not here(model.module, backward, step) or optimizer is None:
        return None
    call = f"{optimizer}.zero_grad()"
    try:
        edit = edits.insert_before(model.module, statement(backward), [call])
    except edits.NoFix:
        return None
    return make_fix(f"Insert `{call}` before the backward", [edit], Safety.UNSAFE)
