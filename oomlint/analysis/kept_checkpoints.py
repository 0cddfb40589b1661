"""Checkpoints whose names outlive their use: still bound when the training begins."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, knowledge, loading, sites
from oomlint.analysis.knowledge import Role
from oomlint.analysis.loading import Checkpoint
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site


@dataclass(frozen=True, slots=True)
class Kept:
    """A checkpoint on the device whose names are still bound when `training` begins."""

    checkpoint: Checkpoint
    statement: ast.stmt
    names: frozenset[str]
    uses: tuple[ast.AST, ...]
    training: ast.stmt


def kept_alive(module: Module) -> Iterator[Kept]:
    """The first load of each such name; those in other branches share its fate."""
    told: set[tuple[Function | None, str]] = set()
    for checkpoint in loading.checkpoints(module):
        place = (checkpoint.place.function, checkpoint.name)
        if place in told:
            continue
        if all(is_optimizer(restore) for restore in checkpoint.restores):
            continue
        if loading.is_unmapped(checkpoint.site) and not saves(module):
            continue
        if loading.may_be_on_device(module, checkpoint.site):
            plain = checkpoint.name.isidentifier()
            kept = (kept_by if plain else kept_on_object)(module, checkpoint)
            if kept is not None:
                told.add(place)
                yield kept


def is_optimizer(restore: Site) -> bool:
    """An optimizer takes the tensors over as they are: there is no second copy."""
    name = written(restore.receiver) if restore.receiver is not None else ""
    return knowledge.role_of_name(name) is Role.OPTIMIZER


SAVE = re.compile(r"save(_(checkpoint|ckpt|snapshot|on_master|weights)\w*)?$")


def saves(module: Module) -> bool:
    """Whether the file writes checkpoints itself: on which device those of others lie is open."""
    return any(SAVE.match(site.method) for site in sites.sites(module))


def kept_by(module: Module, checkpoint: Checkpoint) -> Kept | None:
    """Follows the names of a checkpoint to the statement that trains, if they get there."""
    function = checkpoint.place.function
    statement = module.statement_of(checkpoint.place.node)
    last = max(restore.node.lineno for restore in checkpoint.restores)
    training = cadence.first_training(module, function, last)
    if training is None:
        return None
    nodes = loading.scope_nodes(module, function)
    names = {name for name in holders(module, checkpoint, nodes) if name.isidentifier()}
    mentioned = [n for n in nodes if isinstance(n, ast.Name) and n.id in names]
    mentioned.sort(key=lambda name: (name.lineno, name.col_offset))
    alive = set(names)
    for name in sorted(names):
        own = [n for n in mentioned if n.id == name]
        before = [n for n in own if n.lineno < training.lineno and n.lineno >= statement.lineno]
        after = [n for n in own if n.lineno >= training.lineno]
        ended = any(isinstance(n.ctx, ast.Del) for n in before)
        again = [
            n
            for n in before
            if isinstance(n.ctx, ast.Store) and module.statement_of(n) is not statement
        ]
        if ended or (again and is_rebound(module, again[-1], names)):
            alive.discard(name)
        elif after and not isinstance(first_evaluated(module, after).ctx, ast.Store):
            return None
    if checkpoint.name not in alive or is_captured(module, function, names):
        return None
    uses = [
        n for n in mentioned if n.id in alive and statement.lineno <= n.lineno < training.lineno
    ]
    return Kept(checkpoint, statement, frozenset(alive), tuple(uses), training)


def kept_on_object(module: Module, checkpoint: Checkpoint) -> Kept | None:
    """A checkpoint on `self` that only its constructor uses, of an object that also trains."""
    function = checkpoint.place.function
    owner = function.owner if function is not None else None
    if function is None or owner is None or function.name != "__init__":
        return None
    parts = [part for part in ast.walk(module.tree) if isinstance(part, ast.Attribute)]
    name = checkpoint.name.removeprefix("self.")
    uses = [part for part in parts if part.attr == name]
    if not uses or "." in name or any(module.function_of(part) is not function for part in uses):
        return None
    if any(isinstance(part.ctx, ast.Del) for part in uses) or is_dropped(module, uses):
        return None
    for method in owner.methods.values():
        training = cadence.first_training(module, method, 0) if method is not function else None
        if training is not None:
            statement = module.statement_of(checkpoint.place.node)
            return Kept(checkpoint, statement, frozenset({checkpoint.name}), tuple(uses), training)
    return None


def is_dropped(module: Module, uses: list[ast.Attribute]) -> bool:
    """Whether the attribute is given something else once it has been used."""
    return sum(isinstance(part.ctx, ast.Store) for part in uses) > 1


def first_evaluated(module: Module, names: list[ast.Name]) -> ast.Name:
    """The name of a statement that is evaluated first: what is assigned is stored last."""
    statement = module.statement_of(names[0])
    same = [name for name in names if module.statement_of(name) is statement]
    return next((name for name in same if isinstance(name.ctx, ast.Load)), same[0])


def is_rebound(module: Module, name: ast.Name, names: set[str]) -> bool:
    """Whether an assignment leaves nothing of the checkpoint in a name."""
    statement = module.statement_of(name)
    if not isinstance(statement, ast.Assign):
        return False
    value = statement.value
    return not loading.mentions(value, names) and not any(
        isinstance(part, ast.Call) and written(part.func).endswith("load")
        for part in ast.walk(value)
    )


def holders(module: Module, checkpoint: Checkpoint, nodes: list[ast.AST]) -> set[str]:
    """The checkpoint's name and those of its parts that hold tensors: what is restored from."""
    given: set[str] = set()
    for restore in checkpoint.restores:
        for argument in restore.node.args:
            given |= {written(part) for part in ast.walk(argument) if loading.is_name(part)}
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("items", "values"):
                given.add(written(node.func.value))
    return {checkpoint.name} | (loading.spread(nodes, checkpoint.name) & given)


def is_captured(module: Module, function: Function | None, names: set[str]) -> bool:
    """Whether a function defined here reads one of the names, whenever it is called."""
    inner = (f for f in module.all_functions if f.parent is function) if function else iter(())
    if function is None:
        inner = (f for f in module.all_functions if f.owner is None and f.parent is None)
    for other in inner:
        free = names - sites.bound_names(other).keys()
        if any(isinstance(n, ast.Name) and n.id in free for n in ast.walk(other.node)):
            return True
    return False
