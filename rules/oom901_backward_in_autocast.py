"""OOM901: a backward pass that runs under autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.autocast import OFF, precision_at
from oomlint.analysis.modules import written
from oomlint.analysis.remedies import statement
from oomlint.analysis.state import Event, Kind
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity

# Calls whose result autocast does not change.
INDIFFERENT = frozenset(
    "backward scale step update zero_grad unscale_ clip_grad_norm_ clip_grad_value_ parameters item"
    " detach append print format len get_scale get_last_lr set_postfix log info add_scalar float"
    " manual_backward named_parameters values items empty_cache synchronize".split()
)


class BackwardInAutocast(Rule):
    """
    ## What it does
    Checks for a backward pass inside of an autocast block.

    ## Why is this bad?
    Only the forward and the loss belong there: each operator's backward runs in the precision of
    its forward anyway. With torch.compile, and in custom autograd functions without `custom_bwd`,
    operators of the backward are cast as well, where scaled gradients can overflow.

    ## Example
    ```python
    import torch

    def train(model, loader, optimizer, scaler, criterion):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(inputs), targets)
                scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, optimizer, scaler, criterion):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: the gradients of torch's own operators stay bit for bit the same, those of custom
    functions and of compiled models may change, which is what it is for.

    ## Measured
    None in eager mode: gradients, memory and time are the same, which is why this is advice and off
    by default. With a custom autograd function whose backward multiplies matrices in float32, the
    scaler skips steps before that it takes after.

    ## References
    - [PyTorch: automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html#torch.autocast)
    """

    code = "OOM901"
    name = "backward-in-autocast"
    severity = Severity.ADVICE
    tokens = (("backward(",), ("autocast",))
    claims = (Claim.STEPS_TAKEN,)
    default = False

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for event in world.events:
                if event.kind is not Kind.BACKWARD:
                    continue
                if precision_at(world, event)[0] in ("", OFF):
                    continue
                node = anchor(model, event)
                if node is None or id(node) in seen or not is_entered_here(model, event, node):
                    continue
                seen.add(id(node))
                message = (
                    "the backward pass runs under autocast: eager gradients are the same, but "
                    "compiled and custom functions compute theirs in the lower precision too"
                )
                yield finding(model, self, node, message, remedy(model, event))


def is_entered_here(model: Model, event: Event, node: ast.expr | ast.stmt) -> bool:
    """Whether the backward or the autocast around its call stands in this file."""
    contexts = sites.contexts_around(model.module, node)
    return event.module is model.module or any("autocast" in written(c) for c in contexts)


def remedy(model: Model, event: Event) -> Fix | None:
    if event.module is not model.module:
        return None
    try:
        found = behind_block(model, statement(event))
    except edits.NoFix:
        return None
    return make_fix("Move the backward behind the autocast block", found, Safety.UNSAFE)


def behind_block(model: Model, first: ast.stmt) -> list[Edit]:
    """Takes a statement and those after it out of the `with` whose body they end. Raises NoFix."""
    module = model.module
    block = module.parents[first]
    if not isinstance(block, ast.With) or len(block.items) > 1 or block.body[0] is first:
        raise edits.NoFix
    moved = block.body[block.body.index(first) :]
    for part in (node for stmt in moved for node in ast.walk(stmt)):
        if isinstance(part, ast.Call) and called(part) not in INDIFFERENT:
            raise edits.NoFix
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult | ast.Pow):
            raise edits.NoFix
    return edits.outdent(module, moved)


def called(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
