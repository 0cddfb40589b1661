"""From events to findings: where a finding stands in the file, and the path that proves it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from oomlint.analysis.modules import Module
from oomlint.analysis.state import Call, Event
from oomlint.rule import Edit, Finding, Fix, Rule, Safety, Waypoint

if TYPE_CHECKING:
    from oomlint.analysis import Model

Node = ast.expr | ast.stmt
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def positions(event: Event) -> list[tuple[Module, ast.AST]]:
    """Where an event happens, seen from every function on the way to it, outermost first."""
    return [*((call.module, call.node) for call in event.calls), (event.module, event.node)]


def anchor(model: Model, event: Event, partner: Event | None = None) -> Node | None:
    """The node of the checked file that a reader would point at.

    With a partner: seen from the function in which both happen.
    """
    places = positions(event)
    index = len(places) - 1
    if partner is not None:
        index = min(common(event.calls, partner.calls), index)
    while index < len(places) - 1 and isinstance(places[index][1], DEFINITIONS):
        index += 1  # A framework calls it: no line is the call.
    while index >= 0:
        module, node = places[index]
        if module is model.module and isinstance(node, ast.expr | ast.stmt):
            return node
        index -= 1
    return None


def common(one: Sequence[Call], other: Sequence[Call]) -> int:
    """How many calls two events share on the way to them."""
    count = 0
    for first, second in zip(one, other, strict=False):
        if first.node is not second.node:
            break
        count += 1
    return count


def waypoint(model: Model, place: Event | Node, what: str) -> Waypoint:
    """A step of the path: an event, or a node of the checked file."""
    if isinstance(place, Event):
        return waypoint_at(model, place.module, place.node, what)
    return waypoint_at(model, model.module, place, what)


def waypoint_at(model: Model, module: Module, node: Node, what: str) -> Waypoint:
    start, end = module.span(node)
    row, column = module.source.position(start)
    end_row, end_column = module.source.position(end)
    filename = "" if module is model.module else str(module.path)
    return Waypoint(what, row, column, end_row, end_column, filename)


def finding(
    model: Model,
    rule: Rule,
    node: Node,
    message: str,
    fix: Fix | None = None,
    path: Sequence[tuple[Event | Node, str]] = (),
) -> Finding:
    module = model.module
    start, end = module.span(node)
    row, column = module.source.position(start)
    end_row, end_column = module.source.position(end)
    return Finding(
        rule.code,
        rule.name,
        message,
        rule.severity,
        start,
        end,
        row,
        column,
        end_row,
        end_column,
        fix,
        tuple(waypoint(model, place, what) for place, what in path),
    )


def make_fix(title: str, edits: Sequence[Edit], safety: Safety) -> Fix:
    from oomlint.analysis.edits import merged

    return Fix(title, merged(edits), safety)


def short(module: Module, node: Node, limit: int = 60) -> str:
    """The text of a node on one line, for messages."""
    text = " ".join(module.segment(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
