"""Fixes that take an activation off an output, or put another function in its place."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from oomlint.analysis import edits
from oomlint.analysis.activations import Ending, Fed
from oomlint.analysis.edits import NoFix
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import own_nodes
from oomlint.rule import Edit

ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def unwrapped(module: Module, fed: Fed) -> list[Edit] | None:
    """Feeds the loss what the activations are applied to; None where no edit is clean."""
    try:
        return [edit for ending in fed.endings for edit in without(module, fed, ending)]
    except NoFix:
        return None


def without(module: Module, fed: Fed, ending: Ending) -> list[Edit]:
    if ending.place.module is not module:
        raise NoFix
    node = ending.place.node
    if ending.inner is None:
        return [drop_layer(module, node)]
    parent = module.parents[node]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
        if not isinstance(target, ast.Name):
            raise NoFix
        shared = has_other_readers(fed, ending, target.id)
        if isinstance(ending.inner, ast.Name) and ending.inner.id == target.id:
            if shared:
                raise NoFix
            return [edits.delete(module, parent)]
        if shared:
            return [instead_at_the_loss(module, fed, ending, target.id)]
    text = module.segment(ending.inner)
    enclosed = isinstance(parent, ast.Call | ast.keyword)
    bare = enclosed or (isinstance(parent, ast.Return | ast.Assign) and "\n" not in text)
    if not isinstance(ending.inner, ATOMS) and not bare:
        text = f"({text})"
    return [edits.replace(module, node, text)]


def has_other_readers(fed: Fed, ending: Ending, name: str) -> bool:
    """Whether the activated output is read by more than the loss, or than one `return`."""
    scope = ending.place.function
    behind = ending.place.node.end_lineno or ending.place.node.lineno
    at_loss = {id(node) for node in ast.walk(fed.site.node)}
    reads = [
        node
        for node in own_nodes(scope.node if scope is not None else ending.place.module.tree)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        if node.lineno > behind
    ]
    others = [node for node in reads if id(node) not in at_loss]
    return len(others) > (0 if len(others) < len(reads) else 1)


def instead_at_the_loss(module: Module, fed: Fed, ending: Ending, name: str) -> Edit:
    """The name stays for its other readers; the loss gets what was there before the activation."""
    given, inner = fed.output.node, ending.inner
    same = fed.output.function is ending.place.function
    if not (same and isinstance(given, ast.Name) and given.id == name):
        raise NoFix
    if not isinstance(inner, ast.Name) or inner.id == name:
        raise NoFix
    return edits.replace(module, given, inner.id)


def drop_layer(module: Module, node: ast.expr) -> Edit:
    """Removes the last layer of a Sequential, with the comma before it or with its `append`."""
    parent = module.parents[node]
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        if parent.func.attr == "append":
            return edits.delete(module, module.statement_of(parent))
    listed = parent.args if isinstance(parent, ast.Call) else None
    if isinstance(parent, ast.Tuple):
        # A pair of an OrderedDict.
        node, parent = parent, module.parents[parent]
        listed = parent.elts if isinstance(parent, ast.List) else None
    if not listed or listed[-1] is not node or len(listed) < 2:
        raise NoFix
    start, end = module.span(listed[-2])[1], module.span(node)[1]
    if "#" in module.source.text[start:end]:
        raise NoFix
    return Edit(start, end, "")


def renamed(module: Module, node: ast.expr, old: str, new: str) -> Edit:
    """Replaces the last name of `F.old(...)` or `F.old`; a name that was imported alone is kept."""
    called = node.func if isinstance(node, ast.Call) else node
    if not isinstance(called, ast.Attribute) or called.attr != old:
        raise NoFix
    end = module.span(called)[1]
    return Edit(end - len(old), end, new)


def all_renamed(module: Module, endings: Sequence[Ending], names: dict[str, str]) -> list[Edit]:
    found = []
    for ending in endings:
        node = ending.place.node
        called = node.func if isinstance(node, ast.Call) else node
        old = called.attr if isinstance(called, ast.Attribute) else ""
        if ending.place.module is not module or old not in names:
            raise NoFix
        if isinstance(called, ast.Attribute) and module.segment(called.value) == "self":
            raise NoFix
        found.append(renamed(module, node, old, names[old]))
    return found
