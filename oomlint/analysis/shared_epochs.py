"""Epoch functions that training and evaluation share, and that backpropagate in both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import knowledge
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import common
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.remedies import extra_guards
from oomlint.analysis.sites import own_nodes
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.training_mode import MODES, concerns, may_restore
from oomlint.analysis.values import ancestors, has_graph

# Parameters that say whether an epoch trains.
TRAIN_FLAG = re.compile(r"^(is_|do_|in_)?train(ing|_mode|_flag)?$|^is_training$")
# What a loop over data runs over.
DATA = re.compile(r"load|data|iter|batch|valid|test|_dl\b|\bdl\b", re.I)
# Gradients in evaluation that are wanted: attacks, saliency, adaptation, penalties.
WANTED = re.compile(
    r"attack|advers|perturb|salien|attribut|grad_?cam|adapt|fine_?tune|invert|inversion|requires_grad"
    r"|autograd|\.grad\b|meta|maml|inner|fisher|hessian|influence|ttt|tent\b|latent|style|dream"
    r"|calibrat|temperature|probe|linear_eval|hook",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Misused:
    """A backward in evaluation mode: what set the mode, and the step that uses the gradients."""

    mode: Event
    backward: Event
    step: Event | None


def misused(module: Module, world: World) -> Iterator[Misused]:
    """Backward passes of evaluation that belong to training."""
    if not world.of(Kind.EVAL_MODE):
        return
    forwards = {id(event.value): event for event in world.of(Kind.FORWARD)}
    pairs = [
        (forward, backward)
        for backward in world.of(Kind.BACKWARD)
        if backward.value is not None and backward.grad is True
        for forward in (last_forward(forwards, backward),)
        if forward is not None
    ]
    for forward, backward in pairs:
        if forward.detail["eval_mode"] is not True or forward.detail["frozen"]:
            continue
        mode = mode_of(world, forward)
        if mode is None or is_wanted(world, mode, backward):
            continue
        if shared(mode) or in_both_modes(pairs, backward) or is_evaluation(mode, backward):
            if not extra_conditions(backward, mode):
                yield Misused(mode, backward, step_after(world, backward))


def last_forward(forwards: dict[int, Event], backward: Event) -> Event | None:
    """The latest forward that a loss was computed from."""
    assert backward.value is not None
    found = [forwards[key] for key in ancestors(backward.value) if key in forwards]
    found = [e for e in found if e.value is not None and has_graph(e.value)]
    return max(found, key=lambda event: event.index, default=None)


def mode_of(world: World, forward: Event) -> Event | None:
    """The switch to evaluation mode that a forward stands under, with no evaluation in between."""
    used = ask.fed(world)
    for event in reversed(world.events[: forward.index]):
        if not concerns(event.subject, forward.subject):
            continue
        if event.kind in MODES:
            return event if event.kind is Kind.EVAL_MODE else None
        if event.kind is Kind.FORWARD and id(event.value) not in used:
            return None
    return None


def is_wanted(world: World, mode: Event, backward: Event) -> bool:
    """Whether the gradients are for something else than a step of training."""
    ways = backward.calls[common(mode.calls, backward.calls) :]
    functions = {backward.function, *(call.callee for call in ways)}
    for function in functions:
        if function is not None and (WANTED.search(function.name) or WANTED.search(function.code)):
            return True
    between = world.events[mode.index + 1 : backward.index]
    return any(
        e.kind is Kind.GRADIENT_TAKEN or (e.kind is Kind.OPAQUE_CALL and may_restore(e, mode))
        for e in between
    )


def makes_optimizer(function: Function) -> bool:
    """An optimizer of its own: something is fitted here on purpose."""
    return bool(re.search(r"optim\.\w+\(|\b(SGD|Adam|AdamW|LBFGS|RMSprop)\(", function.code))


def shared(mode: Event) -> bool:
    """Whether the code chooses between both modes where it sets this one."""
    node = mode.node
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr == "train":
        asked = given(node)
        return bool(asked) and not isinstance(asked[0], ast.Constant)
    receiver = written(node.func.value)
    guards = list(around(mode))
    if any(FREEZES.search(written(guard.test)) for guard in guards):
        return False
    return any(
        isinstance(part, ast.Call) and written(part.func) == f"{receiver}.train"
        for guard in guards
        for part in ast.walk(guard)
    )


# A network that is trained in part keeps its statistics on purpose.
FREEZES = re.compile(r"fr(ee|o)ze|fine_?tun|prob(e|ing)\b", re.IGNORECASE)


def around(mode: Event) -> Iterator[ast.If | ast.IfExp]:
    """The conditions that a switch of the mode is an arm of, inside its function."""
    for parent in mode.module.enclosing(mode.node):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            return
        if isinstance(parent, ast.If | ast.IfExp):
            yield parent


def in_both_modes(pairs: list[tuple[Event, Event]], backward: Event) -> bool:
    """Whether another call leads to the same backward in training mode."""
    route = [call.node for call in backward.calls]
    return any(
        other.node is backward.node
        and forward.detail["eval_mode"] is False
        and [call.node for call in other.calls] != route
        for forward, other in pairs
    )


def is_evaluation(mode: Event, backward: Event) -> bool:
    """Whether the function that does both says that it evaluates, and fits nothing of its own."""
    function = mode.function
    return function is not None and function is backward.function and evaluates(function)


def evaluates(function: Function) -> bool:
    """Whether a function goes through data to evaluate; a unit test does not."""
    if not knowledge.EVALUATION_NAME.search(function.name) or makes_optimizer(function):
        return False
    return any(
        isinstance(node, ast.For) and DATA.search(written(node.iter))
        for node in own_nodes(function.node)
    )


def extra_conditions(backward: Event, mode: Event) -> bool:
    """Whether the backward stands under a condition that may keep evaluation out."""
    return any(not ask.AMP.search(written(g.test)) for g in extra_guards(backward, mode))


def step_after(world: World, backward: Event) -> Event | None:
    """The step that uses the gradients before they are cleared."""
    for event in world.events[backward.index + 1 :]:
        if event.kind in ask.STEPS or event.kind is Kind.ENGINE_STEP:
            return event
        if event.kind in (Kind.ZERO_GRAD, Kind.BACKWARD):
            return None
    return None


def flagged(module: Module) -> Iterator[tuple[ast.Call, ast.Call, bool]]:
    """Functions by themselves: `model.train(training)`, or `eval()` in one that evaluates, and a
    backward that does not ask; with whether a step uses the gradients there."""
    for function in module.all_functions:
        if "backward" not in function.words or not {"train", "eval"} & function.words:
            continue
        if WANTED.search(function.name) or WANTED.search(function.code):
            continue
        if any(isinstance(parent, ast.If | ast.IfExp) for parent in guards_of(function)):
            continue
        found = by_flag(function) or (by_name(function) if evaluates(function) else None)
        if found is not None:
            yield *found, any(True for _ in methods(function, "step"))


def by_flag(function: Function) -> tuple[ast.Call, ast.Call] | None:
    arguments = function.node.args
    names = [a.arg for a in (*arguments.args, *arguments.kwonlyargs)]
    flags = {name for name in names if TRAIN_FLAG.match(name)}
    modes = [
        node
        for node in methods(function, "train")
        if len(given(node)) == 1 and written(given(node)[0]) in flags
    ]
    backward = next(methods(function, "backward"), None)
    if not modes or backward is None or asks(function, flags):
        return None
    return modes[-1], backward


def by_name(function: Function) -> tuple[ast.Call, ast.Call] | None:
    mode = next(methods(function, "eval"), None)
    backward = next(methods(function, "backward"), None)
    if mode is None or backward is None or mode.lineno > backward.lineno:
        return None
    if "no_grad" in function.words or any(True for _ in methods(function, "train")):
        return None
    return mode, backward


def methods(function: Function, name: str) -> Iterator[ast.Call]:
    """The calls of a method of this name in a function, in source order."""
    for node in own_nodes(function.node):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == name:
                yield node


def given(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def asks(function: Function, flags: set[str]) -> bool:
    """Whether anything but the mode depends on the flag."""
    reads = [
        node
        for node in own_nodes(function.node)
        if isinstance(node, ast.Name) and node.id in flags and isinstance(node.ctx, ast.Load)
    ]
    return len(reads) > 1


def guards_of(function: Function) -> Iterator[ast.AST]:
    """What encloses the backward passes of a function."""
    for node in methods(function, "backward"):
        for parent in function.module.enclosing(node):
            if parent is function.node:
                break
            yield parent
