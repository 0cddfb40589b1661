"""Where the parameters of a module are frozen as they must be, and modules that nothing uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import sites
from oomlint.analysis.modules import Class, Function, Module, written

PARAMETERS = frozenset({"parameters", "named_parameters"})
# `freeze(model)`, `model.freeze_parameters()`, `toggle_grad(model, False)`.
FREEZES = re.compile(
    r"(?<!un)(?<!un_)freeze(?!r)|(disable|toggle|set)_(requires_)?grads?$", re.IGNORECASE
)
# Through these a module meets every part of its own.
ALL_PARTS = re.compile(
    r"self\.(named_)?(children|modules)\(|self\._modules|getattr\(self,|vars\(self"
)


def is_frozen(module: Module, owner: ast.expr, function: Function | None) -> bool:
    """Whether the same function or class freezes a module's parameters, or those of a whole.

    A condition on their names does not matter: its author knows how to freeze.
    """
    text = f"{written(owner)}."
    return any(
        text.startswith((f"{frozen}.", f"{frozen}["))
        for scope in scopes(owner, function)
        for node in sites.own_nodes(scope.node if scope is not None else module.tree)
        for frozen in frozen_by(node)
    )


def scopes(owner: ast.expr, function: Function | None) -> Iterator[Function | None]:
    cls = sites.class_of(function)
    if cls is not None and written(owner).startswith("self."):
        yield from cls.methods.values()
    else:
        yield function


def frozen_by(node: ast.AST) -> Iterator[str]:
    """The modules whose parameters a node really freezes."""
    if isinstance(node, ast.For):
        if any(sets_flag(part, names_of(node.target)) for part in ast.walk(node)):
            yield from whole_of(node.iter)
    elif isinstance(node, ast.ListComp | ast.GeneratorExp):
        if sets_flag(node.elt, names_of(node.generators[0].target)):
            yield from whole_of(node.generators[0].iter)
    elif isinstance(node, ast.Call):
        yield from frozen_by_call(node)
    elif isinstance(node, ast.Assign) and is_off(node.value):
        for target in node.targets:
            whole, _, flag = written(target).rpartition(".")
            if flag == "requires_grad" and whole.endswith((".weight", ".bias")):
                yield whole.rpartition(".")[0]


def frozen_by_call(node: ast.Call) -> Iterator[str]:
    whole, _, name = written(node.func).rpartition(".")
    if name == "requires_grad_":
        if node.args and is_off(node.args[0]):
            yield whole
    elif FREEZES.search(name):
        if not any(isinstance(part, ast.Constant) and part.value is True for part in node.args):
            yield from (written(part) for part in node.args)
        # What a method of one's own does can be read.
        if whole not in ("", "self"):
            yield whole


def names_of(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def whole_of(node: ast.expr) -> Iterator[str]:
    """`model` of `model.parameters()`, whatever is around it."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            if part.func.attr in PARAMETERS:
                yield written(part.func.value)


def sets_flag(node: ast.AST, names: set[str]) -> bool:
    """Whether a node turns off the gradient of what one of these names holds."""
    if isinstance(node, ast.Assign) and is_off(node.value):
        return any(
            written(goal) == f"{name}.requires_grad" for goal in node.targets for name in names
        )
    return (
        isinstance(node, ast.Call)
        and bool(node.args)
        and is_off(node.args[0])
        and any(written(node.func) == f"{name}.requires_grad_" for name in names)
    )


def is_off(value: ast.expr) -> bool:
    """Whether a flag may be False."""
    return not (isinstance(value, ast.Constant) and bool(value.value))


def is_unused(module: Module, owner: ast.expr, function: Function | None) -> bool:
    """Whether a network only makes a part that its forward never meets: no gradient reaches it."""
    cls = sites.class_of(function)
    if cls is None or "forward" not in cls.methods or not isinstance(owner, ast.Attribute):
        return False
    if not sites.is_self_attribute(owner, function) or meets_all(cls):
        return False
    return not any(
        isinstance(node, ast.Attribute)
        and node.attr == owner.attr
        and isinstance(node.ctx, ast.Load)
        and not is_made_only(module, node)
        for node in module.index.by_kind.get(ast.Attribute, ())
    )


def meets_all(cls: Class) -> bool:
    return any(ALL_PARTS.search(method.code) for method in cls.methods.values())


def is_made_only(module: Module, node: ast.Attribute) -> bool:
    """`self.norm.requires_grad = False`, `init(self.norm.weight)` of a constructor."""
    inside = module.function_of(node)
    return (
        inside is not None
        and inside.name == "__init__"
        and isinstance(module.parents[node], ast.Attribute)
    )
