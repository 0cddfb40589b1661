"""Mixed precision: which events stand under its conditions, and what other worlds do there."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import written
from oomlint.analysis.order import same_function, way
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Constant, Thing, Value

if TYPE_CHECKING:
    from oomlint.analysis import Model

AMP = re.compile(r"scaler|amp\b|_amp|amp_|fp16|half|precision|autocast|dtype|bf16", re.IGNORECASE)


def amp_tests(event: Event) -> frozenset[str]:
    """The conditions of an event that are about mixed precision."""
    texts = [written(guard.test) for guard in event.guards]
    return frozenset(text for text in texts if AMP.search(text))


def always_enabled(scaler: Value | None) -> ast.Call | None:
    """The call that made a gradient scaler, where nothing can switch the scaler off."""
    call = plain_scaler(scaler)
    enabled = scaler.arguments.get("enabled") if isinstance(scaler, Thing) else None
    on = enabled is None or (isinstance(enabled, Constant) and enabled.value is True)
    return call if on else None


def plain_scaler(scaler: Value | None) -> ast.Call | None:
    """The call that made a gradient scaler, where `enabled` can only be given by its name."""
    if not isinstance(scaler, Thing) or scaler.role is not Role.SCALER or scaler.made is None:
        return None
    call = scaler.made
    # `enabled` comes last: by position it is rare, and told by the number of arguments.
    unpacked = any(isinstance(argument, ast.Starred) for argument in call.args)
    if len(call.args) > 4 or unpacked or any(keyword.arg is None for keyword in call.keywords):
        return None
    return call


def disagree(*events: Event) -> bool:
    """Whether events stand under different mixed-precision conditions that may never meet."""
    found = [tests for tests in map(amp_tests, events) if tests]
    return any(one != other for one in found for other in found)


def steps_elsewhere(model: Model, event: Event) -> bool:
    """Whether another world steps and updates after the same event."""
    for world in model.worlds:
        for other in world.events if world.of(Kind.SCALER_UPDATE) else ():
            if other.node is event.node:
                found = way(
                    world,
                    other,
                    lambda e: e.kind is Kind.SCALER_UPDATE,
                    lambda e: e.kind is Kind.UNSCALE and e.node is event.node,
                )
                if found is not None:
                    return True
    return False


def clip_before(world: World, start: Event, step: Event) -> Event | None:
    """A clip between two events that stands under the same conditions as the step."""
    guards = {written(guard.test) for guard in step.guards}
    for event in world.of(Kind.CLIP):
        if start.index < event.index < step.index and same_function(event, step):
            if guards <= {written(guard.test) for guard in event.guards}:
                return event
    return None
