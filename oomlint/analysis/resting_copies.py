"""Copies of a model's weights that wait on the device until they are restored."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, classes, knowledge, loading, sites
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of a module's state: the expression, whose state, and what it is assigned to."""

    node: ast.expr
    owner: ast.expr
    target: ast.expr | None
    statement: ast.stmt
    function: Function | None
    whole: bool


def copies(module: Module) -> Iterator[Copy]:
    copying: list[ast.AST] = [site.node for site in sites.named(module, "deepcopy")]
    for node in [*copying, *module.index.by_kind[ast.DictComp]]:
        state = copied_state(module, node)
        owner = state or copied_model(module, node)
        if owner is None or not isinstance(node, ast.expr):
            continue
        statement = module.statement_of(node)
        target = assigned_to(statement, node)
        yield Copy(node, owner, target, statement, module.function_of(node), state is None)


def assigned_to(statement: ast.stmt, node: ast.expr) -> ast.expr | None:
    """The target of an expression, also in `best, weights = score, deepcopy(...)`."""
    if not isinstance(statement, ast.Assign):
        return None
    value, target = statement.value, statement.targets[0]
    if isinstance(value, ast.Tuple) and isinstance(target, ast.Tuple):
        if len(value.elts) == len(target.elts) and node in value.elts:
            return target.elts[value.elts.index(node)]
    return target if value is node else None


def copied_state(module: Module, node: ast.AST) -> ast.expr | None:
    """Whose `state_dict()` an expression copies tensor by tensor, on the device."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        if sites.qualified_name(module, node.func, module.function_of(node)) == "copy.deepcopy":
            return state_owner(node.args[0])
    if isinstance(node, ast.DictComp) and len(node.generators) == 1:
        over = node.generators[0].iter
        if isinstance(over, ast.Call) and isinstance(over.func, ast.Attribute):
            if over.func.attr == "items" and clone_of(node) is not None:
                return state_owner(over.func.value)
    return None


def copied_model(module: Module, node: ast.AST) -> ast.expr | None:
    """The model of which an expression copies everything, gradients included."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
        if sites.qualified_name(module, node.func, module.function_of(node)) == "copy.deepcopy":
            text = classes.dotted(node.args[0])
            if text and knowledge.role_of_name(text) is Role.MODEL:
                return node.args[0]
    return None


def state_owner(node: ast.expr) -> ast.expr | None:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "state_dict" and not node.args and not node.keywords:
            return None if OTHER.search(written(node.func.value)) else node.func.value
    return None


# State of a few bytes, or of another kind than a module's.
OTHER = re.compile(r"optim|sched|scaler|loader|sampler|metric|loop|trainer$", re.IGNORECASE)


def clone_of(node: ast.DictComp) -> ast.Call | None:
    """The `.clone()` that makes each value, where nothing moves it elsewhere."""
    value = node.value
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return None
    if value.func.attr != "clone" or re.search(r"\.(cpu|to|numpy)\(", written(value)):
        return None
    return value


def waits(module: Module, copy: Copy) -> bool:
    """Whether the copy is kept over a training: the best weights, or those to go back to."""
    assert copy.target is not None
    name = written(copy.target)
    if not loading.is_name(copy.target) or not on_device(module, copy):
        return False
    if is_computed_with(module, copy, name):
        return False
    best = "best" in name.lower() or given_back_behind_loop(module, copy, name)
    if best and is_now_and_then(module, copy):
        return not copy.whole or rests(module, copy, name)
    if copy.whole:
        return False
    return not sites.loops_around(module, copy.statement) and is_restored(module, copy, name)


def given_back_behind_loop(module: Module, copy: Copy, name: str) -> bool:
    """Whether a module gets the copy back when the loop that makes it is over."""
    loops = sites.loops_around(module, copy.statement)
    last = (loops[-1].end_lineno or 0) if loops else 0
    return bool(loops) and any(
        site.method == "load_state_dict"
        and site.function is copy.function
        and site.node.lineno > last
        and loading.mentions(site.node, {name})
        for site in sites.sites(module)
    )


def rests(module: Module, copy: Copy, name: str) -> bool:
    """Whether the copy of a whole model is kept in a loop that never runs it."""
    loops = sites.loops_around(module, copy.statement)
    return bool(loops) and not any(
        isinstance(node, ast.Call) and written(node.func).split(".")[0] == name
        for node in ast.walk(loops[-1])
    )


def is_now_and_then(module: Module, copy: Copy) -> bool:
    """Whether a condition decides about the copy, or it comes before one that does."""
    if sites.conditions_around(module, copy.statement):
        return True
    name = written(copy.target) if copy.target is not None else ""
    return any(
        other.target is not None
        and other.statement is not copy.statement
        and written(other.target) == name
        and bool(sites.conditions_around(module, other.statement))
        for other in copies(module)
    )


DEVICE = re.compile(r"\.cuda\(|\.to\([^)]*(device|cuda|rank|gpu)|device\s*=", re.IGNORECASE)


def on_device(module: Module, copy: Copy) -> bool:
    """Whether the code around the copy puts something on a device that may be a GPU."""
    code = module.source.text
    return DEVICE.search(code) is not None and not HOST.search(code)


HOST = re.compile(r"device\s*=\s*(torch\.device\()?['\"]cpu['\"]\)?\s*$", re.MULTILINE)


def scope_of(module: Module, copy: Copy) -> ast.AST:
    owner = sites.class_of(copy.function)
    if isinstance(copy.target, ast.Attribute) and owner is not None:
        return owner.node
    return module.tree if copy.function is None else copy.function.node


def is_restored(module: Module, copy: Copy, name: str) -> bool:
    """Whether the copy is given back behind a training of the same function."""
    training = cadence.first_training(module, copy.function, copy.statement.lineno)
    return training is not None and any(
        site.method == "load_state_dict"
        and site.function is copy.function
        and site.node.lineno >= training.lineno
        and loading.mentions(site.node, {name})
        for site in sites.sites(module)
    )


def is_computed_with(module: Module, copy: Copy, name: str) -> bool:
    """Whether single tensors of the copy are used: averaged, compared, interpolated."""
    for node in ast.walk(scope_of(module, copy)):
        if isinstance(node, ast.Subscript) and written(node.value) == name:
            if isinstance(node.ctx, ast.Load):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("items", "values") and written(node.func.value) == name:
                return True
    return False
