"""OOM304: gradients that are unscaled twice before the scaler is updated."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.modules import written
from oomlint.analysis.remedies import extra_guards, move, statement
from oomlint.analysis.state import Event, Kind, World
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class DoubleUnscale(Rule):
    """
    ## What it does
    Checks for `scaler.unscale_(optimizer)` that is called twice for one optimizer before
    `scaler.update()`, in one step or once for every micro-batch of an accumulation window.

    ## Why is this bad?
    The second call raises a RuntimeError; a scaler built with `enabled=False` hides it until mixed
    precision is switched on.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: which of the two calls was meant is the author's to say.

    ## Measured
    "unscale_() has already been called on this optimizer since the last update()"; gone after the
    fix.

    ## References
    - [PyTorch: GradScaler.unscale_](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "OOM304"
    name = "double-unscale"
    severity = Severity.ERROR
    tokens = (("unscale_(",),)
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for first in world.of(Kind.UNSCALE):
                second = unscaled_again(model, world, first)
                if second is None:
                    continue
                node = anchor(model, second, first)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    "gradients are unscaled a second time before `scaler.update()`: "
                    "this raises a RuntimeError"
                )
                path = [(first, "`unscale_`"), (second, "`unscale_` again")]
                yield finding(model, self, node, message, remedy(model, world, first, second), path)


def unscaled_again(model: Model, world: World, first: Event) -> Event | None:
    if first.subject is None or not ask.is_lasting(first.subject):
        return None
    second = ask.way(
        world,
        first,
        lambda e: (
            e.kind is Kind.UNSCALE
            and ask.same(e.subject, first.subject)
            and ask.same(e.value, first.value)
            and not ask.is_for_each(world, first, e)
        ),
        lambda e: (
            e.kind in (Kind.SCALER_UPDATE, Kind.SCALER_STEP)
            and ask.same(e.value, first.value)
            and (e.kind is Kind.SCALER_UPDATE or ask.same(e.subject, first.subject))
        ),
    )
    if second is None or ask.opaque_between(world, first, second, first.value):
        return None
    if second.node is first.node and not ask.windowed(model, first):
        return None
    return None if asks_first(second) else second


# The scaler's own record of what it has done: `OptState.UNSCALED`, a stage, a flag of that name.
STATE = re.compile(r"unscaled|OptState|stage", re.IGNORECASE)


def asks_first(unscale: Event) -> bool:
    """Whether the call looks up what was done already."""
    return any(STATE.search(written(guard.test)) for guard in unscale.guards)


def remedy(model: Model, world: World, first: Event, second: Event) -> Fix | None:
    """Drops the second call of one step; moves the call of every micro-batch to the step."""
    module = model.module
    if second.module is not module or first.function is not second.function:
        return None
    try:
        if first.node is not second.node:
            if extra_guards(first, second):
                return None
            edit = edits.delete(module, statement(second))
            return make_fix("Remove the second `unscale_`", [edit], Safety.UNSAFE)
    except edits.NoFix:
        return None
    step = ask.first_after(world, second, lambda e: e.kind is Kind.SCALER_STEP)
    if step is None or step.module is not module or step.function is not second.function:
        return None
    target = ask.clip_before(world, second, step) or step
    moved = move(module, statement(second), statement(target), behind=False)
    return make_fix("Unscale once, before the step", moved, Safety.UNSAFE) if moved else None
