"""OOM202: gradients that are erased before the optimizer has used them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, zeroing
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.remedies import here, lone_block, move, statement, step_end
from oomlint.analysis.state import World
from oomlint.analysis.zeroing import Erasure
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CALLS_BOTH


class MisplacedZeroGrad(Rule):
    """
    ## What it does
    Checks for `zero_grad()` between the backward and the step that should use its gradients:
    directly before the step, on every micro-batch of an accumulation window, or at the start of an
    epoch while a window is still open.

    ## Why is this bad?
    The optimizer steps on nothing, or on the gradient of the last micro-batch only. Nothing fails;
    the parameters do not move, or the effective batch is smaller than it says.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: the parameters are updated with their true gradients from then on, so results change.

    ## Measured
    The norm of the parameter update is 0 before the fix where the zeroing stands before the step.

    ## References
    - [PyTorch: zeroing out gradients](https://docs.pytorch.org/tutorials/recipes/recipes/zeroing_out_gradients.html)
    """

    code = "OOM202"
    name = "misplaced-zero-grad"
    severity = Severity.ERROR
    tokens = (("zero_grad", ".grad = None"), ("step(",), ("backward(",))
    token_pattern = CALLS_BOTH
    claims = (Claim.PARAMETERS_MOVE, Claim.GRADIENT_WHOLE)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for erasures, message in CASES:
                for found in erasures(world):
                    node = anchor(model, found.zero, found.step)
                    if node is None or id(node) in seen:
                        continue
                    seen.add(id(node))
                    path = [
                        (found.backward, "backward"),
                        (found.zero, "gradients erased"),
                        (found.step, "step"),
                    ]
                    yield finding(model, self, node, message, remedy(model, world, found), path)


CASES = (
    (
        zeroing.erased_before_step,
        "gradients are erased between the backward and the step: the step uses nothing",
    ),
    (
        zeroing.erased_in_window,
        "gradients are erased on every micro-batch: the step sees the last one only",
    ),
    (
        zeroing.erased_at_epoch,
        "gradients are erased at the start of the epoch although the window goes on: "
        "the last micro-batches of every epoch are lost",
    ),
)


def remedy(model: Model, world: World, erasure: Erasure) -> Fix | None:
    """The zeroing moves behind the step, or before the epochs where it opened every one of them."""
    zero, step = erasure.zero, erasure.step
    if not here(model.module, zero, step):
        return None
    moved = lone_block(model.module, statement(zero))
    if ask.depth(zero) < min(ask.depth(erasure.backward), ask.depth(step)):
        epochs = zero.loops[-1].node
        changes = move(model.module, moved, epochs, False) if isinstance(epochs, ast.stmt) else None
        title = "Zero the gradients before the first epoch only"
    else:
        changes = move(model.module, moved, step_end(world, step), behind=True)
        title = "Zero the gradients after the step"
    return make_fix(title, changes, Safety.UNSAFE) if changes else None
