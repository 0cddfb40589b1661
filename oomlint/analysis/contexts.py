"""What `with` changes: grad mode, autocast, accumulation."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from oomlint.analysis import classes, knowledge
from oomlint.analysis.autocast import KIND, perhaps
from oomlint.analysis.binding import bind
from oomlint.analysis.dispatch import Signal, evaluate, run_block
from oomlint.analysis.following import MAX_DEPTH, bind_arguments
from oomlint.analysis.modules import Function, written
from oomlint.analysis.state import Call, Frame, World
from oomlint.analysis.values import (
    NONE,
    Callable,
    Context,
    Either,
    GradContext,
    Instance,
    Tensor,
    Unknown,
    Value,
    settled,
)


def run_with(world: World, node: ast.With | ast.AsyncWith) -> Signal:
    grad, contexts = world.grad, list(world.contexts)
    entered: list[Entered] = []
    for item in node.items:
        before = world.grad
        value = evaluate(world, item.context_expr)
        enter(world, node, item, value, before)
        manager = own_manager(world, item.context_expr) or entered_object(world, value)
        if manager is not None:
            run_part(world, manager, manager.before)
            entered.append(manager)
    try:
        return run_block(world, node.body)
    finally:
        for manager in reversed(entered):
            run_part(world, manager, manager.after)
        world.grad = grad
        world.contexts[:] = contexts


@dataclass(frozen=True, slots=True)
class Entered:
    """A context manager of the project: what its function does before and after the `yield`."""

    frame: Frame
    node: ast.AST
    before: list[ast.stmt]
    after: list[ast.stmt]


def own_manager(world: World, expression: ast.expr) -> Entered | None:
    """The project's own `@contextmanager` function, where it sets a network's mode."""
    if not isinstance(expression, ast.Call):
        return None
    target = called_function(world, expression.func)
    function = target.function if target is not None else None
    if target is None or function is None or not is_manager(function):
        return None
    parts = around_yield(function.node.body)
    if parts is None or not function.words & SET_MODE or len(world.calls) >= MAX_DEPTH:
        return None
    frame = Frame(function.module, function, parent=target.frame, this=target.this)
    given = [evaluate(world, part) for part in expression.args]
    named = {k.arg: evaluate(world, k.value) for k in expression.keywords if k.arg}
    bind_arguments(world, frame, function, target.this, given, named)
    return Entered(frame, expression, *parts)


def entered_value(world: World, value: Instance) -> Value:
    """What `with Manager(net) as bound` binds: the attribute that its `__enter__` returns."""
    enters = classes.find_method(world, value.cls, "__enter__") if value.cls is not None else None
    last = enters.node.body[-1] if enters is not None else None
    returned = last.value if isinstance(last, ast.Return) else None
    if isinstance(returned, ast.Attribute) and written(returned.value) == "self":
        return value.attributes.get(returned.attr, value)
    return value


def entered_object(world: World, value: Value) -> Entered | None:
    """An object of the project whose `__enter__` sets a network's mode, and nothing about grad."""
    value = settled(value)
    if not isinstance(value, Instance) or value.cls is None or len(world.calls) >= MAX_DEPTH:
        return None
    enters = classes.find_method(world, value.cls, "__enter__")
    leaves = classes.find_method(world, value.cls, "__exit__")
    if enters is None or leaves is None or not enters.words & SET_MODE:
        return None
    if any(method.words & GRAD_WORDS for method in value.cls.methods.values()):
        return None
    frame = Frame(enters.module, enters, this=value)
    bind_arguments(world, frame, enters, value, [], {})
    bind_arguments(world, frame, leaves, value, [NONE, NONE, NONE], {})
    return Entered(frame, enters.node, enters.node.body, leaves.node.body)


GRAD_WORDS = frozenset({"no_grad", "inference_mode", "set_grad_enabled", "enable_grad"})
# What a context manager of the project is followed for; its grad mode is told by its words.
SET_MODE = frozenset({"eval", "train"})


def around_yield(body: list[ast.stmt]) -> tuple[list[ast.stmt], list[ast.stmt]] | None:
    """The statements before and after the only `yield`, also inside of `try` and `with`."""
    holding = [
        i for i, s in enumerate(body) if any(isinstance(part, ast.Yield) for part in ast.walk(s))
    ]
    if len(holding) != 1:
        return None
    index = holding[0]
    before, after = body[:index], body[index + 1 :]
    statement = body[index]
    if isinstance(statement, (ast.Try, ast.With)):
        inner = around_yield(statement.body)
        if inner is None:
            return None
        last = statement.finalbody if isinstance(statement, ast.Try) else []
        return [*before, *inner[0]], [*inner[1], *last, *after]
    return (before, after) if isinstance(statement, (ast.Expr, ast.Assign)) else None


def run_part(world: World, manager: Entered, body: list[ast.stmt]) -> None:
    function, this = manager.frame.function, manager.frame.this
    caller = world.frame
    world.calls.append(Call(manager.node, caller.module, function, caller.this, this))
    world.enter(manager.frame)
    try:
        run_block(world, body)
    finally:
        world.frames.pop()
        world.calls.pop()


def enter(
    world: World,
    node: ast.With | ast.AsyncWith,
    item: ast.withitem,
    value: Value,
    before: bool | None,
) -> None:
    found = value if isinstance(value, Either) else settled(value)
    bound: Value = found
    if isinstance(found, Instance) and found.cls is not None and not found.is_module:
        bound = entered_value(world, found)
    if isinstance(found, GradContext):
        world.grad = found.mode
    elif isinstance(found, Context):
        world.contexts.append(found.kind)
        if found.kind == "scale_loss" and found.inner is not None:
            bound = Tensor(
                f"scaled@{node.lineno}:{world.marks}", parents=(found.inner,), scaled="apex"
            )
    elif isinstance(found, Either):
        kinds = [o.kind for o in found.options if isinstance(o, Context)]
        world.contexts.extend(perhaps(kind) for kind in kinds if kind.startswith(KIND))
        modes = {o.mode if isinstance(o, GradContext) else before for o in found.options}
        unsure = any(isinstance(o, GradContext) for o in found.options)
        world.grad = (modes.pop() if len(modes) == 1 else None) if unsure else before
    else:
        enter_unknown(world, item.context_expr, found, before)
    if item.optional_vars is not None:
        bind(world, item.optional_vars, bound)


def enter_unknown(world: World, expression: ast.expr, value: Value, before: bool | None) -> None:
    text = written(expression)
    call = expression.func if isinstance(expression, ast.Call) else expression
    name = text.split("(")[0].rsplit(".", 1)[-1]
    if "accumulate" in name:
        world.contexts.append("accumulate")
    if "no_sync" in text:
        world.contexts.append("no_sync")
    if knowledge.PROFILER.search(text):
        world.contexts.append("profile")
    target = called_function(world, call)
    function = target.function if target is not None else None
    if function is not None and is_manager(function):
        if function.words & {"no_grad", "inference_mode"}:
            world.grad = False
        elif function.words & {"set_grad_enabled", "enable_grad"}:
            world.grad = None
        return
    if knowledge.NO_GRAD_NAME.search(name):
        world.grad = False
        return
    if (
        before is True
        and isinstance(value, (Unknown, Tensor))
        and knowledge.UNSURE_CONTEXT.search(name)
    ):
        world.grad = None


def called_function(world: World, call: ast.expr) -> Callable | None:
    value = settled(evaluate(world, call)) if isinstance(call, (ast.Name, ast.Attribute)) else None
    return value if isinstance(value, Callable) else None


def is_manager(function: Function) -> bool:
    return any("contextmanager" in written(d) for d in function.decorators)
