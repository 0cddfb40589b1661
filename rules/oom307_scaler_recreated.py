"""OOM307: a gradient scaler that is built anew while its optimizer goes on."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.remedies import move
from oomlint.analysis.state import Event, Kind, Loop, World
from oomlint.analysis.values import Thing
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class ScalerRecreated(Rule):
    """
    ## What it does
    Checks for a GradScaler that is built in every epoch or step, while the optimizer that it steps
    is the same.

    ## Why is this bad?
    The scaler learns the scale that the gradients bear. A new one starts from its first scale
    again: it skips steps until it has come down, and it never grows.

    ## Example
    ```python
    import torch

    def train(model, loader, optimizer, criterion, epochs):
        for epoch in range(epochs):
            scaler = torch.amp.GradScaler("cuda")
            for inputs, targets in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = criterion(model(inputs), targets)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, optimizer, criterion, epochs):
        scaler = torch.amp.GradScaler("cuda")
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                with torch.autocast("cuda"):
                    loss = criterion(model(inputs), targets)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    ```

    ## Fix safety
    Unsafe: steps that were skipped are taken.

    ## Measured
    With a scaler in every step and gradients that overflow at the first scale, no step is taken at
    all; with one scaler only the first ones are skipped.

    ## References
    - [PyTorch: GradScaler](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "OOM307"
    name = "scaler-recreated"
    severity = Severity.WARNING
    tokens = (("Scaler",), ("backward(",), ("step(",), ("for ", "while "))
    claims = (Claim.STEPS_TAKEN,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[ast.Call] = set()
        for world in model.worlds:
            for first, again in pairs(world):
                call = made_by(first)
                if call is None or call in seen or call not in model.module.parents:
                    continue
                loop = repeated(first, again)
                if loop is None:
                    continue
                seen.add(call)
                message = (
                    "every iteration builds a new gradient scaler for the same optimizer: the "
                    "scale starts over, and steps are skipped until it fits"
                )
                path: list[tuple[Event | ast.expr, str]] = [
                    (call, "new scaler"),
                    (first, "`scaler.step`"),
                    (again, "`scaler.step` of the next scaler, same optimizer"),
                ]
                yield finding(model, self, call, message, remedy(model, call, loop), path)


def pairs(world: World) -> Iterator[tuple[Event, Event]]:
    """Steps of one optimizer through two scalers that the same line made."""
    last: dict[tuple[str, ast.Call], Event] = {}
    for event in world.events:
        call = made_by(event)
        if call is None or event.subject is None or not ask.is_lasting(event.subject):
            continue
        place = (event.subject.key, call)
        before = last.get(place)
        if before is not None and not ask.same(before.value, event.value):
            yield before, event
        last[place] = event


def made_by(event: Event) -> ast.Call | None:
    if event.kind is not Kind.SCALER_STEP or not isinstance(event.value, Thing):
        return None
    return event.value.made


def repeated(first: Event, again: Event) -> Loop | None:
    """The loop whose next iteration the second event is in."""
    for one, other in zip(first.loops, again.loops, strict=False):
        if one.serial != other.serial:
            return None
        if one.iteration != other.iteration:
            return one
    return None


def remedy(model: Model, call: ast.Call, loop: Loop) -> Fix | None:
    """Moves the scaler before the loop, where it is a statement of its own that needs nothing."""
    module = model.module
    statement = module.statement_of(call)
    around = loop.node
    if not isinstance(around, ast.For | ast.AsyncFor | ast.While) or loop.module is not module:
        return None
    if statement not in around.body or not isinstance(statement, ast.Assign | ast.AnnAssign):
        return None
    bound = {
        part.id
        for part in ast.walk(around)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }
    needed = {part.id for part in ast.walk(call) if isinstance(part, ast.Name)}
    if statement.value is not call or needed & bound:
        return None
    try:
        moved = move(module, statement, around, behind=False)
    except edits.NoFix:
        return None
    return (
        make_fix("Build the scaler once, before the loop", moved, Safety.UNSAFE) if moved else None
    )
