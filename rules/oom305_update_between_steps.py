"""OOM305: a gradient scaler that is updated between the steps of two optimizers."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.remedies import argument_text, extra_guards, here, move, statement
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import scaler_of
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class UpdateBetweenSteps(Rule):
    """
    ## What it does
    Checks for `scaler.update()` between the steps of two optimizers whose gradients were both
    scaled before it.

    ## Why is this bad?
    The update may change the scale, and it forgets what was unscaled. The second optimizer's
    gradients are then divided by another scale than the one they carry; where `unscale_` was
    called for it before, they are divided by the scale twice and all but vanish.

    ## Example
    ```python
    import torch

    def train(encoder, decoder, loader, criterion):
        first = torch.optim.SGD(encoder.parameters(), lr=0.1)
        second = torch.optim.SGD(decoder.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            first.zero_grad()
            second.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(decoder(encoder(inputs)), targets)
            scaler.scale(loss).backward()
            scaler.step(first)
            scaler.update()
            scaler.step(second)
    ```

    Use instead:
    ```python
    import torch

    def train(encoder, decoder, loader, criterion):
        first = torch.optim.SGD(encoder.parameters(), lr=0.1)
        second = torch.optim.SGD(decoder.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            first.zero_grad()
            second.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(decoder(encoder(inputs)), targets)
            scaler.scale(loss).backward()
            scaler.step(first)
            scaler.step(second)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: the second optimizer's updates change.

    ## Measured
    With `unscale_` before the update, the second optimizer's update is 1/65536 of its true size;
    with the update behind both steps it is true. Without `unscale_` it is off by a factor of two
    in every step in which the scale changes.

    ## References
    - [PyTorch: working with multiple losses and optimizers](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#working-with-multiple-models-losses-and-optimizers)
    """

    code = "OOM305"
    name = "update-between-steps"
    severity = Severity.ERROR
    tokens = (("update(",), ("step(",), ("Scaler", "scaler", ".scale(", "unscale_("))
    claims = (Claim.UPDATE_RESTORED, Claim.ERROR_GONE)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for update in world.events:
                late = step_behind(world, update)
                if late is None:
                    continue
                first, backward, step = late
                node = anchor(model, update, step)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                unscale = unscaled_before(world, backward, update, step)
                path = [
                    (backward, "scaled backward"),
                    *([(unscale, "`unscale_`")] if unscale else []),
                    (first, "first `scaler.step`"),
                    (update, "`scaler.update`"),
                    (step, "`scaler.step` on gradients of the old scale"),
                ]
                what = argument_text(step) or "the second optimizer"
                fix = remedy(model, world, update, step)
                yield finding(model, self, node, message(what, unscale), fix, path)


def message(optimizer: str, unscale: Event | None) -> str:
    if unscale is not None:
        return (
            f"`scaler.update()` forgets that the gradients of `{optimizer}` are unscaled: "
            "its step divides them by the scale again"
        )
    return (
        f"`scaler.update()` comes before the step of `{optimizer}`: when the scale changes, "
        "its gradients are divided by another scale than the one they carry"
    )


def step_behind(world: World, update: Event) -> tuple[Event, Event, Event] | None:
    """Step before, backward before both, and the step that comes after an update too early."""
    if update.kind is not Kind.SCALER_UPDATE:
        return None
    step = ask.way(
        world,
        update,
        lambda e: e.kind is Kind.SCALER_STEP and ask.same(e.value, update.value),
        lambda e: e.kind in (Kind.BACKWARD, Kind.GRADIENT_TAKEN, Kind.ENGINE_STEP),
    )
    if step is None or ask.opaque_between(world, update, step, update.value):
        return None
    if ask.opaque_between(world, update, step, step.subject):
        return None
    first = previous_step(world, update, step)
    if first is None or ask.disagree(first, update, step):
        return None
    backward = ask.last_before(world, first, lambda e: e.kind is Kind.BACKWARD)
    if backward is None or backward.value is None:
        return None
    if not ask.same(scaler_of(backward.value), update.value):
        return None
    return first, backward, step


def previous_step(world: World, update: Event, step: Event) -> Event | None:
    """Another optimizer's step since the backward; None where this one has stepped already."""
    found = None
    for event in ask.before(world, update, lambda e: e.kind is Kind.BACKWARD):
        if event.kind is Kind.SCALER_STEP and ask.same(event.value, update.value):
            if ask.same(event.subject, step.subject):
                return None
            found = found or event
    return found


def unscaled_before(world: World, backward: Event, update: Event, step: Event) -> Event | None:
    for event in world.events[backward.index : update.index]:
        if event.kind is Kind.UNSCALE and ask.same(event.subject, step.subject):
            return event
    return None


def one_call(one: Event, other: Event) -> bool:
    """Whether two events happen in one run of their function."""
    return [call.node for call in one.calls] == [call.node for call in other.calls]


def remedy(model: Model, world: World, update: Event, step: Event) -> Fix | None:
    """The update moves behind the last step; it goes where another one stands there already."""
    module = model.module
    if not here(module, update, step) or not one_call(update, step):
        return None
    last, again = step, None
    for event in ask.after(world, step, lambda e: e.kind is Kind.BACKWARD):
        if event.kind is Kind.SCALER_STEP and ask.same(event.value, update.value):
            last, again = event, None
        elif event.kind is Kind.SCALER_UPDATE and ask.same(event.value, update.value):
            again = again or event
    if not here(module, step, last) or extra_guards(update, step) or extra_guards(last, update):
        return None
    if again is not None and again.node is not update.node:
        try:
            edit = edits.delete(module, statement(update))
        except edits.NoFix:
            return None
        return make_fix("Remove the update between the steps", [edit], Safety.UNSAFE)
    target = statement(last)
    if last.node.lineno < update.node.lineno and update.loops:
        # One loop over the optimizers holds both.
        loop = update.loops[-1].node
        target = module.statement_of(loop)
    moved = move(module, statement(update), target, behind=True)
    return (
        make_fix("Update the scaler behind the last step", moved, Safety.UNSAFE) if moved else None
    )
