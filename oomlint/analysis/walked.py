"""Methods whose loss a framework walks: Lightning's training steps, the Hugging Face Trainer's."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import classes, knowledge
from oomlint.analysis.dispatch import run_body
from oomlint.analysis.driven import enter, loop_of
from oomlint.analysis.following import bind_unknown, follow
from oomlint.analysis.iteration import ITERATIONS
from oomlint.analysis.modules import Class, Function
from oomlint.analysis.state import Frame, Kind, World
from oomlint.analysis.training import backward
from oomlint.analysis.values import Callable, Container, Tensor, Value, settled

HUGGING_FACE = re.compile(r"(transformers|trl|sentence_transformers)\.(\w+\.)*\w*Trainer")
# Methods whose loss the framework walks itself, and then steps and zeroes.
WALKED = (
    (knowledge.LIGHTNING_MODULE, "training_step", "on_train_epoch_end"),
    (HUGGING_FACE, "compute_loss", ""),
)


def walks_result(world: World, owner: Class | None, function: Function) -> str | None:
    """The method called after an epoch where a framework walks what this one returns, else None."""
    if owner is None:
        return None
    names = [name for _, name, _ in WALKED]
    if function.name not in names or "automatic_optimization" in owner.module.source.text:
        return None
    bases = classes.base_names(world, owner)
    for kind, name, after in WALKED:
        if name == function.name and any(kind.fullmatch(base) for base in bases):
            return after
    return None


def run_walked(world: World, function: Function, owner: Class, this: Value, after: str) -> None:
    """Runs a method as its framework does: backward and step behind it, in a loop."""
    loop = loop_of(function, function.node, "batch", None)
    node = returned_by(function)
    world.serial += 1
    serial, depth = world.serial, len(world.loops)
    for iteration in range(1, ITERATIONS + 1):
        enter(world, function.module, loop, serial, iteration)
        frame = Frame(function.module, function, this=this)
        bind_unknown(world, frame, function)
        frame.names[function.node.args.args[0].arg] = this
        world.enter(frame)
        loss = loss_in(run_body(world, function.node.body))
        if loss is not None:
            backward(world, node, loss, wrapper="engine", walked=True)
            world.emit(Kind.ENGINE_STEP, node, this)
        world.frames.pop()
        del world.loops[depth:]
    method = classes.find_method(world, owner, after) if after else None
    if method is not None:
        follow(world, Callable(after, function=method, this=this), [], {}, function.node)


def returned_by(function: Function) -> ast.stmt:
    """The last `return` of a function, which is where the framework's own part begins."""
    last: ast.stmt = function.node
    for part in ast.walk(function.node):
        if isinstance(part, ast.Return) and part.lineno > last.lineno:
            last = part
    return last


def loss_in(returned: Value) -> Value | None:
    """The loss in what a step returned: itself, an entry of a dict, the first of a tuple."""
    returned = settled(returned)
    if isinstance(returned, Container):
        first = returned.items[0] if returned.items and returned.kind == "tuple" else None
        return returned.names.get("loss", first)
    return returned if isinstance(returned, Tensor) else None
