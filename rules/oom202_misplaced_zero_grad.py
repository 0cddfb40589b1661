"""OOM202: gradients that are erased before the optimizer has used them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.knowledge import SKIP_NAME
from oomlint.analysis.modules import written
from oomlint.analysis.remedies import here, lone_block, move, statement, step_end
from oomlint.analysis.state import Event, Kind, World
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


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
    tokens = (("zero_grad",), ("step(",), ("backward(",))
    claims = (Claim.PARAMETERS_MOVE, Claim.GRADIENT_WHOLE)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for zero, backward, step, message in (
                *erased(world),
                *erased_in_window(world),
                *erased_at_epoch(world),
            ):
                node = anchor(model, zero, step)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                path = [(backward, "backward"), (zero, "gradients erased"), (step, "step")]
                fix = remedy(model, world, zero, backward, step)
                yield finding(model, self, node, message, fix, path)


Erasure = tuple[Event, Event, Event, str]


def erased(world: World) -> Iterator[Erasure]:
    """backward -> zero_grad -> step, with no second backward before the step."""
    for step in world.events:
        if step.kind not in ask.STEPS or step.detail.get("two_step") or step.detail.get("closure"):
            continue
        zero = ask.last_before(
            world,
            step,
            lambda e, optimizer=step.subject: (  # type: ignore[misc]
                e.kind in (Kind.BACKWARD, Kind.GRADIENT_TOUCHED, Kind.GRADIENT_TAKEN)
                or (e.kind is Kind.ZERO_GRAD and ask.concerns(e, optimizer))
            ),
        )
        if (
            zero is None
            or zero.kind is not Kind.ZERO_GRAD
            or ask.opaque_between(world, zero, step, step.subject)
        ):
            continue
        backward = ask.last_before(
            world,
            zero,
            lambda e: e.kind in (Kind.BACKWARD, *ask.STEPS),
        )
        if (
            backward is None
            or backward.kind is not Kind.BACKWARD
            or backward.marks != step.marks[: len(backward.marks)]
        ):
            continue
        if is_skip(zero) or zero.subject is None:
            continue
        yield (
            zero,
            backward,
            step,
            "gradients are erased between the backward and the step: the step uses nothing",
        )


def is_skip(zero: Event) -> bool:
    return any(SKIP_NAME.search(written(guard.test)) for guard in zero.guards)


def erased_in_window(world: World) -> Iterator[Erasure]:
    """Every micro-batch of a window is zeroed although only the last one is followed by a step."""
    for window in ask.windows(world):
        if not ask.is_accumulation(window):
            continue
        for zero in world.events[window.backward.index : window.step.index]:
            if zero.kind is not Kind.ZERO_GRAD or "accumulate" in zero.contexts:
                continue
            inside = any(m.serial == window.loop.serial for m in zero.loops)
            guarded = any(ask.is_window(guard) for guard in zero.guards) or is_skip(zero)
            later = ask.first_after(world, zero, lambda e: e.kind in (Kind.BACKWARD, *ask.STEPS))
            if not inside or guarded or later is None or later.kind is not Kind.BACKWARD:
                continue
            if zero.subject is not None and ask.concerns(zero, window.optimizer):
                message = (
                    "gradients are erased on every micro-batch: the step sees the last one only"
                )
                yield zero, window.backward, window.step, message


def erased_at_epoch(world: World) -> Iterator[Erasure]:
    """An epoch starts by zeroing while the window counts on across epochs."""
    for window in ask.windows(world):
        if window.guard is None or not ask.carries_over(window):
            continue
        for zero in world.events:
            if zero.kind is not Kind.ZERO_GRAD or not zero.loops or zero.guards:
                continue
            loop = zero.loops[-1]
            outer = any(m.node is loop.node for m in window.backward.loops[:-1])
            if outer and zero.subject is not None and ask.concerns(zero, window.optimizer):
                message = (
                    "gradients are erased at the start of the epoch although the window goes on: "
                    "the last micro-batches of every epoch are lost"
                )
                yield zero, window.backward, window.step, message


def remedy(model: Model, world: World, zero: Event, backward: Event, step: Event) -> Fix | None:
    """The zeroing moves behind the step, or before the epochs where it opened every one of them."""
    if not here(model.module, zero, step):
        return None
    moved = lone_block(model.module, statement(zero))
    if ask.depth(zero) < ask.depth(backward) and ask.depth(zero) < ask.depth(step):
        epochs = zero.loops[-1].node
        changes = move(model.module, moved, epochs, False) if isinstance(epochs, ast.stmt) else None
        title = "Zero the gradients before the first epoch only"
    else:
        changes = move(model.module, moved, step_end(world, step), behind=True)
        title = "Zero the gradients after the step"
    return make_fix(title, changes, Safety.UNSAFE) if changes else None
