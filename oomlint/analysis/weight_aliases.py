"""Expressions that hold the tensors of a state_dict, and the names that hold such expressions."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import qualified_name

SHALLOW = frozenset({"dict", "copy.copy", "collections.OrderedDict", "OrderedDict"})
DEVICE_WORDS = re.compile(r"cuda|device|gpu|mps|xpu|accelerat|fabric|lightning", re.I)


@dataclass(frozen=True, slots=True)
class Target:
    """A name or an attribute, and the entry of it that holds what is kept, empty for all of it."""

    node: ast.expr
    entry: str = ""


def shallow(module: Module, call: ast.Call, function: Function | None) -> ast.expr:
    """The largest expression around a state_dict that holds the same tensors."""
    node: ast.expr = call
    while True:
        parent = module.parents[node]
        outer: ast.AST | None = None
        if isinstance(parent, ast.Attribute) and parent.attr in ("copy", "items"):
            outer = module.parents[parent]
            if not isinstance(outer, ast.Call) or outer.func is not parent or outer.args:
                return node
            if parent.attr == "items":
                around = module.parents[outer]
                pairs = module.parents[around] if isinstance(around, ast.comprehension) else None
                if not isinstance(pairs, ast.DictComp) or not same_tensors(module, pairs):
                    return node
                outer = pairs
        elif isinstance(parent, ast.Call) and parent.args == [node] and not parent.keywords:
            if qualified_name(module, parent.func, function) in SHALLOW:
                outer = parent
        if not isinstance(outer, ast.expr):
            return node
        node = outer


def same_tensors(module: Module, node: ast.DictComp) -> bool:
    """`{k: v.detach() for k, v in ...}`; `.cpu()` is no copy where there is no other device."""
    value = node.value
    while isinstance(value, ast.Call | ast.Attribute):
        if isinstance(value, ast.Attribute):
            if value.attr != "data":
                return False
            value = value.value
            continue
        if value.args or not isinstance(value.func, ast.Attribute):
            return False
        on_host = value.func.attr == "cpu" and not DEVICE_WORDS.search(module.source.text)
        if value.func.attr != "detach" and not on_host:
            return False
        value = value.func.value
    return isinstance(value, ast.Name) and len(node.generators) == 1


def kept_in(module: Module, node: ast.expr) -> Target | None:
    """The name, attribute or container that holds an expression from then on."""
    child: ast.AST = node
    parent = module.parents[child]
    entry = ""
    while isinstance(parent, ast.Dict | ast.Tuple | ast.List | ast.keyword) or (
        isinstance(parent, ast.Call) and written(parent.func) == "dict"
    ):
        entry = entry_of(parent, child) or entry
        child, parent = parent, module.parents[parent]
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1 and parent.value is child:
        target = parent.targets[0]
        if isinstance(target, ast.Tuple) and isinstance(child, ast.Tuple):
            index = next((i for i, part in enumerate(child.elts) if part is node), None)
            target = target.elts[index] if index is not None else target
        return holder(target, entry)
    if isinstance(parent, ast.AnnAssign) and parent.value is child:
        return holder(parent.target, entry)
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        if parent.func.attr in ("append", "add", "appendleft") and child in parent.args:
            return holder(parent.func.value, "")
    return None


def entry_of(parent: ast.AST, child: ast.AST) -> str:
    """The key under which a dict display holds a value."""
    if isinstance(parent, ast.keyword):
        return repr(parent.arg)
    if isinstance(parent, ast.Dict):
        keys = [k for k, v in zip(parent.keys, parent.values, strict=True) if v is child]
        return written(keys[0]) if keys and keys[0] is not None else ""
    return ""


def holder(target: ast.expr, entry: str) -> Target | None:
    while isinstance(target, ast.Subscript):
        entry = written(target.slice)
        target = target.value
    own = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name)
    return Target(target, entry) if own or isinstance(target, ast.Name) else None
