"""Where models are moved or cast, which gives their parameters other memory than they had."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import cadence, placement, sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site

CASTS = frozenset({"half", "float", "double", "bfloat16", "type", "to_empty"})
MOVES = CASTS | {"to", "cuda", "cpu", "xpu", "npu", "hpu"}
# What moves a model that it is given to the device of its own.
TRAINER = re.compile(r"Trainer$|^(Engine|Runner|Learner|Estimator)$")
HANDING = re.compile(r"fit|prepare\w*|setup\w*")
HOLDER = re.compile(r"trainer|accelerator|fabric|strategy", re.IGNORECASE)
DEVICE_PARAMETERS = frozenset({"device", "devices", "accelerator", "gpus", "device_type"})


def moves_model(module: Module, node: ast.AST, model: str, function: Function | None) -> bool:
    """Whether a statement moves or casts a model, or hands it to a trainer that does."""
    return any(
        changes_memory(module, site, model) for site in sites.found_in(module, node, function)
    )


def changes_memory(module: Module, site: Site, model: str) -> bool:
    return moves(site, model) or hands_over(site, model) or inside(module, site, model)


def leaves_device(module: Module, node: ast.AST, model: str, function: Function | None) -> bool:
    """Whether a model goes to the host and, with the next pass of a loop, back, or is cast."""
    return any(goes_back(module, site, model) for site in sites.found_in(module, node, function))


def goes_back(module: Module, site: Site, model: str) -> bool:
    if not moves(site, model):
        return False
    if site.method == "to" and placement.destination(module, site) is None:
        return True  # a dtype
    return site.method in CASTS | {"cpu"} or placement.destination(module, site) is Place.HOST


def moved_since(
    module: Module, kept: ast.stmt, last: int, model: str, function: Function | None
) -> bool:
    """Whether a model is moved between a statement and a row, and was not on the device already."""
    scope: ast.AST = function.node if function is not None else module.tree
    own = [sites.site_of(module, node, function) for node in calls(scope)]
    there = any(site.node.lineno < kept.lineno and is_put(module, site, model) for site in own)
    end = kept.end_lineno or kept.lineno
    return any(
        goes_back(module, site, model) if there else changes_memory(module, site, model)
        for site in own
        if end < site.node.lineno <= last
    )


def calls(scope: ast.AST) -> Iterator[ast.Call]:
    for node in sites.own_nodes(scope):
        if isinstance(node, ast.Call):
            yield node


def is_put(module: Module, site: Site, model: str) -> bool:
    """`model.cuda()` or `model = Net().to(device)`."""
    if placement.destination(module, site) not in (Place.DEVICE, Place.OPEN):
        return False
    statement = module.statement_of(site.node)
    bound = isinstance(statement, ast.Assign) and statement.value is site.node
    return moves(site, model) or (
        bound and any(written(goal) == model for goal in getattr(statement, "targets", ()))
    )


def moves(site: Site, model: str) -> bool:
    return site.method in MOVES and site.receiver is not None and written(site.receiver) == model


def hands_over(site: Site, model: str) -> bool:
    if not is_given(site, model):
        return False
    if site.receiver is not None and HANDING.fullmatch(site.method):
        return HOLDER.search(written(site.receiver)) is not None
    if not site.method[:1].isupper():
        return False
    told = any(keyword.arg in DEVICE_PARAMETERS for keyword in site.node.keywords)
    return told or TRAINER.search(site.method) is not None


def is_given(site: Site, model: str) -> bool:
    given = [*site.node.args, *(keyword.value for keyword in site.node.keywords)]
    return any(written(part) == model for part in given)


def inside(module: Module, site: Site, model: str) -> bool:
    """Whether a function of this file moves the model that it is given."""
    called = cadence.local_function(module, site) if is_given(site, model) else None
    if called is None:
        return False
    names = [a.arg for a in called.node.args.args]
    if names[:1] == ["self"]:
        names = names[1:]
    given = zip(names, site.node.args, strict=False)
    held = {name for name, part in given if written(part) == model}
    held |= {k.arg for k in site.node.keywords if k.arg and written(k.value) == model}
    return any(
        moves(other, name) for other in sites.found_in(module, called.node, called) for name in held
    )
