"""Which outputs of models outlive their iteration with their graph, and how to cut them off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import questions as ask
from oomlint.analysis import retention as kept
from oomlint.analysis.modules import Function, written
from oomlint.analysis.nodes import walk
from oomlint.analysis.retention import Retention
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import (
    Container,
    Memo,
    Tensor,
    Unknown,
    ancestors,
    has_graph,
)

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class KeptOutput:
    """One place that holds on to what a model put out; `walked`: a backward freed its tensors."""

    retention: Retention
    walked: bool


def outputs(model: Model) -> Iterator[KeptOutput]:
    """Outputs of a training loop that are no losses; losses are `retention.losses`."""
    found = [pair for world in model.worlds for pair in kept_in(model, world)]
    taken = {id(event.node) for w in model.worlds for event, _ in kept.carried_over(w)}
    asked = {id(output.retention.event.node) for output in found}
    seen = taken | kept.used_for_training(model, asked) | read_for_training(model, asked)
    for output in found:
        nodes = {id(output.retention.event.node), id(output.retention.node)}
        if not nodes & seen:
            seen |= nodes
            yield output


def kept_in(model: Model, world: World) -> Iterator[KeptOutput]:
    backwards = world.of(Kind.BACKWARD)
    if not backwards or not world.of(*ask.STEPS, Kind.ENGINE_STEP):
        return
    memo: Memo = {}
    made = {id(event.value): event for event in world.of(Kind.FORWARD)}
    walked = kept.graphs_walked(backwards, memo)
    for event in world.of(Kind.KEEP):
        if event.value is None or not kept.outlives(event, memo) or not is_list_like(event):
            continue
        carriers = {key for key, v in ancestors(event.value).items() if has_graph(v, memo)}
        forwards = [made[key] for key in carriers if key in made]
        if not any(is_of_iteration(forward, event) for forward in forwards):
            continue
        if is_backpropagated_later(event):
            continue
        beside = [pair for pair in walked if kept.shares_iteration(pair[0], event)]
        through = [backward for backward, held in beside if held & carriers]
        if not beside or (not through and not is_local(event)):
            continue
        retention = kept.describe(model, event, (through or [beside[0][0]])[0])
        if retention is not None:
            yield KeptOutput(retention, bool(through))


def is_backpropagated_later(event: Event) -> bool:
    """Whether the same function has a backward for an entry of what is kept: `losses[i]`."""
    function, place = event.function, kept.place_of(event)
    if function is None:
        return False
    # Worlds tell of the same place again and again.
    memo: dict[str, bool] = function.__dict__.setdefault("backpropagated_entries", {})
    if place not in memo:
        memo[place] = has_backward_of_entry(function, place)
    return memo[place]


def has_backward_of_entry(function: Function, place: str) -> bool:
    nodes = list(walk(function.node))
    taken = {
        written(goal)
        for node in nodes
        if isinstance(node, ast.Assign) and is_entry(node.value, place)
        for goal in node.targets
    }
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "backward":
                given = [node.func.value, *node.args[:1]]
                if any(is_entry(part, place) or written(part) in taken for part in given):
                    return True
    return False


def is_entry(node: ast.expr, place: str) -> bool:
    return isinstance(node, ast.Subscript) and written(node.value) == place


def is_of_iteration(forward: Event, event: Event) -> bool:
    """Whether a forward happened in the iteration that what is kept outlives."""
    return kept.shares_iteration(forward, event)


def is_list_like(event: Event) -> bool:
    """Whether the place is known to hold on to what it is given: `add` of an object may not."""
    if not isinstance(event.subject, Unknown):
        return True
    node = event.node
    method = node.func.attr if isinstance(node, ast.Call) and hasattr(node.func, "attr") else ""
    return method in ("append", "extend", "appendleft")


def is_local(event: Event) -> bool:
    """Whether only the function itself sees the place: no other method computes a loss from it."""
    return isinstance(event.subject, Container | Tensor) and kept.place_of(event).isidentifier()


def read_for_training(model: Model, asked: set[int]) -> set[int]:
    """Which of these statements fill a place, known by its name only, that a loss is read from."""
    found: set[int] = set()
    for world in model.worlds:
        keeping = [
            event
            for event in world.of(Kind.KEEP)
            if id(event.node) in asked and isinstance(event.subject, Unknown)
        ]
        if not keeping:
            continue
        fed = {
            value.key
            for event in world.of(Kind.BACKWARD, Kind.GRADIENT_TAKEN)
            if event.value is not None
            for value in ancestors(event.value).values()
            if isinstance(value, Unknown)
        }
        for event in keeping:
            key = event.subject.key if event.subject is not None else ""
            if any(part == key or part.startswith((f"{key}[", f"{key}.")) for part in fed):
                found.add(id(event.node))
    return found
