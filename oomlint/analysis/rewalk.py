"""Whether the graph of a backward that keeps it is walked again, as far as can be followed."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oomlint.analysis import knowledge
from oomlint.analysis.dispatch import MAX_STATEMENTS
from oomlint.analysis.modules import assigned_to_self, written
from oomlint.analysis.sites import class_of, sites
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import (
    Either,
    Instance,
    Tensor,
    Unknown,
    Value,
    ancestors,
    has_graph,
    options,
)
from oomlint.analysis.walks import backwards

if TYPE_CHECKING:
    from oomlint.analysis import Model

WALKS = (Kind.BACKWARD, Kind.GRADIENT_TAKEN)
# Names of what is carried from step to step, or was computed by somebody else.
CARRIED = re.compile(
    r"hidden|(^|_)(state|hx|cx|hc|mem|memory|carry|cache|h|c|z)\d?$|feat|logit|pred|loss|fake"
    r"|embed|latent|(^|_)out(put)?s?$|recon|generated",
    re.IGNORECASE,
)
# Keys of what a loop runs over, and of what is drawn anew each time.
DATA = re.compile(r"#|sample|batch|loader|next\(")
DRAWN = re.compile(r"(sample|batch|next)\w*$")
# Keys of what unknown calls make that is no tensor: options, paths, devices, loaders, schedules.
WITHOUT_GRAPH = re.compile(
    r"^(argparse|pathlib|os|omegaconf|gymnasium|gym|logging)\."
    r"|^(\w+\.)*(parse_(known_)?args|(get|select)_device|cfg\.get|config\.get)\("
    r"|^(\w+\.)*\w*(DataLoader|Dataset|Sampler|ReplayBuffer|RolloutBuffer|VectorEnv|Schedule)[@(]"
)
# Calls by somebody unknown that may go through a graph once more.
TRAINS = re.compile(r"backward|grad|step|update|train|optimi|penalty|learn", re.IGNORECASE)


def is_needless(model: Model, call: ast.Call) -> bool:
    """Whether every world that reaches a backward shows its graph made anew and walked once."""
    reached = False
    for world in model.worlds:
        for event in world.of(Kind.BACKWARD):
            if event.node is not call or event.module is not model.module:
                continue
            reached = True
            if not walked_once(world, event):
                return False
    return reached and sees_all_walks(model, call) and not is_left_for_others(model, call)


def walked_once(world: World, event: Event) -> bool:
    loss = event.value
    if not isinstance(loss, Tensor | Either) or world.statements >= MAX_STATEMENTS:
        return False
    graph = graph_of(loss)
    if not is_followed(world, event, loss):
        return False
    if world.returned is not None and shares(world.returned, graph):
        return False
    return not any(
        later.index > event.index and goes_through(later, graph)
        for later in world.of(*WALKS, Kind.OPAQUE_CALL)
    )


def goes_through(event: Event, graph: dict[int, Value]) -> bool:
    """Whether an event walks a part of a graph, or hands it to somebody who may."""
    if event.kind is not Kind.OPAQUE_CALL:
        return event.value is not None and shares(event.value, graph)
    passed = event.detail.get("passed")
    values = passed if isinstance(passed, list) else []
    called = event.node.func if isinstance(event.node, ast.Call) else event.node
    return bool(TRAINS.search(written(called))) and any(shares(v, graph) for v in values)


def graph_of(loss: Value) -> dict[int, Value]:
    """The tensors of a loss's graph that were computed, by identity."""
    return {
        key: value
        for key, value in ancestors(loss).items()
        if isinstance(value, Tensor)
        and (has_graph(value) or any(value is option for option in options(loss)))
    }


def shares(value: Value, graph: dict[int, Value]) -> bool:
    return any(key in graph and has_graph(found) for key, found in ancestors(value).items())


def is_followed(world: World, event: Event, loss: Value) -> bool:
    """Whether everything in the graph was made before the backward, in sight, from fresh data."""
    made = {id(forward.value): forward for forward in world.of(Kind.FORWARD)}
    if not all(any(key in made for key in graph_of(option)) for option in options(loss)):
        return False
    for value in ancestors(loss).values():
        if isinstance(value, Unknown) and value.role is None and CARRIED.search(value.name):
            if not DATA.search(value.key):
                return False
        if not isinstance(value, Tensor) or value.graph is False:
            continue
        if value.opaque and WITHOUT_GRAPH.search(value.key):
            continue
        if value.opaque and not value.entry and not DRAWN.search(value.key.split("(")[0]):
            return False
        if value.barrier and not value.loss and has_graph(value):
            forward = made.get(id(value))
            if forward is None or forward.index > event.index or is_stateful(forward.subject):
                return False
            if not in_same_closure(forward, event):
                return False
    return True


def in_same_closure(forward: Event, event: Event) -> bool:
    """Whether a closure that an optimizer calls many times makes the graph that it walks."""
    for index, call in enumerate(event.calls):
        called = call.node.func if isinstance(call.node, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr == "step":
            shared = forward.calls[: index + 1]
            return len(shared) == index + 1 and shared[-1].node is call.node
    return True


def is_stateful(network: Value | None) -> bool:
    """Whether a network of the project keeps something of a forward for the next one."""
    if not isinstance(network, Instance) or network.cls is None:
        return False
    return any(
        method.name != "__init__" and assigned_to_self(method)
        for method in network.cls.methods.values()
    )


def sees_all_walks(model: Model, call: ast.Call) -> bool:
    """Whether every other walk in the same function was met in some world."""
    met = {id(event.node) for world in model.worlds for event in world.of(*WALKS)}
    function = model.module.function_of(call)
    gradients = [s for s in sites(model.module) if knowledge.AUTOGRAD_GRAD.fullmatch(s.qualified)]
    return all(
        id(site.node) in met
        for site in (*backwards(model.module), *gradients)
        if site.function is function
    )


def is_left_for_others(model: Model, call: ast.Call) -> bool:
    """Whether another method walks what this one leaves on `self`."""
    function = model.module.function_of(call)
    owner = class_of(function)
    if function is None or owner is None:
        return False
    left = assigned_to_self(function).keys()
    followed = {other for world in model.worlds for other in world.visited}
    return any(
        left & method.words and {"backward", "autograd"} & method.words
        for method in owner.methods.values()
        if method is not function and method not in followed
    )
