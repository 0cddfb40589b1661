"""What is seen of some statements while worlds are followed, for who asks why they mean nothing."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from oomlint.analysis import dispatch
from oomlint.analysis.modules import Function, Module
from oomlint.analysis.state import Call, Guard, Loop, World
from oomlint.analysis.values import Value

# Values of one expression that are kept: later worlds seldom add anything.
MAX_READINGS = 60


@dataclass(frozen=True, slots=True)
class Visit:
    """One time that a statement was reached, and how."""

    world: World
    calls: tuple[Call, ...]
    guards: tuple[Guard, ...]
    loops: tuple[Loop, ...]
    grad: bool | None
    contexts: tuple[str, ...]
    # Functions under way, the outermost first; they hold a constructor that nobody called, too.
    functions: tuple[Function, ...]


@dataclass(slots=True)
class Observation:
    """What was seen of a module's statements and of the expressions that were watched."""

    module: Module
    watched: frozenset[ast.AST]
    # Functions whose calls are watched wherever they stand.
    callees: frozenset[str]
    visits: dict[ast.AST, list[Visit]] = field(default_factory=dict)
    readings: dict[ast.AST, list[tuple[World, Value]]] = field(default_factory=dict)
    # Calls of watched functions, with the functions under way.
    calls: dict[ast.Call, tuple[Function, ...]] = field(default_factory=dict)
    # Every statement of the module that was reached at all.
    reached: set[ast.AST] = field(default_factory=set)

    def statement(self, world: World, node: ast.stmt) -> None:
        if world.frames[-1].module is not self.module:
            return
        self.reached.add(node)
        if node in self.watched:
            visit = Visit(
                world,
                tuple(world.calls),
                tuple(world.guards),
                tuple(world.loops),
                world.grad,
                tuple(world.contexts),
                under_way(world),
            )
            self.visits.setdefault(node, []).append(visit)

    def expression(self, world: World, node: ast.expr, value: Value) -> None:
        if node in self.watched:
            known = self.readings.setdefault(node, [])
            if len(known) < MAX_READINGS:
                known.append((world, value))
        if isinstance(node, ast.Call) and last_name(node.func) in self.callees:
            self.calls.setdefault(node, under_way(world))


def under_way(world: World) -> tuple[Function, ...]:
    return tuple(frame.function for frame in world.frames if frame.function is not None)


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@contextmanager
def observing(
    module: Module, watched: Iterable[ast.AST], callees: Iterable[str]
) -> Iterator[Observation]:
    """Sees what is followed inside the block; outside of it nothing is slower for it."""
    # Fills the tables, which must be full before they are wrapped.
    from oomlint.analysis import exploration  # noqa: F401

    observation = Observation(module, frozenset(watched), frozenset(callees))
    expressions, statements = dict(dispatch.EXPRESSIONS), dict(dispatch.STATEMENTS)
    for kind in expressions:
        dispatch.EXPRESSIONS[kind] = expression_handler(observation, expressions[kind])
    for statement in ast.stmt.__subclasses__():
        dispatch.STATEMENTS[statement] = statement_handler(observation, statements.get(statement))
    try:
        yield observation
    finally:
        dispatch.EXPRESSIONS.clear()
        dispatch.EXPRESSIONS.update(expressions)
        dispatch.STATEMENTS.clear()
        dispatch.STATEMENTS.update(statements)


def expression_handler(
    observation: Observation, handler: Callable[[World, Any], Value]
) -> Callable[[World, Any], Value]:
    def handle(world: World, node: ast.expr) -> Value:
        value = handler(world, node)
        observation.expression(world, node, value)
        return value

    return handle


def statement_handler(
    observation: Observation, handler: Callable[[World, Any], dispatch.Signal] | None
) -> Callable[[World, Any], dispatch.Signal]:
    def handle(world: World, node: ast.stmt) -> dispatch.Signal:
        observation.statement(world, node)
        return handler(world, node) if handler is not None else None

    return handle
