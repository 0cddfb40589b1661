"""Which backwards feed a step, and whether a gradient scaler scaled them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomlint.analysis import questions as ask
from oomlint.analysis.state import Event, Kind, World, once
from oomlint.analysis.values import scaler_of

if TYPE_CHECKING:
    from oomlint.analysis import Model


@once
def flow(world: World) -> Sequence[Event]:
    """All that makes, changes, uses and erases gradients."""
    return world.of(Kind.BACKWARD, Kind.GRADIENT_TOUCHED, Kind.UNSCALE, Kind.ZERO_GRAD, *ask.STEPS)


def feeding(world: World, step: Event) -> list[Event]:
    """The backwards since these gradients were zeroed or used; empty where they are unscaled."""
    found: list[Event] = []
    for event in reversed(flow(world)):
        if event.index >= step.index:
            continue
        if event.kind is Kind.UNSCALE:
            if event.subject is None or ask.same(event.subject, step.subject):
                return []
        elif event.kind is Kind.GRADIENT_TOUCHED:
            return []
        elif event.kind is Kind.ZERO_GRAD:
            if ask.concerns(event, step.subject):
                break
        elif event.kind is Kind.BACKWARD:
            if event.detail.get("wrapper") or event.value is None:
                return []
            found.append(event)
        # What came before another optimizer's step was its own, unless nothing came since.
        elif found or uses_them(event, step):
            break
    return found


def uses_them(earlier: Event, step: Event) -> bool:
    """Whether an earlier step left nothing for this one; `scaler.step` may only repeat it."""
    mine = ask.same(earlier.subject, step.subject)
    return mine and (step.kind is Kind.SCALER_STEP or earlier.kind is Kind.STEP)


def mixed(model: Model, backward: Event) -> bool:
    """Whether the same function also has a scaled backward: then the branches are the author's.

    Under the same conditions both run: the other loss is scaled, and this one forgotten.
    """
    tests = [(guard.test, guard.truth) for guard in backward.guards]
    return any(
        ask.same_function(event, backward)
        and event.node is not backward.node
        and event.value is not None
        and scaler_of(event.value) is not None
        and [(guard.test, guard.truth) for guard in event.guards] != tests
        for world in model.worlds
        for event in world.of(Kind.BACKWARD)
    )
