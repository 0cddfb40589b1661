"""OOM303: an optimizer that steps on scaled gradients, or a scaler that steps on unscaled ones."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, edits, scaling
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.remedies import receiver_text, statement
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Value, scaler_of
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class UnscaledStep(Rule):
    """
    ## What it does
    Checks for `optimizer.step()` after a scaled backward with no `unscale_` in between, for
    `optimizer.step()` next to `scaler.step(optimizer)`, and for `scaler.step(optimizer)` after a
    backward that was not scaled.

    ## Why is this bad?
    The optimizer sees gradients that are too large (or, after an unscaled backward, too small) by
    the loss scale, 65536 at the start; and an overflow is no longer noticed. Adam hides the size of
    the gradients, SGD, clipping and weight decay do not.

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
            optimizer.step()
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
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: the parameters are updated with their true gradients from then on, so results change.

    ## Measured
    The norm of one SGD update is the loss scale times its true value before the fix.

    ## References
    - [PyTorch: automatic mixed precision](https://docs.pytorch.org/docs/stable/notes/amp_examples.html)
    """

    code = "OOM303"
    name = "unscaled-step"
    severity = Severity.ERROR
    tokens = (("step(",), (".scale(", "Scaler", "scaler"), ("backward(",))
    claims = (Claim.UPDATE_RESTORED, Claim.ERROR_GONE)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for step in ask.steps(world):
                if not step.detail.get("stepper"):
                    yield from self.judge(model, world, step, seen)

    def judge(self, model: Model, world: World, step: Event, seen: set[int]) -> Iterator[Finding]:
        backwards = scaling.feeding(world, step)
        if not backwards or ask.disagree(backwards[0], step):
            return
        scalers = [scaler_of(event.value) if event.value else None for event in backwards]
        if step.kind is Kind.STEP and all(scaler is not None for scaler in scalers):
            message = "the optimizer steps on gradients that still carry the loss scale"
            path = [(backwards[0], "scaled backward"), (step, "step without the scaler")]
            fix = step_through(model, step, scalers[0], world)
            node = anchor(model, step, backwards[0])
        elif step.kind is Kind.SCALER_STEP and not any(scalers):
            if scaling.mixed(model, backwards[0]):
                return
            message = "the backward is not scaled, but `scaler.step` divides by the loss scale"
            path = [(backwards[0], "backward without the scaler"), (step, "`scaler.step`")]
            fix = None
            node = anchor(model, backwards[0], step)
        else:
            return
        if node is None or id(node) in seen:
            return
        seen.add(id(node))
        yield finding(model, self, node, message, fix, path)


def step_through(model: Model, step: Event, scaler: Value | None, world: World) -> Fix | None:
    """`scaler.step(optimizer)` for `optimizer.step()`, where the function names the scaler."""
    optimizer = receiver_text(step)
    twin = [
        event
        for event in world.events[max(0, step.index - 4) : step.index + 5]
        if event.kind is Kind.SCALER_STEP
        and ask.same(event.subject, step.subject)
        and event.loops == step.loops
    ]
    if twin and step.module is model.module:
        try:
            edit = edits.delete(model.module, statement(step))
        except edits.NoFix:
            return None
        title = "Remove the step without the scaler"
        return make_fix(title, [edit], Safety.UNSAFE)
    names = [
        receiver_text(event)
        for event in world.of(Kind.SCALER_UPDATE, Kind.UNSCALE, Kind.SCALER_STEP)
        if ask.same_function(event, step) and ask.same(event.value, scaler)
    ]
    if step.module is not model.module or optimizer is None or not names or names[0] is None:
        return None
    call = f"{names[0]}.step({optimizer})"
    edit = edits.replace(model.module, step.node, call)
    return make_fix(f"Step with `{call}`", [edit], Safety.UNSAFE)
