"""What a loop's target is bound to in one iteration."""

from __future__ import annotations

import ast

from oomlint.analysis import knowledge
from oomlint.analysis.knowledge import Role
from oomlint.analysis.state import World
from oomlint.analysis.values import (
    NONE,
    Container,
    Instance,
    Number,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    settled,
    shortened,
    unknown,
)

# How often a loop is followed: what carries over from one iteration to the next is seen once.
ITERATIONS = 2
# How many objects of a display are followed one by one: `for o in (a, b, c): o.zero_grad()`.
MAX_OBJECTS = 8
# The same where a loop is inside, which costs as much again for each of them.
MAX_AROUND_LOOPS = 4
LASTING = (Thing, Instance, Unknown)


def iterations_of(iterable: Value | None) -> int:
    """How often a loop is followed: over known objects, once for each of them."""
    iterable = settled(iterable) if iterable is not None else None
    if isinstance(iterable, Sequence) and iterable.kind != "parameters":
        return max((iterations_of(part) for part in iterable.parts), default=ITERATIONS)
    if not isinstance(iterable, Container):
        return ITERATIONS
    held = [*iterable.items, *iterable.names.values()]
    return max(ITERATIONS, min(len(held), MAX_OBJECTS)) if are_objects(iterable) else ITERATIONS


def are_objects(iterable: Value | None) -> bool:
    """Whether a loop runs over known objects, each of which is another one."""
    iterable = settled(iterable) if iterable is not None else None
    if isinstance(iterable, Sequence) and iterable.kind != "parameters":
        return any(are_objects(part) for part in iterable.parts)
    if not isinstance(iterable, Container):
        return False
    held = [*iterable.items, *iterable.names.values()]
    return bool(held) and all(isinstance(settled(item), LASTING) for item in held)


def item_of(world: World, iterable: Value, iteration: int, target: ast.expr | None) -> Value:
    """What a loop's target is bound to in one iteration."""
    iterable = settled(iterable)
    marks = "".join(f"#{serial}.{number}" for serial, number in world.marks)
    if isinstance(iterable, Sequence):
        return sequence_item(world, iterable, iteration, target, marks)
    if isinstance(iterable, Container):
        held = [*iterable.items, *iterable.names.values()]
        if iterable.kind == "dict" and iterable.names:
            return Number(f"{iterable.key}.key{marks}")
        if iteration <= len(held):
            return held[iteration - 1]
        if held:
            return held[-1]
    if isinstance(iterable, Tensor):
        return Tensor(
            shortened(f"{iterable.key}[*]{marks}"), parents=(iterable,), opaque=iterable.opaque
        )
    name = target.id if isinstance(target, ast.Name) else ""
    key = f"{iterable.key}[*]"
    role = knowledge.role_of_name(name) or role_of_one(getattr(iterable, "name", ""))
    lasting = role in (Role.OPTIMIZER, Role.MODEL, Role.SCALER, Role.SCHEDULER)
    value = unknown(key if lasting else key + marks, name)
    if lasting and value.role is None:
        value.role = role
    return value


def role_of_one(name: str) -> Role | None:
    """What one of `optimizers`, `models`, `self.nets` is."""
    return knowledge.role_of_name(name) or knowledge.role_of_name(name.removesuffix("s"))


def sequence_item(
    world: World, iterable: Sequence, iteration: int, target: ast.expr | None, marks: str
) -> Value:
    kind, parts = iterable.kind, iterable.parts
    if kind == "range":
        name = target.id if isinstance(target, ast.Name) else "i"
        return Number(f"{name}{marks}")
    if kind == "enumerate":
        goals = (
            target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else [None, None]
        )
        name = goals[0].id if isinstance(goals[0], ast.Name) else "i"
        start = f"+{parts[1].key}" if len(parts) > 1 else ""
        item = item_of(world, parts[0], iteration, goals[1]) if parts else unknown("item", "")
        return Container("pair", items=[Number(f"{name}{marks}{start}"), item], kind="tuple")
    if kind == "zip":
        goals = target.elts if isinstance(target, ast.Tuple) else []
        items = [
            item_of(world, part, iteration, goals[i] if i < len(goals) else None)
            for i, part in enumerate(parts)
        ]
        return Container("zipped", items=items, kind="tuple")
    if kind == "parameters":
        return Unknown(f"{iterable.key}[*]", name="parameter", made_of=parts[:1])
    if kind == "keys":
        return Number(f"{iterable.key}.key{marks}")
    held = parts[0] if parts else NONE
    if isinstance(held, Container):
        values = [*held.names.values(), *held.items]
        value = values[min(iteration, len(values)) - 1] if values else unknown(f"{held.key}[*]", "")
    else:
        inner = (
            target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
        )
        value = item_of(world, held, iteration, inner)
    if kind == "items":
        return Container("item", items=[Number(f"{iterable.key}.key{marks}"), value], kind="tuple")
    return value
