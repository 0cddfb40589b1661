"""OOM203: an optimizer whose gradients are never zeroed between its steps."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.knowledge import SKIP_NAME
from oomlint.analysis.modules import written
from oomlint.analysis.remedies import argument_text, here, receiver_text, statement
from oomlint.analysis.state import Event, Kind, World
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


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
    claims = (Claim.GRADIENT_STOPS_GROWING,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        zeroed = {id(e.node) for world in model.worlds for e in zeroed_steps(world)}
        for world in model.worlds:
            for step in world.events:
                backward = unzeroed(world, step)
                if backward is None or id(step.node) in zeroed:
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


def is_plain_step(event: Event) -> bool:
    unusual = ("stepper", "two_step", "closure")
    return event.kind in ask.STEPS and not any(event.detail.get(name) for name in unusual)


def zeroed_steps(world: World) -> Iterator[Event]:
    """Steps in whose own loop something zeroes their gradients, in this world."""
    zeros = [event for event in world.events if event.kind is Kind.ZERO_GRAD]
    for step in world.events:
        if is_plain_step(step) and step.loops:
            serial = step.loops[-1].serial
            for zero in zeros:
                inside = any(m.serial == serial for m in zero.loops)
                skips = any(
                    guard.truth and SKIP_NAME.search(written(guard.test)) for guard in zero.guards
                )
                if inside and not skips and ask.concerns(zero, step.subject):
                    yield step
                    break


def unzeroed(world: World, step: Event) -> Event | None:
    """The backward that follows a step in a later iteration with no zeroing on the way."""
    if not is_plain_step(step) or not step.loops or not ask.is_lasting(step.subject):
        return None
    backward = ask.way(
        world,
        step,
        lambda e: e.kind is Kind.BACKWARD,
        lambda e: (
            (e.kind is Kind.ZERO_GRAD and ask.concerns(e, step.subject))
            or e.kind is Kind.ENGINE_STEP
        ),
    )
    if backward is None or backward.detail.get("wrapper") in (
        "rpc",
        "engine",
        "stepper",
        "optimizer",
    ):
        return None
    again = ask.first_after(
        world, backward, lambda e: e.kind in ask.STEPS and ask.same(e.subject, step.subject)
    )
    if again is None or again.node is not step.node:
        return None
    zeroing = any(
        e.kind is Kind.ZERO_GRAD and ask.concerns(e, step.subject)
        for e in world.events[step.index : again.index]
    )
    # The first backward of the loop comes before its first step.
    earlier = ask.last_before(world, step, lambda e: e.kind is Kind.BACKWARD)
    if zeroing or earlier is None or earlier.loops[-1:] != step.loops[-1:]:
        return None
    if ask.opaque_between(world, step, again, step.subject):
        return None
    if not ask.is_optimizer(step.subject):
        return None
    return next(
        (
            e
            for e in world.events[step.index + 1 : again.index]
            if e.kind is Kind.BACKWARD and e.node is earlier.node
        ),
        None,
    )


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
