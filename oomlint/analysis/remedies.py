"""Fixes that more than one rule needs, in the file's own names."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomlint.analysis import edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import make_fix
from oomlint.analysis.modules import Module, written
from oomlint.analysis.state import Event, Guard, Kind, World
from oomlint.rule import Edit, Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


def statement(event: Event) -> ast.stmt:
    return event.module.statement_of(event.node)


def here(model_module: Module, *events: Event) -> bool:
    """Whether all events are in one function of the checked file, so that names mean the same."""
    first = events[0]
    return all(e.module is model_module and e.function is first.function for e in events)


def of_self(module: Module, one: Event, other: Event, *texts: str) -> bool:
    """Whether two events are in methods of one class and the texts mean the same in both."""
    owners = [event.function.owner if event.function else None for event in (one, other)]
    same_class = owners[0] is not None and owners[0] is owners[1] and one.module is module
    return same_class and all(text.startswith("self.") for text in texts)


def extra_guards(event: Event, other: Event) -> list[Guard]:
    """Conditions of `event` inside its function that `other` does not share."""
    inside = {id(node) for node in ast.walk(event.function.node)} if event.function else None
    shared = {written(guard.test) for guard in other.guards}
    return [
        guard
        for guard in event.guards
        if (inside is None or id(guard.test) in inside) and written(guard.test) not in shared
    ]


def under(guards: Sequence[Guard], lines: list[str], step: str) -> list[str]:
    """Lines under the conditions that they need."""
    for guard in reversed(guards):
        test = written(guard.test)
        text = test if guard.truth else f"not ({test})"
        lines = [f"if {text}:", *(step + line for line in lines)]
    return lines


def argument_text(event: Event) -> str | None:
    """The optimizer as `scaler.step(optimizer)` writes it."""
    node = event.node
    if isinstance(node, ast.Call) and node.args:
        return event.module.segment(node.args[0])
    return None


def receiver_text(event: Event) -> str | None:
    """The object as `scaler.step(...)` or `optimizer.step()` writes it."""
    node = event.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return event.module.segment(node.func.value)
    return None


def unscale_before(model: Model, clip: Event, step: Event) -> Fix | None:
    """`scaler.unscale_(optimizer)` in the line before the clip."""
    module = model.module
    scaler, optimizer = receiver_text(step), argument_text(step)
    if scaler is None or optimizer is None:
        return None
    if not here(module, clip, step) and not of_self(module, clip, step, scaler, optimizer):
        return None
    guards = [g for g in extra_guards(step, clip) if ask.AMP.search(written(g.test))]
    if len(guards) < len(extra_guards(step, clip)):
        return None
    if any(
        event.function is clip.function
        for world in model.worlds
        for event in world.of(Kind.UNSCALE)
    ):
        # On another path it is there already: twice would raise.
        return None
    target = statement(clip)
    line = f"{scaler}.unscale_({optimizer})"
    try:
        lines = under(guards, [line], edits.unit(module, target))
        edit = edits.insert_before(module, target, lines)
    except edits.NoFix:
        return None
    return make_fix(f"Insert `{line}` before the clip", [edit], Safety.UNSAFE)


def unscale_earlier(model: Model, clip: Event, unscale: Event) -> Fix | None:
    """The `unscale_` that comes too late moves before the clip."""
    if not here(model.module, clip, unscale):
        return None
    moved = move(model.module, lone_block(model.module, statement(unscale)), statement(clip), False)
    return make_fix("Unscale before the clip", moved, Safety.UNSAFE) if moved else None


def move(module: Module, moved: ast.stmt, target: ast.stmt, behind: bool) -> list[Edit] | None:
    """Takes a statement out and puts it before or behind another; None where that is not clean."""
    try:
        lines = edits.lines_of(module, moved)
        place = edits.insert_after if behind else edits.insert_before
        return [edits.delete(module, moved), place(module, target, lines)]
    except edits.NoFix:
        return None


def step_end(world: World, step: Event) -> ast.stmt:
    """The last statement of a step: `scaler.update()` where that follows in the same block."""
    module, last = step.module, statement(step)
    for event in world.events[step.index + 1 : step.index + 6]:
        if event.kind is Kind.SCALER_UPDATE and event.module is module:
            candidate = statement(event)
            if module.parents[candidate] is module.parents[last]:
                return candidate
    return last


def lone_block(module: Module, node: ast.stmt) -> ast.stmt:
    """The `if` around a statement that holds nothing else, so that both are moved together."""
    while True:
        parent = module.parents.get(node)
        if isinstance(parent, ast.If) and parent.body == [node] and not parent.orelse:
            node = parent
            continue
        return node
