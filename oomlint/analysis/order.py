"""In which order things happen: is there a way from one event to another that avoids a third."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from oomlint.analysis.modules import written
from oomlint.analysis.ownership import may_touch
from oomlint.analysis.state import Event, Kind, World, once
from oomlint.analysis.values import Instance, Unknown, Value, members

STEPS = frozenset({Kind.STEP, Kind.SCALER_STEP})

Test = Callable[[Event], bool]


def before(world: World, event: Event, stop: Test) -> Iterator[Event]:
    """Events before one, latest first, up to and without the first that `stop` is true of."""
    for index in range(event.index - 1, -1, -1):
        candidate = world.events[index]
        if stop(candidate):
            return
        yield candidate


def after(world: World, event: Event, stop: Test) -> Iterator[Event]:
    """Events after one, up to and without the first that `stop` is true of."""
    for candidate in world.events[event.index + 1 :]:
        if stop(candidate):
            return
        yield candidate


def way(world: World, start: Event, goal: Test, avoiding: Test) -> Event | None:
    """The first event after `start` that `goal` is true of, with nothing to avoid on the way."""
    for candidate in world.events[start.index + 1 :]:
        if goal(candidate):
            return candidate
        if avoiding(candidate):
            return None
    return None


def first_after(world: World, event: Event, wanted: Test) -> Event | None:
    return next((e for e in world.events[event.index + 1 :] if wanted(e)), None)


def last_before(world: World, event: Event, wanted: Test) -> Event | None:
    for index in range(event.index - 1, -1, -1):
        if wanted(world.events[index]):
            return world.events[index]
    return None


def opaque_between(world: World, first: Event, last: Event, value: Value | None) -> bool:
    """Whether a call that cannot be followed gets the object between two events."""
    return any(
        first.index < event.index < last.index and may_touch(event, value) and not only_reads(event)
        for event in world.of(Kind.OPAQUE_CALL)
    )


SAVING = re.compile(r"(^|\.)_?(save|log|print|report)(_\w+)?$")
# Methods that compute with a network, or read what it holds.
COMPUTING = re.compile(
    r"\.(evaluate|predict|act|forward|encode|decode|get|sample|log_prob)(_\w+)?$"
    r"|\.(set_training_mode|state_dict|parameters)$"
)
# What wraps a network, waits for other processes, or makes a loss leaves its gradients alone.
SPARING = re.compile(
    r"(^|[._])(wrap|unwrap)(_model)?$|[Ll]oss(es)?$|(^|\.)_?(preprocess|apply_preprocessing)$"
    r"|\.(no_(backward_)?sync|barrier|wait_for_everyone|init_tensor)$"
    r"|\.(all_)?(reduce|gather)(_for_metrics)?$|\.broadcast$"
)


CHANGING = re.compile(r"updat|zero|step|reset|apply|optim|train|fit|run|clear|call", re.IGNORECASE)


def only_reads(event: Event) -> bool:
    """`save_checkpoint(model, optimizer)` writes down what it gets and leaves it as it is."""
    if not isinstance(event.node, ast.Call):
        return False
    called = written(event.node.func)
    if any(kind.search(called) for kind in (SAVING, COMPUTING, SPARING)):
        return True
    # `with torch.no_grad(): target(x)` computes, whoever it is.
    computes = event.grad is False and not CHANGING.search(called)
    return computes or calls_own_layer(event)


def calls_own_layer(event: Event) -> bool:
    """`self.body(x)` in a method of a network: a forward of one of its parts."""
    network = event.subject
    function = event.node.func if isinstance(event.node, ast.Call) else None
    if not isinstance(network, Instance) or not network.is_module or network.cls is None:
        return False
    if not isinstance(function, ast.Attribute) or written(function.value) != "self":
        return False
    return bool(network.cls.assigned.get(function.attr))


def is_for_each(world: World, first: Event, again: Event) -> bool:
    """Whether a loop makes one call for each of several objects: nothing trains in between."""
    if again.node is not first.node:
        return False
    return not any(first.index < e.index < again.index for e in world.of(Kind.BACKWARD))


@once
def steps(world: World) -> Sequence[Event]:
    """Every step of an optimizer, by itself or through a scaler."""
    return world.of(*STEPS)


def depth(event: Event) -> int:
    """How many loops an event is in."""
    return len(event.loops)


def same_function(one: Event, other: Event) -> bool:
    return one.function is other.function and one.module is other.module


def origins(values: Iterable[Value]) -> set[int]:
    """Identities of values and of everything that they were computed from, in one walk."""
    found: set[int] = set()
    stack = list(values)
    while stack:
        current = stack.pop()
        if id(current) not in found:
            found.add(id(current))
            stack.extend(members(current))
            if isinstance(current, Unknown):
                stack.extend(current.made_of)
    return found


@once
def fed(world: World) -> frozenset[int]:
    """Identities of every value from which a gradient was taken, and what these came from."""
    taken = world.of(Kind.BACKWARD, Kind.GRADIENT_TAKEN)
    return frozenset(origins(event.value for event in taken if event.value is not None))


def gradients_touched(world: World) -> bool:
    return bool(world.of(Kind.GRADIENT_TOUCHED))
