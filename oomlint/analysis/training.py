"""The events that most rules ask about: forward, loss, backward, clip."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import classes
from oomlint.analysis.following import decorated_contexts, decorated_mode
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Class
from oomlint.analysis.roles import instance_role, owners_of, role_of
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import (
    Arguments,
    Constant,
    Either,
    External,
    Instance,
    Keywords,
    Tensor,
    Thing,
    Unknown,
    Value,
    has_graph,
    may_have_graph,
    shortened,
)


def forward(
    world: World, node: ast.Call, model: Value, arguments: Arguments, keywords: Keywords
) -> Value:
    name = model.name if isinstance(model, Unknown) else ""
    if isinstance(model, Instance) and instance_role(world, model) is Role.CRITERION:
        return loss_of(world, node, model, arguments, keywords, own_reduction(model.cls))
    inputs = [*arguments, *keywords.values()]
    grad = world.grad
    frozen = model.key in world.frozen and not any(has_graph(value) for value in inputs)
    if isinstance(model, Instance) and model.cls is not None:
        method = classes.find_method(world, model.cls, "forward")
        if method is not None and decorated_mode(world, method) is False:
            grad = False
    contexts = list(world.contexts)
    if isinstance(model, Instance) and model.cls is not None and method is not None:
        world.contexts.extend(decorated_contexts(world, method))
    graph = grad is True and not frozen if grad is not None else None
    key = shortened(f"{model.key}({','.join(v.key for v in inputs)})@{node.lineno}:{world.marks}")
    output = Tensor(key, parents=tuple(inputs), graph=graph, barrier=True)
    event = world.emit(
        Kind.FORWARD,
        node,
        model,
        output,
        frozen=frozen,
        eval_mode=eval_mode_of(world, model),
        name=name,
        mode=grad,
        inputs_graph=any(has_graph(value) for value in inputs),
    )
    world.contexts[:] = contexts
    event.detail["role"] = model.evidence if isinstance(model, (Unknown, Thing)) else None
    return output


def eval_mode_of(world: World, model: Value) -> bool | None:
    """Whether the model, or what holds it, was put into evaluation mode in this world."""
    key = model.key
    while True:
        if key in world.eval_keys:
            return world.eval_keys[key]
        if "." not in key:
            return None
        key = key.rsplit(".", 1)[0]


SUMMED = re.compile(r"reduction\s*=\s*[\"']sum[\"']|size_average\s*=\s*False")


def own_reduction(cls: Class | None) -> str:
    """`sum` where a criterion of the project asks for sums, which is all that is read of it."""
    if cls is None or not SUMMED.search(cls.module.source.text):
        return ""
    text = cls.module.source.text
    found = re.search(rf"^class {cls.name}\b.*?(?=^\w|\Z)", text, re.MULTILINE | re.DOTALL)
    return "sum" if found is not None and SUMMED.search(found.group()) else ""


def loss_of(
    world: World,
    node: ast.Call,
    criterion: Value,
    arguments: Arguments,
    keywords: Keywords,
    reduction: str,
) -> Value:
    inputs = [*arguments, *keywords.values()]
    given = keywords.get("reduction")
    if isinstance(given, Constant) and isinstance(given.value, str):
        reduction = given.value
    elif given is not None:
        reduction = ""
    key = shortened(
        f"{criterion.key}({','.join(v.key for v in inputs)})@{node.lineno}:{world.marks}"
    )
    graph: bool | None = None
    if world.grad is False:
        graph = False
    elif world.grad is True and not isinstance(criterion, External) and inputs:
        graph = True if any(has_graph(value) for value in inputs) else None
    return Tensor(
        key,
        parents=tuple(inputs),
        graph=graph,
        barrier=True,
        loss=True,
        reduction="" if reduction == "none" else reduction,
    )


def backward(
    world: World, node: ast.expr | ast.stmt, loss: Value, wrapper: str = "", **detail: object
) -> Event:
    if world.grad is not False:
        prove(loss)
    return world.emit(Kind.BACKWARD, node, None, loss, wrapper=wrapper, **detail)


def prove(value: Value, depth: int = 0) -> None:
    """A backward from a value proves that it carries a graph, and what it alone came from."""
    if depth > 30 or value.proven:
        return
    value.proven = True
    if isinstance(value, Either):
        # Whichever it is: in the world in which it is that one, the backward walks it.
        for option in value.options:
            if isinstance(option, Tensor):
                prove(option, depth + 1)
        return
    carriers = [p for p in value.parents if may_have_graph(p)]
    if isinstance(value, Tensor) and (value.barrier or value.opaque):
        return
    if len(carriers) == 1:
        prove(carriers[0], depth + 1)
    elif isinstance(value, Tensor) and value.made_by in ("+", "-"):
        for term in summands(value):
            prove(term, depth + 1)


def summands(value: Value) -> Iterator[Tensor]:
    """The averaged terms of a sum, weighed or not: each stands there for its gradient."""
    for part in value.parents:
        if not isinstance(part, Tensor) or part.graph is False:
            continue
        if part.reduction in ("mean", "sum") or part.loss:
            yield part
        elif part.made_by in ("+", "-", "*", "/", "neg"):
            yield from summands(part)


def clip(
    world: World,
    node: ast.Call,
    arguments: Arguments,
    keywords: Keywords,
    receiver: Value | None,
) -> Value:
    role = role_of(world, receiver)
    target = arguments[0] if arguments else keywords.get("parameters")
    limit = (
        arguments[1]
        if len(arguments) > 1
        else keywords.get("max_norm") or keywords.get("clip_value")
    )
    if role is Role.MODEL and len(arguments) == 1:
        target, limit = receiver, arguments[0]
    world.emit(
        Kind.CLIP,
        node,
        target,
        receiver,
        limit=limit,
        wrapper=role.value if role in (Role.ACCELERATOR, Role.ENGINE, Role.OPTIMIZER) else "",
        models=owners_of(target),
    )
    return Tensor(f"norm@{node.lineno}:{world.marks}", graph=False)
