"""OOM606: a search for unused parameters in a model that uses all of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites, wiring
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Function, Module
from oomlint.analysis.sites import CHAINING, MAX_ALIASES
from oomlint.analysis.synchronisation import DDP
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class UnusedParameterSearch(Rule):
    """
    ## What it does
    Checks for `DistributedDataParallel(..., find_unused_parameters=True)` around a model of which
    every forward uses every parameter.

    ## Why is this bad?
    After every forward the whole graph is walked for parameters that it does not reach, and the
    ranks tell each other what they found. Where all are used, that is time for nothing.

    ## Known problems
    Only models whose class says plainly that all parts are used are looked at: `torch.nn`'s own,
    and classes of the project whose `forward` has no branches.

    ## Example
    ```python
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(16, 32)
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.body(x).relu())

    model = DistributedDataParallel(Network(), find_unused_parameters=True)
    ```

    Use instead:
    ```python
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(16, 32)
            self.head = nn.Linear(32, 4)

        def forward(self, x):
            return self.head(self.body(x).relu())

    model = DistributedDataParallel(Network())
    ```

    ## Fix safety
    Unsafe: a loss that leaves out a part of the output raises an error from now on.

    ## Measured
    Two ranks with gloo: one search a step before the fix, none after it, and the same gradients.
    How long a search takes is not measured.

    ## References
    - [PyTorch: DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html)
    """

    code = "OOM606"
    name = "unused-parameter-search"
    severity = Severity.WARNING
    tokens = (("find_unused_parameters",), ("DistributedDataParallel",))
    claims = (Claim.SEARCHES_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in sites.named(module, "DistributedDataParallel"):
            asked = next((k for k in site.node.keywords if k.arg == "find_unused_parameters"), None)
            if asked is None or not sites.is_true(asked.value):
                continue
            wrapped = site.argument(0, "module")
            if wrapped is None or not DDP.fullmatch(site.qualified):
                continue
            if sites.is_true(site.argument(-1, "static_graph")):
                continue  # the search is made once
            if uses_all(model, wrapped, site.node, site.function):
                message = "every forward uses every parameter: the search for others finds none"
                yield finding(model, self, site.node, message, remedy(module, site.node, asked))


def uses_all(
    model: Model, node: ast.expr, wrap: ast.Call, function: Function | None, depth: int = 0
) -> bool:
    """Whether a model's every parameter is certainly used, whatever it may be."""
    module = model.module
    if depth > MAX_ALIASES:
        return False
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in CHAINING:
            return uses_all(model, node.func.value, wrap, function, depth + 1)
        called = sites.qualified_name(module, node.func, function)
        if called.endswith(".convert_sync_batchnorm") and node.args:
            return uses_all(model, node.args[0], wrap, function, depth + 1)
        return wiring.is_whole(model.project, module, node, function)
    if not isinstance(node, ast.Name):
        return False
    known = sites.bindings(module, node.id, function)
    if not known or None in known or is_altered(module, node.id):
        return False
    # `model = model.cuda()` and `model = DDP(model)` say nothing new.
    first = [v for v in known if v is not None and not mentions(v, node.id)]
    others = [v for v in known if v is not None and mentions(v, node.id) and v is not wrap]
    return (
        len(first) == 1
        and all(is_same(module, value, node.id, function) for value in others)
        and uses_all(model, first[0], wrap, function, depth + 1)
    )


def mentions(node: ast.expr, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def is_same(module: Module, value: ast.expr, name: str, function: Function | None) -> bool:
    """`model.cuda()`, or the model in a wrapper that changes no parameter."""
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr in CHAINING:
        return isinstance(value.func.value, ast.Name) and value.func.value.id == name
    called = sites.qualified_name(module, value.func, function)
    return called.endswith(".convert_sync_batchnorm") or DDP.fullmatch(called) is not None


def is_altered(module: Module, name: str) -> bool:
    """Whether the file gives the model other parts, or calls a part of it alone."""
    for node in module.index.by_kind.get(ast.Attribute, ()):
        assert isinstance(node, ast.Attribute)
        if not isinstance(node.ctx, ast.Store):
            continue
        root: ast.expr = node
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if isinstance(root, ast.Name) and root.id == name:
            return True
    return False


def remedy(module: Module, node: ast.Call, asked: ast.keyword) -> Fix | None:
    try:
        edit = edits.drop_argument(module, node, asked)
    except edits.NoFix:
        return None
    return make_fix("Do not search for unused parameters", [edit], Safety.UNSAFE)
