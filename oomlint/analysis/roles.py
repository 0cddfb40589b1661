"""Which part a value plays in the training step: model, optimizer, loss, scaler ..."""

from __future__ import annotations

import re

from oomlint.analysis import classes, knowledge
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.state import World
from oomlint.analysis.values import Instance, Sequence, Thing, Unknown, Value, ancestors, settled

OPTIMIZER_CLASS = re.compile(r"Optim(izer|izers)?($|[A-Z_])")


def role_of(world: World, value: Value | None) -> Role | None:
    if value is None:
        return None
    value = settled(value)
    if isinstance(value, Thing):
        return value.role
    if isinstance(value, Instance):
        return instance_role(world, value)
    if isinstance(value, Unknown):
        return value.role
    return None


def instance_role(world: World, value: Instance) -> Role | None:
    if value.is_module:
        name = value.cls.name if value.cls else ""
        return Role.CRITERION if knowledge.LOSS_NAME.search(name) else Role.MODEL
    if value.cls is None:
        return None
    for base in classes.base_names(world, value.cls):
        role = knowledge.role_of_constructor(base)
        if role is not None:
            return role
    return Role.OPTIMIZER if is_own_optimizer(world, value) else None


def is_own_optimizer(world: World, value: Instance) -> bool:
    """Whether a class of the project is an optimizer, or one around another, by what it can do."""
    if value.cls is None or not OPTIMIZER_CLASS.search(value.cls.name):
        return False
    return all(classes.find_method(world, value.cls, name) for name in ("step", "zero_grad"))


def is_optimizer(world: World, value: Value | None) -> bool:
    return role_of(world, value) is Role.OPTIMIZER


def mark_used(value: Value, role: Role) -> None:
    if isinstance(value, Unknown) and value.role is not role:
        value.role, value.evidence = role, Evidence.USED


def mark_model(value: Value) -> None:
    if isinstance(value, Unknown) and value.role in (None, Role.MODEL):
        value.role, value.evidence = Role.MODEL, Evidence.USED


PARAMETERS_OF = re.compile(
    r"\.(?:(?:named_)?parameters\(|eval\(\)|load_state_dict\([\w.]+\.state_dict\(\)\))"
)
LAST_NAME = re.compile(r"\w+\Z")
# Longer names than this are cut.
NAME_WIDTH = 80


def is_network_by_use(world: World, value: Value) -> bool:
    """Whether the file asks an object of any name for its parameters, switches its mode, or copies
    another network's weights to it."""
    if not isinstance(value, Unknown) or value.role is not None:
        return False
    held = world.frame.module.__dict__
    names: frozenset[str] | None = held.get("networks_by_use")
    if names is None:
        names = held["networks_by_use"] = asked_for_parameters(world.frame.module.source.text)
    copied = value.made_of[0] if value.key.startswith("copy(") and value.made_of else None
    if value.key.rsplit(".", 1)[-1] not in names and role_of(world, copied) is not Role.MODEL:
        return False
    mark_model(value)
    return True


def asked_for_parameters(text: str) -> frozenset[str]:
    # From the dot back to the name: to try every word of a file takes ten times as long.
    places = (match.start() for match in PARAMETERS_OF.finditer(text))
    names = (LAST_NAME.search(text[max(place - NAME_WIDTH, 0) : place]) for place in places)
    return frozenset(name.group() for name in names if name is not None)


def owners_of(value: Value | None) -> frozenset[str]:
    """Keys of the models whose `.parameters()` a value holds."""
    if value is None:
        return frozenset()
    found = set()
    for part in ancestors(value).values():
        if isinstance(part, Sequence) and part.kind == "parameters":
            found.add(part.parts[0].key)
    return frozenset(found)
