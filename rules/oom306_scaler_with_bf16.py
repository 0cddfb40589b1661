"""OOM306: a gradient scaler whose losses are all computed in bfloat16."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.autocast import forwards_of, precision_at
from oomlint.analysis.modules import Module, written
from oomlint.analysis.precision import plain_scaler
from oomlint.analysis.state import Event, Kind
from oomlint.analysis.values import scaler_of
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity

# A condition that chooses between precisions: the scaler is made for another one.
CHOICE = re.compile(r"fp16|float16|half|dtype|precision|bf16|bits|scaler", re.IGNORECASE)


class ScalerWithBf16(Rule):
    """
    ## What it does
    Checks for a GradScaler whose forward passes all run under bfloat16 autocast, and that no
    choice of precision switches off.

    ## Why is this bad?
    Scaling keeps small gradients of float16 from becoming zero. bfloat16 has the range of float32,
    so the scaler only adds work to every step: gradients are multiplied, divided and checked, and
    the host waits for the answer. Gradients that are bfloat16 themselves cannot be unscaled on CUDA
    by every release of torch.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda", enabled=False)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: steps that the scaler would skip, because a gradient is infinite, are taken.

    ## Measured
    The calls that scale, unscale and check gradients fall from two a step to none; the gradient
    norm stays what it was. Memory does not change.

    ## References
    - [PyTorch: automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html)
    """

    code = "OOM306"
    name = "scaler-with-bf16"
    severity = Severity.WARNING
    tokens = (("Scaler",), ("bfloat16", "cpu"), ("autocast",), ("backward(",))
    claims = (Claim.SCALER_AT_REST,)

    def check(self, model: Model) -> Iterator[Finding]:
        served: dict[ast.Call, set[str]] = {}
        proof: dict[ast.Call, Event] = {}
        for world in model.worlds:
            for backward in world.events:
                call = scaler_made_here(model, backward)
                if call is None:
                    continue
                forwards = forwards_of(world, backward)
                found = {precision_at(world, event)[0] for event in forwards} or {""}
                served.setdefault(call, set()).update(found)
                if forwards:
                    proof.setdefault(call, forwards[-1])
        for call, precisions in served.items():
            if precisions - {"off"} != {"bfloat16"} or is_chosen(model.module, call):
                continue
            message = (
                "a gradient scaler has nothing to do for bfloat16, whose range is that of float32: "
                "it only adds work to every step"
            )
            path: list[tuple[Event | ast.expr, str]] = [
                (call, "gradient scaler"),
                (proof[call], "forward in bfloat16"),
            ]
            yield finding(model, self, call, message, remedy(model, call), path)


def scaler_made_here(model: Model, event: Event) -> ast.Call | None:
    """The call in this file that made the scaler of a backward."""
    if event.kind is not Kind.BACKWARD or event.value is None:
        return None
    call = plain_scaler(scaler_of(event.value))
    return call if call in model.module.parents else None


def is_chosen(module: Module, call: ast.Call) -> bool:
    """Whether a condition on the precision decides if there is a scaler, or if it is enabled."""
    asked = [test for test, _ in sites.conditions_around(module, call)]
    asked += [keyword.value for keyword in call.keywords if keyword.arg == "enabled"]
    function = module.function_of(call)
    known = [value for test in asked for value, _ in sites.values_of(module, test, function)]
    return any(CHOICE.search(written(test)) for test in (*asked, *known))


def remedy(model: Model, call: ast.Call) -> Fix | None:
    try:
        edit = switched_off(model.module, call)
    except edits.NoFix:
        return None
    return make_fix("Switch the scaler off", [edit], Safety.UNSAFE)


def switched_off(module: Module, call: ast.Call) -> Edit:
    for keyword in call.keywords:
        if keyword.arg == "enabled":
            return edits.replace(module, keyword.value, "False")
    return edits.add_keyword(module, call, "enabled=False")
