"""What `with` changes: grad mode, autocast, accumulation."""

from __future__ import annotations

import ast
from typing import Any

from oomlint.analysis import knowledge
from oomlint.analysis.autocast import KIND, perhaps
from oomlint.analysis.binding import bind
from oomlint.analysis.dispatch import Signal, evaluate, run_block
from oomlint.analysis.modules import written
from oomlint.analysis.state import World
from oomlint.analysis.values import (
    Callable,
    Context,
    Either,
    GradContext,
    Tensor,
    Unknown,
    Value,
    settled,
)


def run_with(world: World, node: ast.With | ast.AsyncWith) -> Signal:
    grad, contexts = world.grad, list(world.contexts)
    for item in node.items:
        before = world.grad
        value = evaluate(world, item.context_expr)
        enter(world, node, item, value, before)
    try:
        return run_block(world, node.body)
    finally:
        world.grad = grad
        world.contexts[:] = contexts


def enter(
    world: World,
    node: ast.With | ast.AsyncWith,
    item: ast.withitem,
    value: Value,
    before: bool | None,
) -> None:
    found = value if isinstance(value, Either) else settled(value)
    bound: Value = found
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
    function = project_function(world, call)
    if function is not None and any("contextmanager" in written(d) for d in function.decorators):
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
        and isinstance(value, Unknown | Tensor)
        and knowledge.UNSURE_CONTEXT.search(name)
    ):
        world.grad = None


def project_function(world: World, call: ast.expr) -> Any:
    value = settled(evaluate(world, call)) if isinstance(call, ast.Name | ast.Attribute) else None
    return value.function if isinstance(value, Callable) else None
