"""Hands expressions and statements to what understands their kind, one after the other."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from oomlint.analysis.state import Raised, Stop, World
from oomlint.analysis.values import NONE, Unknown, Value, join

# A world that is longer than this is cut; what happened until then counts.
MAX_STATEMENTS = 5000


@dataclass(frozen=True, slots=True)
class Return:
    value: Value


BREAK, CONTINUE, RAISE = "break", "continue", "raise"
Signal = Return | str | None

# Filled where all of the analysis comes together, so that no handler has to import another one's
# module: a call leads to statements, these to expressions, these to calls.
EXPRESSIONS: dict[type[ast.expr], Callable[[World, Any], Value]] = {}
STATEMENTS: dict[type[ast.stmt], Callable[[World, Any], Signal]] = {}


def evaluate(world: World, node: ast.expr) -> Value:
    try:
        handler = EXPRESSIONS[type(node)]
    except KeyError:
        return Unknown(f"?{type(node).__name__}")
    return handler(world, node)


def run_body(world: World, body: list[ast.stmt]) -> Value:
    """Runs a function's body in the current frame; what it returns on any followed way."""
    signal = run_block(world, body)
    returns = world.frame.returns
    if isinstance(signal, Return):
        returns = [*returns, signal.value]
    if not returns:
        if signal == RAISE:
            raise Raised
        return NONE
    result = returns[0]
    for value in returns[1:]:
        result = join(result, value)
    return result


def run_block(world: World, body: list[ast.stmt]) -> Signal:
    depth = len(world.guards)
    try:
        for statement in body:
            signal = run(world, statement)
            if signal is not None:
                return signal
    finally:
        del world.guards[depth:]
    return None


def run(world: World, node: ast.stmt) -> Signal:
    world.statements += 1
    if world.statements > MAX_STATEMENTS:
        raise Stop
    handler = STATEMENTS.get(type(node))
    return handler(world, node) if handler is not None else None
