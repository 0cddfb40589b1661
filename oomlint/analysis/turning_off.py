"""How an evaluation is freed of its graph: `no_grad` over a function or around a loop."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oomlint.analysis import edits, knowledge
from oomlint.analysis.answers import make_fix, short
from oomlint.analysis.graphless import TRAINING, Region
from oomlint.analysis.modules import IDENTIFIER, Function, Module
from oomlint.analysis.roots import BACKWARD, Reading
from oomlint.rule import Edit, Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model

# `model.train()` switches the mode, whatever function `train` the file has.
MODE_SWITCH = re.compile(r"\.\s*(?:train|eval)\(\s*(?:True|False|mode)?\s*\)")

# Methods of unknown objects, and functions out of sight, that train by their names.
TRAINS = re.compile(
    r"\b(learn|fit|optimi[sz]e\w*|backprop\w*|(run_|do_)?train(ing)?(_(one_)?(epoch|step|batch|loop|"
    r"model|iteration|iter|on_batch)s?)?"
    r"|update_(policy|policies|param\w*|net\w*|actor|critic|weights|model))\s*\("
)


def turn_off(model: Model, region: Region) -> Fix | None:
    """A decorator on a function that only evaluates, else a `with` around the loop."""
    module, function = model.module, region.function
    if region.shared:
        return None
    if function is not None and whole_function(model, function, region):
        return decorated(module, function)
    name, imports = edits.name_in_file(module, "torch.no_grad")
    return wrap_loop(model, region, name, imports)


def decorated(module: Module, function: Function) -> Fix | None:
    """`@torch.no_grad()` on a function; of an asynchronous one it would be off too soon."""
    if isinstance(function.node, ast.AsyncFunctionDef):
        return None
    name, imports = edits.name_in_file(module, "torch.no_grad")
    try:
        edit = edits.decorate(module, function, f"{name}()")
    except edits.NoFix:
        return None
    title = f"Decorate `{function.name}` with `@{name}()`"
    return make_fix(title, [*imports, edit], Safety.SAFE)


def whole_function(model: Model, function: Function, region: Region) -> bool:
    """Whether nothing in the function takes gradients and evaluation is all that it is for."""
    node = function.node
    if isinstance(node, ast.AsyncFunctionDef) or trains_inside(model, function):
        return False
    if function.is_generator:
        return True
    inside = [s for s in node.body if isinstance(s, ast.For | ast.While | ast.With | ast.AsyncFor)]
    rest = function.size - sum(count(statement) for statement in inside)
    named = bool(knowledge.EVALUATION_NAME.search(function.name))
    return named or not inside or rest <= 12


def count(node: ast.AST) -> int:
    return sum(isinstance(part, ast.stmt) for part in ast.walk(node))


def trains_inside(model: Model, function: Function) -> bool:
    """Whether a gradient is taken while the function runs: in any world, or out of their sight."""
    if function.words & SWITCHES or may_train(model, function.code):
        return True
    return any(
        event.function is function or any(c.callee is function for c in event.calls)
        for world in model.worlds
        for event in world.of(*TRAINING)
    )


def may_train(model: Model, code: str) -> bool:
    """Whether some code calls what trains by its name, or may come to a backward by its words."""
    code = MODE_SWITCH.sub("", code)
    if TRAINS.search(code):
        return True
    words = frozenset(IDENTIFIER.findall(code))
    reading = Reading(model.project, model.module)
    said, imports = reading.reach(reading.read(words))
    for name in sorted(imports):
        said |= reading.said_by_imported(name)
    return bool(said & BACKWARD)


# A decorator is no use, or no help, where these stand inside.
SWITCHES = frozenset(
    {
        "backward",
        "requires_grad_",
        "requires_grad",
        "enable_grad",
        "set_grad_enabled",
        "inference_mode",
    }
)


def wrap_loop(model: Model, region: Region, name: str, imports: tuple[Edit, ...]) -> Fix | None:
    module = model.module
    target = enclosing_loop(module, region.node) or module.statement_of(region.node)
    if not isinstance(target, ast.For | ast.While):
        return None
    if any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(target)):
        return None
    if trains_in(model, target) or may_train(model, module.segment(target)):
        return wrap_call(model, region, name, imports)
    try:
        changes = edits.wrap_in(module, [target], f"with {name}():")
    except edits.NoFix:
        return None
    return make_fix(f"Run the loop under `{name}()`", [*imports, *changes], Safety.SAFE)


def wrap_call(model: Model, region: Region, name: str, imports: tuple[Edit, ...]) -> Fix | None:
    """In a loop that trains, a statement that only evaluates can be run by itself."""
    module = model.module
    statement = module.statement_of(region.node)
    if not isinstance(statement, ast.Expr) or may_train(model, module.segment(statement)):
        return None
    try:
        changes = edits.wrap_in(module, [statement], f"with {name}():")
    except edits.NoFix:
        return None
    title = f"Run `{short(module, statement)}` under `{name}()`"
    return make_fix(title, [*imports, *changes], Safety.SAFE)


def enclosing_loop(module: Module, node: ast.AST) -> ast.stmt | None:
    """The innermost loop around a node, inside its function."""
    for parent in module.enclosing(node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(parent, ast.For | ast.While | ast.AsyncFor):
            return parent
    return None


def trains_in(model: Model, target: ast.stmt) -> bool:
    nodes = {id(node) for node in ast.walk(target)}
    return any(
        id(event.node) in nodes or any(id(call.node) in nodes for call in event.calls)
        for world in model.worlds
        for event in world.of(*TRAINING)
    )
