"""Parts of a network whose output its own forward only uses detached, graph and all beside it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import copies, edits, frozen, knowledge, sites
from oomlint.analysis.answers import make_fix
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.rule import Fix, Safety


@dataclass(frozen=True, slots=True)
class WastedPart:
    """`t = self.teacher(x)` of which only `t.detach()` is used, while another part is trained."""

    call: ast.Call
    statement: ast.Assign
    cut: ast.Call


def wasted_parts(module: Module) -> Iterator[WastedPart]:
    if ".detach()" not in module.source.text or frozen.freezes(module):
        return
    for cls in module.class_by_node.values():
        forward = cls.methods.get("forward")
        if forward is None or ".detach()" not in forward.code or turns_off(forward):
            continue
        if copies.is_module(module, cls):
            yield from parts_of(module, cls, forward)


def parts_of(module: Module, cls: Class, forward: Function) -> Iterator[WastedPart]:
    nodes = list(sites.own_nodes(forward.node))
    calls = [node for node in nodes if isinstance(node, ast.Call) and is_part(cls, forward, node)]
    for node in nodes:
        if not isinstance(node, ast.Assign) or node.value not in calls or len(node.targets) != 1:
            continue
        name, call = node.targets[0], node.value
        if not isinstance(name, ast.Name) or not isinstance(call, ast.Call):
            continue
        if not any(written(other.func) != written(call.func) for other in calls):
            continue
        if any(turns_off_in(context) for context in sites.contexts_around(module, call)):
            continue
        cut = only_detached(module, nodes, name.id)
        if cut is not None:
            yield WastedPart(call, node, cut)


def is_part(cls: Class, forward: Function, node: ast.Call) -> bool:
    """Whether a call runs a network that the object holds, and no method of its own."""
    called = node.func
    if not isinstance(called, ast.Attribute) or not sites.is_self_attribute(called, forward):
        return False
    return called.attr not in cls.methods and not knowledge.LOSS_NAME.search(called.attr)


def only_detached(module: Module, nodes: list[ast.AST], name: str) -> ast.Call | None:
    """The `detach()` of a name that is bound once and of which nothing else is used."""
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
    reads = [use for use in uses if isinstance(use.ctx, ast.Load)]
    if not reads or len(uses) != len(reads) + 1:
        return None
    found = [detach_of(module, read) for read in reads]
    return found[0] if all(call is not None for call in found) else None


def detach_of(module: Module, read: ast.Name) -> ast.Call | None:
    method = module.parents[read]
    call = module.parents[method]
    is_detach = isinstance(method, ast.Attribute) and method.attr == "detach"
    return call if is_detach and isinstance(call, ast.Call) else None


def turns_off(function: Function) -> bool:
    return any(turns_off_in(decorator) for decorator in function.decorators)


def turns_off_in(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return bool(knowledge.UNSURE_CONTEXT.search(written(called)))


def without_graph(module: Module, found: WastedPart) -> Fix | None:
    name, imports = edits.name_in_file(module, "torch.no_grad")
    try:
        changes = edits.wrap_in(module, [found.statement], f"with {name}():")
    except edits.NoFix:
        return None
    return make_fix(f"Run this forward under `{name}()`", [*imports, *changes], Safety.SAFE)
