"""OOM302: a gradient scaler that steps again without having been updated."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.remedies import receiver_text, statement
from oomlint.analysis.state import Event, Kind, World
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class MissingScalerUpdate(Rule):
    """
    ## What it does
    Checks for `scaler.step(optimizer)` that is reached again with no `scaler.update()` in between,
    on any path, the ones that skip a step included.

    ## Why is this bad?
    The second `step` (or `unscale_`) raises a RuntimeError, and until then the scale never adapts.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Safe: without the update the second step raises.

    ## Measured
    "step() has already been called since the last update()" at the second step; gone with the
    update.

    ## References
    - [PyTorch: GradScaler](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "OOM302"
    name = "missing-scaler-update"
    severity = Severity.ERROR
    tokens = (("step(",), ("Scaler", "scaler", ".scale(", "unscale_("))
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for step in world.of(Kind.SCALER_STEP, Kind.UNSCALE):
                again = (
                    stepped_again(world, step)
                    or skipped_update(model, world, step)
                    or next_window(model, world, step)
                )
                if again is None:
                    continue
                node = anchor(model, step)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                what = "`scaler.step`" if step.kind is Kind.SCALER_STEP else "`unscale_`"
                message = (
                    f"{what} is reached again without `scaler.update()`: "
                    "the second time raises a RuntimeError"
                )
                how = "the next window" if again.kind is Kind.BACKWARD else "reached again"
                path = [(step, what), (again, f"{how}, not updated in between")]
                fix = update_after(model, step) if not updated_somewhere(model, step) else None
                yield finding(model, self, node, message, fix, path)


def stepped_again(world: World, step: Event) -> Event | None:
    """The next `scaler.step` on the same objects, with no update on the way."""
    if step.kind is not Kind.SCALER_STEP or not ask.is_lasting(step.subject):
        return None
    again = ask.way(
        world,
        step,
        lambda e: (
            e.kind is Kind.SCALER_STEP
            and ask.same(e.value, step.value)
            and ask.same(e.subject, step.subject)
            and not ask.is_for_each(world, step, e)
        ),
        lambda e: e.kind is Kind.SCALER_UPDATE and ask.same(e.value, step.value),
    )
    if again is None or ask.opaque_between(world, step, again, step.value):
        return None
    # Several optimizers share one update: the last of their steps is the one that lacks it.
    for other in world.of(Kind.SCALER_STEP):
        if step.index < other.index < again.index and ask.same(other.value, step.value):
            if other.loops == step.loops:
                return None
    return again


def next_window(model: Model, world: World, step: Event) -> Event | None:
    """The backward that begins the next window, where nobody ever updates the scaler.

    A world ends before the step of a second window.
    """
    window = next((w for w in ask.windows(world) if w.step is step), None)
    if step.kind is not Kind.SCALER_STEP or window is None or step.value is None:
        return None
    if any(other.of(Kind.SCALER_UPDATE) for other in model.worlds):
        return None
    loop = window.loop.node
    again = ask.first_after(
        world, step, lambda e: e.kind is Kind.BACKWARD and any(m.node is loop for m in e.loops)
    )
    if again is None or ask.opaque_between(world, step, again, step.value):
        return None
    return again


def skipped_update(model: Model, world: World, unscale: Event) -> Event | None:
    """The next `unscale_` after one whose step, and with it the update, was skipped."""
    if unscale.kind is not Kind.UNSCALE or not ask.is_lasting(unscale.subject):
        return None
    again = ask.way(
        world,
        unscale,
        lambda e: (
            e.node is unscale.node
            and ask.same(e.subject, unscale.subject)
            and ask.same(e.value, unscale.value)
        ),
        lambda e: e.kind in (Kind.SCALER_UPDATE, Kind.SCALER_STEP),
    )
    if again is None or unscale.subject is None or ask.windowed(model, unscale):
        return None
    if ask.opaque_between(world, unscale, again, unscale.value):
        return None
    if ask.is_for_each(world, unscale, again):
        return None
    return again if ask.steps_elsewhere(model, unscale) else None


def updated_somewhere(model: Model, step: Event) -> bool:
    """Whether the function updates the scaler elsewhere: a second update would raise."""
    return any(
        ask.same_function(event, step)
        for world in model.worlds
        for event in world.of(Kind.SCALER_UPDATE)
    )


def update_after(model: Model, step: Event) -> Fix | None:
    scaler = receiver_text(step)
    if step.kind is not Kind.SCALER_STEP or step.module is not model.module or scaler is None:
        return None
    try:
        edit = edits.insert_after(model.module, statement(step), [f"{scaler}.update()"])
    except edits.NoFix:
        return None
    return make_fix(f"Insert `{scaler}.update()` after the step", [edit], Safety.SAFE)
