"""Loops that cut one tensor into chunks: what they make is bounded by it, not by a data set."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import cadence, placement, sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site

Loop = ast.For | ast.AsyncFor | ast.While | ast.ListComp
# What only a tensor is asked for, or an array.
SHAPES = frozenset({"shape", "size", "ndim"})
# What has the device of what it is called on.
SAME_DEVICE = frozenset(
    "half float bfloat16 double contiguous view reshape flatten squeeze unsqueeze permute transpose"
    " detach clone".split()
)
ON_DEVICE = (Place.DEVICE, Place.OPEN)


def cuts_one_tensor(module: Module, loop: Loop, function: Function | None) -> bool:
    """Whether `for i in range(0, n, step)` slices a tensor that is on the device as a whole.

    What was on the host would be moved inside of the loop.
    """
    target, over = goal_and_source(loop)
    if not isinstance(target, ast.Name) or not is_range(over):
        return False
    if any(moves(module, site) for site in sites.found_in(module, loop, function)):
        return False
    return any(
        is_device_tensor(module, whole, function, loop) for whole in sliced_by(loop, target.id)
    )


def goal_and_source(loop: Loop) -> tuple[ast.expr | None, ast.expr | None]:
    if isinstance(loop, ast.ListComp):
        first = loop.generators[0]
        return first.target, first.iter
    return (None, None) if isinstance(loop, ast.While) else (loop.target, loop.iter)


def is_range(node: ast.expr | None) -> bool:
    """`range(0, n, step)`, with or without a progress bar around it."""
    while isinstance(node, ast.Call) and written(node.func).endswith(("tqdm", "trange", "track")):
        node = node.args[0] if node.args else None
    return isinstance(node, ast.Call) and written(node.func) == "range" and len(node.args) == 3


def sliced_by(loop: Loop, name: str) -> Iterator[ast.expr]:
    """What the loop takes slices of that begin at its variable."""
    for node in ast.walk(loop):
        if not isinstance(node, ast.Subscript):
            continue
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        for part in parts:
            if isinstance(part, ast.Slice) and part.lower is not None:
                if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(part.lower)):
                    yield node.value


def moves(module: Module, site: Site) -> bool:
    """Whether a call moves something to the device, itself or in a function of this file."""
    called = cadence.local_function(module, site)
    inside = sites.found_in(module, called.node, called) if called is not None else ()
    return is_move(module, site) or any(is_move(module, inner) for inner in inside)


def is_move(module: Module, site: Site) -> bool:
    place = placement.destination(module, site) or placement.made_on(module, site)
    return place in ON_DEVICE


def is_device_tensor(
    module: Module, whole: ast.expr, function: Function | None, loop: Loop
) -> bool:
    """Whether a name is a tensor and no list: something was moved, or it is asked for its shape."""
    if not isinstance(whole, ast.Name | ast.Attribute):
        return False
    values = sites.values_of(module, whole, function)
    if any(is_on_device(module, value, where) for value, where in values):
        return True
    if values and any(not isinstance(value, ast.Name) for value, _ in values):
        return False
    scope: ast.AST = function.node if function is not None else module.tree
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in SHAPES
        and written(node.value) == written(whole)
        for node in ast.walk(scope)
    )


def is_on_device(
    module: Module, value: ast.expr, function: Function | None, depth: int = 0
) -> bool:
    """Whether an expression ends with a move to the device, in a function of this file, too."""
    if isinstance(value, ast.IfExp):
        arms = (value.body, value.orelse)
        return all(is_on_device(module, arm, function, depth) for arm in arms)
    if isinstance(value, ast.Name) and depth < cadence.MAX_CALLS:
        found = sites.values_of(module, value, function)
        return any(is_on_device(module, inner, where, depth + 1) for inner, where in found)
    if not isinstance(value, ast.Call):
        return False
    site = sites.site_of(module, value, function)
    if is_move(module, site):
        return True
    if site.method in SAME_DEVICE and site.receiver is not None:
        return is_on_device(module, site.receiver, function, depth)
    called = cadence.local_function(module, site)
    if called is None or depth >= cadence.MAX_CALLS:
        return False
    returned = [n.value for n in sites.own_nodes(called.node) if isinstance(n, ast.Return)]
    return bool(returned) and all(
        part is not None and is_on_device(module, part, called, depth + 1) for part in returned
    )
