"""Calls that cannot be followed: their result may be anything, their arguments may change."""

from __future__ import annotations

import ast

from oomlint.analysis import knowledge
from oomlint.analysis.state import Kind, World
from oomlint.analysis.values import (
    Arguments,
    Callable,
    Constant,
    Container,
    External,
    Instance,
    Keywords,
    Number,
    Tensor,
    Thing,
    Unknown,
    Value,
    options,
    shortened,
)


def opaque(
    world: World, node: ast.Call, key: str, arguments: Arguments, keywords: Keywords
) -> Value:
    """The result of a call that cannot be followed: it may be anything."""
    inputs = [*arguments, *keywords.values()]
    if "grad" in key.lower() and knowledge.GRADIENT_SCALING.search(key):
        world.emit(Kind.GRADIENT_TOUCHED, node, None)
    emit_opaque(world, node, None, inputs)
    full = shortened(f"{key}({','.join(value.key for value in inputs)})")
    return Tensor(full, parents=tuple(inputs), opaque=True)


def emit_opaque(world: World, node: ast.Call, receiver: Value | None, inputs: list[Value]) -> None:
    """A call that cannot be followed may do anything to the objects that it gets."""
    held: list[Value] = []
    passed: list[Value] = []
    for given in inputs:
        if isinstance(given, (Tensor, Container)):
            passed.append(given)
        elif not isinstance(given, PLAIN):
            held.extend(
                value
                for value in options(given)
                if isinstance(value, (Thing, Instance, Callable))
                or (isinstance(value, Unknown) and value.role is not None)
            )
    if isinstance(receiver, (Instance, Unknown)):
        held.append(receiver)
    if held or passed:
        world.emit(Kind.OPAQUE_CALL, node, receiver, Container("held", items=held), passed=passed)


# Values that nothing can be done to.
PLAIN = (Constant, Number, External)
