"""Averages of parameters that are updated from the live parameters themselves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import knowledge
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import SCOPES, bindings, qualified_name

# How a mix of old and new is written: `1 - decay` beside a product, a literal share, or in place.
# What must stand before is looked at behind the first character, which is found much faster.
BLEND = (
    r"(?:lerp|add|sub)_\s*\(|l(?<!\wl)erp\(|1(?<!\w1)(?:\.0*)?\s*-\s*[\w.]+\)?\s*\*"
    r"|\*\s*\(\s*1(?:\.0*)?\s*-|\.(?<=\w\.)\d+\s*\*[^\n]*\+|[-+]=\s*[^\n]*\*"
    r"|/\s*\(\s*[\w.]+\s*\+\s*1\s*\)"
)
BLENDS = re.compile(BLEND)
PARAMETERS = re.compile(r"\.(named_)?parameters\(")
# Methods that change their receiver to a mix of itself and what they are given.
MIXING = frozenset("add_ sub_ lerp_ copy_ addcmul_ mul_".split())
FOREACH = re.compile(r"torch\._foreach_(add|lerp|sub)_")
# What keeps a parameter what it is, element by element.
ELEMENTWISE = frozenset(
    "to cpu cuda float half double bfloat16 clone contiguous type type_as view reshape mul div add"
    " sub lerp multiply divide".split()
)
# What is left of a parameter after these is a number, or has no graph.
CUTTING = frozenset(
    "detach data item tolist numpy grad shape size numel dtype device requires_grad ndim dim"
    " is_floating_point name".split()
)
MAX_ALIASES = 3


@dataclass(frozen=True, slots=True)
class Update:
    """A statement that mixes live parameters into something that outlives the update."""

    statement: ast.stmt
    average: ast.expr
    parameter: ast.expr


def updates(module: Module) -> Iterator[Update]:
    kinds = module.index.by_kind
    nodes = [*kinds[ast.Assign], *kinds[ast.AugAssign], *kinds[ast.Expr]]
    for node in sorted(nodes, key=lambda n: n.lineno):  # type: ignore[attr-defined] # statements
        scope = next((p for p in module.enclosing(node) if isinstance(p, SCOPES)), None)
        if isinstance(scope, ast.ClassDef):
            continue
        function = module.by_node[scope] if scope is not None else None
        found = update_of(module, node, function)
        if found is not None and is_blend(module, found, function):
            yield found


def update_of(module: Module, node: ast.AST, function: Function | None) -> Update | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(node.value, ast.ListComp | ast.DictComp):
            return rebuilt(module, node, target, node.value, function)
        if not isinstance(target, ast.Subscript | ast.Attribute) or is_cut(target):
            return None
        value = resolved(module, node.value, function)
        if not mentions(module, value, target, function):
            return None
        return mixed(module, node, target, value, function)
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
        if is_cut(node.target) or not outlives(module, node.target, function):
            return None
        return mixed(module, node, node.target, node.value, function)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return update_by_call(module, node, node.value, function)
    return None


def rebuilt(
    module: Module,
    statement: ast.Assign,
    target: ast.expr,
    value: ast.ListComp | ast.DictComp,
    function: Function | None,
) -> Update | None:
    """`shadow = [d * s + (1 - d) * p for s, p in zip(shadow, model.parameters())]`."""
    old = written(target)
    if not any(isinstance(n, ast.expr) and written(n) == old for n in ast.walk(value)):
        return None
    kept = value.value if isinstance(value, ast.DictComp) else value.elt
    return mixed(module, statement, target, kept, function)


def is_blend(module: Module, update: Update, function: Function | None) -> bool:
    """Whether shares of old and new are mixed, in the statement or in what it has a name for."""
    statement = update.statement
    if BLENDS.search(written(statement)):
        return True
    if not isinstance(statement, ast.Assign):
        return False
    return bool(BLENDS.search(written(resolved(module, statement.value, function))))


def mixed(
    module: Module,
    statement: ast.stmt,
    average: ast.expr,
    value: ast.expr,
    function: Function | None,
) -> Update | None:
    if knowledge.LOSS_NAME.search(written(average)):
        return None  # a penalty on the parameters
    live = live_in(module, value, function, written(average))
    if live is None:
        return None
    return Update(statement, average, live)


def update_by_call(
    module: Module, statement: ast.Expr, call: ast.Call, function: Function | None
) -> Update | None:
    """`a.mul_(d).add_(p)`, `a.lerp_(p, w)`, `torch._foreach_lerp_(averages, parameters, w)`."""
    if FOREACH.fullmatch(qualified_name(module, call.func, function)) and len(call.args) > 1:
        if is_live_list(module, call.args[1], function):
            return Update(statement, call.args[0], call.args[1])
        return None
    average: ast.expr = call
    given: list[ast.expr] = []
    copies = False
    while isinstance(average, ast.Call) and isinstance(average.func, ast.Attribute):
        if average.func.attr not in MIXING:
            return None
        given += [resolved(module, value, function) for value in average.args]
        copies = average.func.attr == "copy_"
        average = average.func.value
    text = written(average)
    if copies and not any(text in written(value) for value in given):
        return None  # nothing is carried on
    found = (live_in(module, value, function, text) for value in given)
    live = next((part for part in found if part is not None), None)
    if live is None or is_cut(average) or not outlives(module, average, function):
        return None
    return Update(statement, average, live)


def resolved(module: Module, node: ast.expr, function: Function | None) -> ast.expr:
    """The expression behind `x.clone()` and behind a name that is bound once."""
    for _ in range(MAX_ALIASES):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("clone", "to", "cpu", "float") and not is_cut(node.func.value):
                node = node.func.value
                continue
        if isinstance(node, ast.Name):
            found = bindings(module, node.id, function)
            if len(found) == 1 and isinstance(found[0], ast.BinOp | ast.Call):
                node = found[0]
                continue
        break
    return node


def is_cut(node: ast.expr) -> bool:
    """Whether an expression goes through `.data` or `.detach()`."""
    return any(isinstance(n, ast.Attribute) and n.attr in CUTTING for n in ast.walk(node))


def mentions(module: Module, value: ast.expr, target: ast.expr, function: Function | None) -> bool:
    """Whether an expression uses what it is assigned to, also by a name that was bound to it."""
    text = written(target)
    for node in ast.walk(value):
        if isinstance(node, ast.Subscript | ast.Attribute) and written(node) == text:
            return True
        if isinstance(node, ast.Name):
            found = bindings(module, node.id, function)
            if any(bound is not None and written(bound) == text for bound in found):
                return True
    return False


def outlives(module: Module, node: ast.expr, function: Function | None) -> bool:
    """Whether what is changed in place is an entry, an attribute or a loop's own tensor."""
    if isinstance(node, ast.Subscript | ast.Attribute):
        return True
    return isinstance(node, ast.Name) and loop_of(module, node, function) is not None


def live_in(
    module: Module, node: ast.expr, function: Function | None, average: str
) -> ast.expr | None:
    """The part of an expression that is a parameter with its graph; the average itself is none."""
    if is_live(module, node, function):
        return node if written(node) != average else None
    if isinstance(node, ast.BinOp):
        left = live_in(module, node.left, function, average)
        return left if left is not None else live_in(module, node.right, function, average)
    if isinstance(node, ast.UnaryOp):
        return live_in(module, node.operand, function, average)
    if isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in ELEMENTWISE:
            return None
        of_torch = qualified_name(module, node.func, function).startswith("torch.")
        parts = node.args if of_torch else [node.func.value, *node.args]
        for part in parts:
            live = live_in(module, part, function, average)
            if live is not None:
                return live
    return None


def is_live(module: Module, node: ast.expr, function: Function | None) -> bool:
    """`p` of a loop over parameters, `named[k]` of a dict or list of them."""
    if isinstance(node, ast.Name):
        source = loop_of(module, node, function)
        return source is not None and is_live_list(module, source, function)
    if isinstance(node, ast.Subscript):
        return is_live_list(module, node.value, function)
    return False


def is_live_list(module: Module, node: ast.expr, function: Function | None, depth: int = 0) -> bool:
    """`model.parameters()`, `dict(model.named_parameters())`, a name that is bound to such."""
    if depth > MAX_ALIASES:
        return False
    if isinstance(node, ast.Name):
        found = bindings(module, node.id, function)
        return bool(found) and all(
            value is not None and is_live_list(module, value, function, depth + 1)
            for value in found
        )
    text = written(node)
    if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        kept = node.value if isinstance(node, ast.DictComp) else node.elt
        return isinstance(kept, ast.Name) and bool(PARAMETERS.search(text))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        inner = node.func.id in ("list", "dict", "tuple", "OrderedDict", "iter", "sorted")
        return inner and bool(node.args) and is_live_list(module, node.args[0], function, depth + 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("items", "values"):
            return is_live_list(module, node.func.value, function, depth + 1)
        return node.func.attr in ("parameters", "named_parameters")
    return False


def loop_of(module: Module, node: ast.Name, function: Function | None) -> ast.expr | None:
    """What the loop variable of this name runs over; of `zip` and `enumerate` its own part."""
    for parent in module.enclosing(node):
        heads: list[ast.For | ast.comprehension] = getattr(parent, "generators", [])
        for head in [parent] if isinstance(parent, ast.For) else heads:
            found = part_of(head.target, head.iter, node.id)
            if found is not None:
                return found
        if function is not None and parent is function.node:
            return None
    return None


def part_of(target: ast.expr, source: ast.expr, name: str) -> ast.expr | None:
    if isinstance(target, ast.Name):
        return source if target.id == name else None
    if not isinstance(target, ast.Tuple | ast.List):
        return None
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Name):
        if source.func.id == "enumerate" and source.args and len(target.elts) == 2:
            return part_of(target.elts[1], source.args[0], name)
        if source.func.id == "zip" and len(source.args) == len(target.elts):
            pairs = zip(target.elts, source.args, strict=True)
            return next((f for t, s in pairs if (f := part_of(t, s, name)) is not None), None)
    last = target.elts[-1]
    return source if isinstance(last, ast.Name) and last.id == name else None
