"""Which outputs of models outlive their iteration with their graph, and how to cut them off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import questions as ask
from oomlint.analysis import retention as kept
from oomlint.analysis.answers import Node, anchor
from oomlint.analysis.modules import written
from oomlint.analysis.retention import Retention
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import (
    Container,
    Memo,
    Tensor,
    Unknown,
    Value,
    ancestors,
    has_graph,
    members,
    options,
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
        beside = [pair for pair in walked if kept.shares_iteration(pair[0], event)]
        through = [backward for backward, held in beside if held & carriers]
        if not beside or (not through and not is_local(event)):
            continue
        retention = kept.describe(model, event, (through or [beside[0][0]])[0])
        if retention is not None:
            yield KeptOutput(retention, bool(through))


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


# rollouts: what is detached to be carried on and stored as it is


@dataclass(frozen=True, slots=True)
class StoredState:
    """A store that gets a state with its graph although the next step gets it without."""

    node: Node
    place: str
    state: str
    path: tuple[tuple[Event, str], ...]


def stored_states(model: Model) -> Iterator[StoredState]:
    trained = {key for world in model.worlds for key in ask.fed(world)}
    seen: set[int] = set()
    for world in model.worlds:
        cuts = [event for event in world.of(Kind.DETACH) if is_cut(event)]
        if not cuts or not world.of(Kind.ENVIRONMENT_STEP):
            continue
        for event, values in stores(world):
            for cut in cuts:
                state = stored_with_graph(world, event, values, cut)
                node = anchor(model, event) if state is not None else None
                if state is None or node is None or id(node) in seen or id(state) in trained:
                    continue
                seen.add(id(node))
                text = written(node.func) if isinstance(node, ast.Call) else "the store"
                name = name_of(node, cut)
                path = ((event, "stored with its graph"), (cut, "detached to be carried on"))
                yield StoredState(node, text, name, path)


def is_cut(event: Event) -> bool:
    node = event.node
    method = node.func.attr if isinstance(node, ast.Call) and hasattr(node.func, "attr") else ""
    return method in ("detach", "detach_")


STORING = frozenset({"store", "add", "append", "push", "insert", "put", "remember", "record"})


def stores(world: World) -> Iterator[tuple[Event, list[Value]]]:
    """Calls that store what they are given, as far as their names tell."""
    for event in world.of(Kind.OPAQUE_CALL, Kind.KEEP):
        node = event.node
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in STORING or not event.loops:
            continue
        passed = event.detail.get("passed")
        if event.kind is Kind.KEEP:
            yield event, [event.value] if event.value is not None else []
        elif isinstance(passed, list):
            yield event, passed


def stored_with_graph(world: World, event: Event, values: list[Value], cut: Event) -> Value | None:
    """The stored part of a forward's output, made with grad mode on, that `cut` detaches."""
    if cut.index < event.index or cut.value is None:
        return None
    if not any(
        (loop.serial, loop.iteration) == (event.loops[-1].serial, event.loops[-1].iteration)
        for loop in cut.loops
    ):
        return None
    made = {id(f.value) for f in world.of(Kind.FORWARD) if f.detail.get("mode") is True}
    detached = ancestors(cut.value)
    for value in values:
        for part in pieces(value):
            whole = part.parents[0] if isinstance(part, Tensor) and part.entry else part
            if id(whole) in made and id(part) in detached:
                return part
    return None


def pieces(value: Value) -> Iterator[Value]:
    """A value, or what is in it where it is a row that is stored."""
    for option in options(value):
        yield option
        if isinstance(option, Container):
            for item in members(option):
                yield from options(item)


def name_of(node: Node, cut: Event) -> str:
    """How the store writes the state: the name that the cut has too."""
    names = {n.id for n in ast.walk(cut.module.statement_of(cut.node)) if isinstance(n, ast.Name)}
    given = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in names - {"self"}]
    return given[-1] if given else "state"
