"""OOM107: a backward with `create_graph=True`, whose graph nothing frees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis.answers import finding
from oomlint.analysis.debugging import is_test
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site, is_true, loops_around, sites
from oomlint.analysis.walks import backwards, flag
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import AnyOf


class CreateGraphBackward(Rule):
    """
    ## What it does
    Checks for `loss.backward(create_graph=True)` after which no gradient is set to None.

    ## Why is this bad?
    The gradient of each parameter then holds its graph, and the graph holds the parameter: a cycle
    that Python's garbage collector cannot see. The model and all activations of that backward stay
    on the device even when the last name for them is gone. `torch.autograd.grad` returns the
    gradients with their graph and leaves `.grad` alone.

    ## Example
    ```python
    def curvature(model, loss, vector):
        loss.backward(create_graph=True)
        slope = sum((p.grad * v).sum() for p, v in zip(model.parameters(), vector))
        return slope
    ```

    Use instead:
    ```python
    import torch

    def curvature(model, loss, vector):
        gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        slope = sum((g * v).sum() for g, v in zip(gradients, vector))
        return slope
    ```

    ## Measured
    Eight models of 18 MiB that were dropped left 400 MiB behind after a garbage collection, and
    16 MiB where their gradients were set to None. With a penalty on the gradient of the inputs,
    device bytes grow with every batch before the repair and not at all after it.

    ## References
    - [PyTorch: Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    """

    code = "OOM107"
    name = "create-graph-backward"
    severity = Severity.WARNING
    tokens = (("backward",), ("True",))
    token_pattern = AnyOf(
        (
            re.compile(rb"create_graph\s*=\s*True\b"),
            re.compile(rb"backward\s*\([^()]*,[^()]*,\s*True\b"),
        )
    )
    claims = (Claim.GROWTH_STOPS, Claim.NODES_STOP)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in backwards(module):
            if not is_true(flag(site, "create_graph")) or is_test(module, site.node):
                continue
            if freed_after(module, site) or needed_by_optimizer(module, site):
                continue
            message = (
                "`create_graph=True` ties each parameter and its gradient into a cycle that is"
                " never collected: the whole graph stays in memory until `.grad` is set to None"
            )
            yield finding(model, self, site.node, message)


def freed_after(module: Module, site: Site) -> bool:
    """Whether gradients are set to None below the backward, in its function or in one around it."""
    scope: Function | None = site.function
    row = site.node.lineno
    while True:
        if any(place > row for place in frees(module, scope)):
            return True
        if scope is None:
            return False
        scope = scope.parent


def frees(module: Module, function: Function | None) -> Iterator[int]:
    """Rows of a function, or of the script, at which gradients are set to None."""
    for site in sites(module):
        if site.method in ("zero_grad", "reset_grad", "clear_grad") and site.function is function:
            if not keeps_zeros(site):
                yield site.node.lineno
    root = module.tree if function is None else function.node
    for node in ast.walk(root):
        if isinstance(node, ast.Assign) and written(node.value) == "None":
            if any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in node.targets):
                yield node.lineno
        if isinstance(node, ast.Delete):
            if any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in node.targets):
                yield node.lineno


def keeps_zeros(site: Site) -> bool:
    value = site.argument(0, "set_to_none")
    return isinstance(value, ast.Constant) and value.value is False


# Optimizers of the second order walk the graph of `.grad` themselves.
SECOND_ORDER = re.compile(r"hess|sophia|newton|kfac|k_fac|curv|second_?order", re.IGNORECASE)


def needed_by_optimizer(module: Module, site: Site) -> bool:
    """Whether the loop zeroes at its top, for a step that needs the graph of the gradients."""
    loops = loops_around(module, site.node)
    names = [*module.imports.values(), site.function.code if site.function else ""]
    if not loops or not any(SECOND_ORDER.search(name) for name in names):
        return False
    first, last = loops[0].lineno, loops[0].end_lineno or loops[0].lineno
    steps = any(s.method == "step" and first <= s.node.lineno <= last for s in sites(module))
    return steps and any(first <= row <= last for row in frees(module, site.function))
