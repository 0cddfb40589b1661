"""Hands an expression to what understands its kind: where names, operations and calls meet."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from oomlint.analysis.state import World
from oomlint.analysis.values import Unknown, Value

HANDLERS: dict[type[ast.expr], Callable[[World, Any], Value]] = {}


def evaluate(world: World, node: ast.expr) -> Value:
    handler = HANDLERS.get(type(node))
    if handler is None:
        return Unknown(f"?{type(node).__name__}")
    return handler(world, node)
