"""Divisions by hand of a loss that Accelerate, DeepSpeed or Lightning divides, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import classes, knowledge
from oomlint.analysis.accumulation import is_number
from oomlint.analysis.answers import Node
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import own_nodes
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Constant, Thing, Value, is_divided, settled

if TYPE_CHECKING:
    from oomlint.analysis import Model


Division = tuple[Node, ast.expr, str, Event | None]


def wrapped(model: Model) -> Iterator[Division]:
    """Divisions of what `accelerator.backward` or DeepSpeed's `engine.backward` is given."""
    for world in model.worlds:
        for event in world.of(Kind.BACKWARD):
            if event.module is not model.module:
                continue
            framework = dividing(world, event)
            for division, divisor in by_hand(event):
                if framework or is_own_number(event, divisor):
                    yield division, divisor, framework or "Accelerate", event


def dividing(world: World, event: Event) -> str:
    """The framework that divides what this backward is given; empty where none certainly does."""
    wrapper, node = event.detail.get("wrapper"), event.node
    if not isinstance(node, ast.Call):
        return ""
    if wrapper == "accelerator":
        steps = steps_given(event)
        given = steps is not None and not (isinstance(steps, Constant) and steps.value == 1)
        return "Accelerate" if given or "accumulate" in event.contexts else ""
    if wrapper == "engine":
        scales = not any(keyword.arg == "scale_wrt_gas" for keyword in node.keywords)
        stepped = [e for e in world.of(Kind.ENGINE_STEP) if e.index > event.index]
        by_itself = bool(stepped) and not stepped[0].guards
        known = "deepspeed" in event.module.source.text
        return "DeepSpeed" if scales and by_itself and known else ""
    return ""


def is_own_number(event: Event, divisor: ast.expr) -> bool:
    """`accelerator.backward(loss / accelerator.gradient_accumulation_steps)`."""
    call = event.node
    if event.detail.get("wrapper") != "accelerator" or not isinstance(call, ast.Call):
        return False
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else call
    return written(divisor) == f"{written(receiver)}.gradient_accumulation_steps"


def steps_given(event: Event) -> Value | None:
    """What an Accelerator was told about accumulation when it was built."""
    receiver = event.detail.get("receiver")
    thing = settled(receiver) if isinstance(receiver, Value) else None
    if not isinstance(thing, Thing) or not thing.qualified.startswith("accelerate."):
        return None
    return thing.arguments.get("gradient_accumulation_steps") or thing.arguments.get(
        "gradient_accumulation_plugin"
    )


def by_hand(event: Event) -> Iterator[tuple[Node, ast.expr]]:
    """The divisions by a number of micro-batches between the loss and its backward."""
    call, function = event.node, event.function
    if not isinstance(call, ast.Call) or not call.args or event.value is None:
        return
    if not is_divided(event.value):
        return
    found = list(divisions(event.module, function, call.args[0], call.lineno, event))
    if not found and function is not None:
        for other in event.module.all_functions:
            if other.name in function.words and other is not function:
                found += returned(other, event)
    yield from found


def divisions(
    module: Module, function: Function | None, used: ast.expr, row: int, event: Event | None
) -> Iterator[tuple[Node, ast.expr]]:
    """Divisions inside an expression, or of a name that it uses, in the rows before it."""
    inside = {id(node) for node in ast.walk(used)}
    names = {written(node) for node in ast.walk(used) if isinstance(node, ast.Name | ast.Attribute)}
    for node in own_nodes(function.node if function is not None else module.tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
            if written(node.target) in names and node.lineno <= row and counts(node.value, event):
                yield node, node.value
        elif isinstance(node, ast.BinOp) and id(node) in inside and is_count(node, event):
            yield node, divisor_of(node)
        elif isinstance(node, ast.Assign) and node.lineno <= row:
            if any(written(target) in names for target in node.targets):
                for part in ast.walk(node.value):
                    if isinstance(part, ast.BinOp) and is_count(part, event):
                        yield part, divisor_of(part)


def returned(function: Function, event: Event | None) -> Iterator[tuple[Node, ast.expr]]:
    for node in own_nodes(function.node):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from divisions(function.module, function, node.value, node.lineno, event)


def is_count(node: ast.BinOp, event: Event | None) -> bool:
    if isinstance(node.left, ast.Constant) or is_number(node.left):
        return False
    divides = isinstance(node.op, ast.Div) or divisor_of(node) is not node.right
    return divides and counts(divisor_of(node), event)


def divisor_of(node: ast.BinOp) -> ast.expr:
    """The `n` of `loss / n` and of `loss * (1 / n)`."""
    share = node.right
    if isinstance(node.op, ast.Mult) and isinstance(share, ast.BinOp):
        if isinstance(share.op, ast.Div) and isinstance(share.left, ast.Constant):
            return share.right
    return share


def counts(divisor: ast.expr, event: Event | None) -> bool:
    """Whether a divisor is the number of micro-batches: by its name, or the Accelerator's own."""
    if knowledge.ACCUMULATION_NAME.search(written(divisor)):
        return True
    steps = steps_given(event) if event is not None else None
    if isinstance(divisor, ast.Constant) and isinstance(steps, Constant):
        return bool(divisor.value == steps.value)
    return steps is not None and written(divisor) == steps.key


def in_lightning(model: Model) -> Iterator[Division]:
    """Divisions of what a LightningModule's `training_step` returns."""
    world = World(model.project, model.module)
    for cls in model.module.classes.values():
        method = cls.methods.get("training_step")
        if method is None or "automatic_optimization" in model.module.segment(cls.node):
            continue
        bases = classes.base_names(world, cls)
        if any(knowledge.LIGHTNING_MODULE.fullmatch(base) for base in bases):
            helpers = [m for name, m in cls.methods.items() if name in method.words]
            for part in (method, *helpers):
                for division, divisor in returned(part, None):
                    yield division, divisor, "Lightning", None
