"""Parameters that a model replaces behind the optimizer that was given the old ones."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from oomlint.analysis import cadence, knowledge, remedies, sites
from oomlint.analysis.answers import make_fix
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.synchronisation import FSDP
from oomlint.rule import Fix, Safety


@dataclass(frozen=True, slots=True)
class Change:
    """What replaces parameters of a model."""

    node: ast.expr | ast.stmt
    statement: ast.stmt


SHARDING = re.compile(r"torch\.distributed\.(fsdp|_composable\.fsdp)\.(\w+\.)*fully_shard")


def makes_optimizer(site: Site) -> bool:
    return (
        bool(site.qualified)
        and knowledge.role_of_constructor(site.qualified) is Role.OPTIMIZER
        and bool(site.node.args or site.node.keywords)
    )


def change_after(module: Module, optimizer: Site, made: Site | None = None) -> Change | None:
    """The first change behind an optimizer, in its function, that no later optimizer makes good.

    `made` is the call of the method that makes it, where that is another place.
    """
    place = made or optimizer
    models = {
        written(part.func.value)
        for given in (optimizer.node, *groups_of(module, optimizer))
        for part in ast.walk(given)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in ("parameters", "named_parameters")
    }
    end = place.node.end_lineno or place.node.lineno
    for site in sites.sites(module):
        if site.function is not place.function or site.node.lineno <= end:
            continue
        changed = changed_by(module, site)
        if changed not in models or not follows(module, place, site):
            continue
        if is_made_good(module, site):
            continue
        statement = module.statement_of(site.node)
        return Change(site.node, statement)
    return None


def change_behind_calls(module: Module, optimizer: Site) -> Change | None:
    """The same where a method returns the optimizer, for those who call it on `self`."""
    function = optimizer.function
    returned = isinstance(module.statement_of(optimizer.node), ast.Return)
    if not returned or function is None or function.owner is None:
        return None
    changes = (change_after(module, optimizer, c) for c in cadence.calls_of(module, function))
    return next((change for change in changes if change is not None), None)


def groups_of(module: Module, optimizer: Site) -> list[ast.expr]:
    """What the names hold that an optimizer is given: `groups = [{"params": ...}]`."""
    names = [part.id for part in optimizer.node.args[:1] if isinstance(part, ast.Name)]
    values = [v for name in names for v in sites.bindings(module, name, optimizer.function)]
    return [value for value in values if value is not None] if len(values) == 1 else []


def changed_by(module: Module, site: Site) -> str | None:
    """The model whose parameters a call replaces, as text."""
    node, statement = site.node, module.statement_of(site.node)
    if site.method == "resize_token_embeddings" and site.receiver is not None:
        return written(site.receiver)
    if SHARDING.fullmatch(site.qualified) and node.args:
        return written(node.args[0])
    replaced = FSDP.fullmatch(site.qualified) or site.qualified == "peft.get_peft_model"
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return None
    target = statement.targets[0]
    if replaced and node.args:
        given = next((k.value for k in node.keywords if k.arg == "use_orig_params"), None)
        if given is not None and written(given) != "False":
            return None
        wrapped = node.args[0]
        while (
            isinstance(wrapped, ast.Call)
            and isinstance(wrapped.func, ast.Attribute)
            and wrapped.func.attr in sites.CHAINING
        ):
            wrapped = wrapped.func.value  # `FSDP(model.to(rank))`
        return written(wrapped) if written(target) == written(wrapped) else None
    if isinstance(target, ast.Attribute) and is_layer(site):
        while isinstance(target.value, ast.Attribute) and written(target.value) != "self":
            if isinstance(target.value.value, ast.Name) and target.value.value.id == "self":
                break
            target = target.value
        return written(target.value)
    return None


LAYERS = re.compile(r"torch\.nn\.(Linear|Conv\dd|Embedding|Sequential|LayerNorm|BatchNorm\dd)")


def is_layer(site: Site) -> bool:
    """A layer of torch under its own name, as the gate looks for it."""
    return LAYERS.fullmatch(site.qualified) is not None and site.qualified.endswith(site.method)


def follows(module: Module, optimizer: Site, site: Site) -> bool:
    """Whether whoever comes to the change has come past the optimizer, in the same iteration."""
    block = module.parents[module.statement_of(optimizer.node)]
    if block is not module.parents[module.statement_of(site.node)]:
        if block not in module.enclosing(site.node):
            return False
        if isinstance(block, ast.If) and arm(module, block, optimizer) != arm(module, block, site):
            return False
        around = sites.loops_around(module, site.node)
        return around == sites.loops_around(module, optimizer.node)
    return not isinstance(block, ast.If) or arm(module, block, optimizer) == arm(
        module, block, site
    )


def arm(module: Module, block: ast.If, site: Site) -> bool:
    chain = [site.node, *module.enclosing(site.node)]
    return any(part in block.body for part in chain)


def is_made_good(module: Module, change: Site) -> bool:
    """Whether a later optimizer or a group of parameters is made for the new ones."""
    for site in sites.sites(module):
        if site.function is change.function and site.node.lineno > change.node.lineno:
            if makes_optimizer(site) or site.method == "add_param_group":
                return True
            if "optim" in site.method.lower() and site.method != "optimizer":
                return True
    return False


def remedy(module: Module, optimizer: Site, change: Change) -> Fix | None:
    """The optimizer is built behind the change, if nothing between uses it."""
    statement = module.statement_of(optimizer.node)
    if not isinstance(statement, ast.Assign) or statement.value is not optimizer.node:
        return None
    body = next(
        (
            b
            for n in ("body", "orelse")
            if statement in (b := getattr(module.parents[statement], n, None) or [])
        ),
        None,
    )
    if body is None or change.statement not in body:
        return None
    between = body[body.index(statement) + 1 : body.index(change.statement) + 1]
    name = written(statement.targets[0])
    if any(
        written(part) == name
        for node in between
        for part in ast.walk(node)
        if isinstance(part, ast.Name | ast.Attribute)
    ):
        return None
    moved = remedies.move(module, statement, change.statement, behind=True)
    return make_fix("Build the optimizer behind it", moved, Safety.UNSAFE) if moved else None
