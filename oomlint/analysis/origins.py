"""Where a value of a file may come from: assignments, arguments of its calls, what it returns."""

from __future__ import annotations

import ast
import itertools

from oomlint.analysis import sites, synchronisation
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.tracing import parameters

MAX_DEPTH = 6
# What goes over the same elements as its first argument.
PASSING = frozenset("enumerate iter islice tqdm trange track log_every prefetch progress".split())

Origin = tuple[ast.expr, Function | None]
# A node in a function, and how many steps led to it.
Asked = tuple[ast.expr, Function | None, int]


def origins(
    module: Module, node: ast.expr, function: Function | None, depth: int = 0
) -> list[Origin] | None:
    """Every expression that a value may be, each with its function; None where one is unknown."""
    if depth > MAX_DEPTH:
        return None
    known: dict[Asked, list[Origin] | None] = module.__dict__.setdefault("origins", {})
    asked = (node, function, depth)
    if asked not in known:
        known[asked] = found_origins(module, node, function, depth)
    return known[asked]


def found_origins(
    module: Module, node: ast.expr, function: Function | None, depth: int
) -> list[Origin] | None:
    if isinstance(node, ast.IfExp):
        return joined(module, [(node.body, function), (node.orelse, function)], depth)
    if isinstance(node, ast.Call):
        maker = synchronisation.callee(module, node, function)
        if maker is None and passes_on(node):
            return origins(module, node.args[0], function, depth + 1)
        if maker is None:
            return [(node, function)]
        return joined(module, returned(maker, None), depth)
    if isinstance(node, ast.Name):
        return named(module, node.id, function, depth)
    if isinstance(node, ast.Attribute):
        values = sites.values_of(module, node, function)
        return joined(module, values, depth) if values else None
    return [(node, function)]


def joined(module: Module, parts: list[Origin], depth: int) -> list[Origin] | None:
    found = [origins(module, value, where, depth + 1) for value, where in parts]
    known = [part for part in found if part is not None]
    if not known or len(known) < len(found):
        return None
    return list(itertools.chain.from_iterable(known))


def named(module: Module, name: str, function: Function | None, depth: int) -> list[Origin] | None:
    if is_given(name, function):
        return given(module, name, function, depth)
    values = sites.bindings(module, name, function)
    if values == [None]:
        return unpacked(module, name, function, depth)
    parts = [(value, function) for value in values if value is not None]
    return joined(module, parts, depth) if len(parts) == len(values) else None


def is_given(name: str, function: Function | None) -> bool:
    """Whether a name is a parameter and bound to nothing else."""
    if not synchronisation.is_parameter(name, function):
        return False
    function = synchronisation.binder(name, function)
    return function is not None and name in parameters(function)


def given(module: Module, name: str, function: Function | None, depth: int) -> list[Origin] | None:
    """What the calls in this file give for a parameter."""
    function = synchronisation.binder(name, function)
    if function is None:
        return None
    parts: list[Origin] = []
    for value, caller in synchronisation.given_by_calls(module, name, function):
        if value is None:
            return None
        parts.append((value, caller))
    return joined(module, parts, depth)


def unpacked(
    module: Module, name: str, function: Function | None, depth: int
) -> list[Origin] | None:
    """`train, test = make()` with a function of this file."""
    scope = function.node if function is not None else module.tree
    for node in sites.own_nodes(scope):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Tuple):
            continue
        names = [written(part) for part in node.targets[0].elts]
        if name in names and isinstance(node.value, ast.Call):
            maker = synchronisation.callee(module, node.value, function)
            parts = returned(maker, names.index(name)) if maker is not None else []
            return joined(module, parts, depth)
    return None


def returned(maker: Function, index: int | None) -> list[Origin]:
    """What a function returns, or one place of the tuples that it returns."""
    found: list[Origin] = []
    for node in sites.own_nodes(maker.node):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        if index is None:
            found.append((node.value, maker))
        elif isinstance(node.value, ast.Tuple) and index < len(node.value.elts):
            found.append((node.value.elts[index], maker))
        else:
            return []
    return found


def passes_on(node: ast.expr) -> bool:
    """Whether a call goes over the same elements as its first argument."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    return written(node.func).rpartition(".")[2] in PASSING


def gone_over(module: Module, node: ast.expr, function: Function | None) -> ast.expr:
    """What a loop takes its elements from: the loader in `enumerate(tqdm(loader))`."""
    while isinstance(node, ast.Call) and node.args:
        if not passes_on(node) or synchronisation.callee(module, node, function) is not None:
            break
        node = node.args[0]
    return node
