"""OOM310: binary cross entropy of probabilities under CUDA's autocast."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits, losses
from oomlint.analysis.activations import SHAPING
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.losses import Refused
from oomlint.analysis.modules import Module
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity

# Calls that stay what they are when they are computed in float32.
PLAIN = SHAPING | {"sigmoid", "mean", "sum", "item", "detach", "ones_like", "zeros_like", "append"}


class UnsafeLossInAutocast(Rule):
    """
    ## What it does
    Checks for `F.binary_cross_entropy` and `nn.BCELoss` under CUDA's autocast.

    ## Why is this bad?
    CUDA's autocast refuses them with a RuntimeError: in float16 a probability close to 0 or 1 is
    rounded to it, and its logarithm or gradient is infinite. On the CPU the same code runs, so it
    fails only where it matters.

    ## Example
    ```python
    import torch
    import torch.nn.functional as F

    def train(model, loader, optimizer, scaler):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                probabilities = torch.sigmoid(model(inputs))
                loss = F.binary_cross_entropy(probabilities, targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch
    import torch.nn.functional as F

    def train(model, loader, optimizer, scaler):
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                probabilities = torch.sigmoid(model(inputs))
                with torch.autocast("cuda", enabled=False):
                    loss = F.binary_cross_entropy(probabilities.float(), targets.float())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: the loss is computed in float32. Better still, drop the sigmoid and use
    `binary_cross_entropy_with_logits`, which autocast knows.

    ## Measured
    "binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast" at the first loss; gone in a
    float32 island. The emulated device raises what CUDA raises.

    ## References
    - [PyTorch: prefer binary_cross_entropy_with_logits](https://docs.pytorch.org/docs/stable/amp.html#prefer-binary-cross-entropy-with-logits-over-binary-cross-entropy)
    """

    code = "OOM310"
    name = "unsafe-loss-in-autocast"
    severity = Severity.ERROR
    tokens = (("autocast",), ("binary_cross_entropy", "BCELoss"))
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        for found in losses.refused(model):
            message = (
                "CUDA's autocast refuses binary cross entropy of probabilities: this raises a "
                "RuntimeError"
            )
            path = [(found.autocast, "autocast")]
            if found.call is not None:
                path.append((found.call, "called under it"))
            path.append((found.site.node, "binary cross entropy"))
            node = found.site.node
            yield finding(model, self, node, message, remedy(model, found), path)


def remedy(model: Model, found: Refused) -> Fix | None:
    if found.call is not None:
        return None
    try:
        edit = in_float32(model.module, found)
    except edits.NoFix:
        return None
    return make_fix("Compute the loss in float32", edit, Safety.UNSAFE)


def in_float32(module: Module, found: Refused) -> list[Edit]:
    """Switches autocast off around the statement of the loss. Raises NoFix."""
    call = found.site.node
    statement = module.statement_of(call)
    if not isinstance(
        statement, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Return | ast.Expr
    ):
        raise edits.NoFix
    if found.autocast not in [*module_contexts(module, statement)]:
        raise edits.NoFix
    for part in ast.walk(statement):
        if isinstance(part, ast.Call) and part is not call:
            name = part.func.attr if isinstance(part.func, ast.Attribute) else ""
            if name not in PLAIN:
                raise edits.NoFix
    changed = list(edits.wrap_in(module, [statement], losses.island(module, found)))
    for position, keyword in ((0, "input"), (1, "target")):
        given = found.site.argument(position, keyword)
        if given is None:
            raise edits.NoFix
        if not module.segment(given).endswith(".float()"):
            changed += edits.append_call(module, given, ".float()")
    return changed


def module_contexts(module: Module, node: ast.AST) -> Iterator[ast.expr]:
    for parent in module.enclosing(node):
        if isinstance(parent, ast.With | ast.AsyncWith):
            yield from (item.context_expr for item in parent.items)
