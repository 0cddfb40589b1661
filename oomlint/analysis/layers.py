"""Which layer a Sequential ends with, as the code that builds it says."""

from __future__ import annotations

import ast

from oomlint.analysis.classes import dotted
from oomlint.analysis.modules import Function


def last_layer(node: ast.Call, function: Function | None) -> ast.expr | None:
    """The last layer of `nn.Sequential(...)`: one by one, from a list, or in an OrderedDict."""
    if not node.args:
        return None
    last = node.args[-1]
    if isinstance(last, ast.Starred):
        listed = last.value
        if isinstance(listed, ast.Name) and function is not None:
            return last_of_list(function, listed.id)
        return listed.elts[-1] if isinstance(listed, ast.List) and listed.elts else None
    if len(node.args) == 1 and isinstance(last, ast.Call) and last.args:
        listed = last.args[0]
        if (dotted(last.func) or "").endswith("OrderedDict") and isinstance(listed, ast.List):
            pair = listed.elts[-1] if listed.elts else None
            return pair.elts[1] if isinstance(pair, ast.Tuple) and len(pair.elts) == 2 else None
    return last


def last_of_list(function: Function, name: str) -> ast.expr | None:
    """What was put last into a list of layers, where no condition decides that."""
    last: ast.expr | None = None
    for statement in function.node.body:
        added = added_to(statement, name)
        if added is not None:
            last = added
        elif any(added_to(part, name) is not None for part in ast.walk(statement)):
            last = None
    return last


def added_to(node: ast.AST, name: str) -> ast.expr | None:
    """The last element that `x = [...]`, `x += [...]` or `x.append(...)` leaves in a list."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = node.value.func
        if isinstance(called, ast.Attribute) and called.attr in ("append", "extend"):
            if isinstance(called.value, ast.Name) and called.value.id == name and node.value.args:
                given = node.value.args[0]
                return given if called.attr == "append" else last_of_display(given)
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AugAssign):
        targets = [node.target]
    if isinstance(node, ast.Assign | ast.AugAssign) and any(
        isinstance(target, ast.Name) and target.id == name for target in targets
    ):
        return last_of_display(node.value)
    return None


def last_of_display(node: ast.expr) -> ast.expr:
    return node.elts[-1] if isinstance(node, ast.List) and node.elts else node
