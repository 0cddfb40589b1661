"""Loaders with workers that an epoch or a step builds anew over what never changes."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import cadence, copies, sites
from oomlint.analysis.cadence import Loop
from oomlint.analysis.loaders import Loader
from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import Site

EPOCH = re.compile(r"epoch|(^|_)ep(_|$)", re.IGNORECASE)

EPOCHS = re.compile(
    r"(t?range|tqdm)\((.*\W)?((num|n|max|total)_?)?epochs?\W*(\w*=.*)?\)", re.IGNORECASE
)

# Arguments that are read, not handed on to be changed.
READERS = frozenset("len print range enumerate DataLoader isinstance str tqdm zip iter".split())


def rebuilt(module: Module, loader: Loader) -> tuple[Loop, Site | None] | None:
    """The loop in which the same loader is built again, and the call on the way to it."""
    site = loader.site
    loop = training_loop(module, site)
    if loop is not None:
        return (loop, None) if stays(loop, site.node, site.node) else None
    function = site.function
    if function is None or sites.loops_around(module, site.node) or kept(module, site):
        return None
    if not stays(function.node, site.node, site.node, inside=True):
        return None
    calls = [
        call
        for call in sites.called(module, function.name)
        if cadence.local_function(module, call) is function
    ]
    if len(calls) != 1:
        return None
    loop = training_loop(module, calls[0])
    if loop is None or not stays(loop, calls[0].node, site.node):
        return None
    return loop, calls[0]


def kept(module: Module, site: Site) -> bool:
    """Whether the loader outlives the call that builds it."""
    statement = module.statement_of(site.node)
    if isinstance(statement, ast.Return):
        return False
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    return not isinstance(target, ast.Name)


def training_loop(module: Module, site: Site) -> Loop | None:
    """The innermost loop around a call, where each of its passes is an epoch or a step."""
    around = sites.loops_around(module, site.node)
    statement = module.statement_of(site.node)
    # What a loop runs over is made before its first pass.
    place = statement if isinstance(statement, ast.For) else site.node
    if not around or not cadence.is_unconditional(module, place):
        return None
    loop = around[0]
    if isinstance(loop, ast.For | ast.AsyncFor):
        if site.node in ast.walk(loop.iter):
            return None
        if cadence.is_of_trials(loop):
            return None
    if not is_epoch(loop) and not cadence.is_step_loop(module, loop, site.function):
        return None
    inner = sites.found_in(module, loop, site.function)
    return loop if any(cadence.updates(module, other, 0) for other in inner) else None


def is_epoch(loop: Loop) -> bool:
    if isinstance(loop, ast.While):
        return bool(EPOCH.search(written(loop.test)))
    over = written(loop.iter)
    return bool(EPOCH.search(written(loop.target)) or EPOCHS.fullmatch(over))


def stays(scope: ast.AST, call: ast.Call, build: ast.Call, inside: bool = False) -> bool:
    """Whether a call is given the same, unchanged objects in every pass through a scope.

    `inside`: the scope is the function that builds the loader, whose parameters its caller gives.
    """
    changed = copies.changed(scope)
    if not inside and isinstance(scope, ast.For | ast.AsyncFor):
        changed |= copies.changed(scope.target)
    names = {written(p) for p in ast.walk(call) if isinstance(p, ast.Name | ast.Attribute)}
    if names & changed:
        return False
    given = [*call.args[:1], *(k.value for k in call.keywords if k.arg == "dataset")]
    if call is not build:
        given = [*call.args, *(k.value for k in call.keywords)]
    held = {written(p) for p in given if isinstance(p, ast.Name | ast.Attribute)}
    return not handed_on(scope, call, {name for name in held if "data" in name or call is build})


def handed_on(scope: ast.AST, call: ast.Call, names: set[str]) -> bool:
    """Whether other calls of a scope may change what is loaded."""
    for part in ast.walk(scope):
        if not isinstance(part, ast.Call) or part is call:
            continue
        if isinstance(part.func, ast.Attribute) and written(part.func.value) in names:
            return True
        if written(part.func).rsplit(".", 1)[-1] in READERS:
            continue
        if any(
            written(given) in names for given in (*part.args, *(k.value for k in part.keywords))
        ):
            return True
    return False
