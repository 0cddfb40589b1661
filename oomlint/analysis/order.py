"""In which order things happen: is there a way from one event to another that avoids a third."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oomlint.analysis.ownership import may_touch
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Value, ancestors

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
    for event in world.events[first.index + 1 : last.index]:
        if event.kind is Kind.OPAQUE_CALL and may_touch(event, value):
            return True
    return False


def depth(event: Event) -> int:
    """How many loops an event is in."""
    return len(event.loops)


def same_function(one: Event, other: Event) -> bool:
    return one.function is other.function and one.module is other.module


def fed(world: World) -> set[int]:
    """Identities of every value from which a gradient was taken, and what these came from."""
    found: set[int] = set()
    for event in world.events:
        if event.kind in (Kind.BACKWARD, Kind.GRADIENT_TAKEN) and event.value is not None:
            found |= ancestors(event.value).keys()
    return found


def gradients_touched(world: World) -> bool:
    return any(event.kind is Kind.GRADIENT_TOUCHED for event in world.events)
