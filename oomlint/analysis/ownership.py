"""Whose gradients: which objects are one, and which optimizer holds which parameters."""

from __future__ import annotations

from oomlint.analysis import knowledge
from oomlint.analysis.state import Event
from oomlint.analysis.values import (
    Constant,
    Container,
    Instance,
    Sequence,
    Thing,
    Unknown,
    Value,
    options,
)


def key_of(value: Value | None) -> str:
    return value.key if value is not None else ""


def same(first: Value | None, second: Value | None) -> bool:
    return first is not None and second is not None and first.key == second.key


def text_of(value: Value | None) -> str:
    return str(value.value) if isinstance(value, Constant) else key_of(value)


def related(one: str, other: str) -> bool:
    """Whether one object is the other, or a part of it."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def is_lasting(value: Value | None) -> bool:
    """Whether a key stands for the same object in every iteration (not one of several)."""
    return value is not None and "[*]" not in value.key


def models_of(value: Value | None) -> frozenset[str]:
    """Keys of the models that an optimizer, a model or a parameter list stands for."""
    if value is None:
        return frozenset()
    found: set[str] = set()
    for option in options(value):
        if isinstance(option, Thing) and option.role is knowledge.Role.OPTIMIZER:
            found |= option.models
        elif isinstance(option, Sequence) and option.kind == "parameters":
            found.add(option.parts[0].key)
    return frozenset(found)


def is_optimizer(value: Value | None) -> bool:
    if value is None:
        return False
    role = getattr(value, "role", None)
    return role is knowledge.Role.OPTIMIZER


def concerns(event: Event, optimizer: Value | None) -> bool:
    """Whether a zero_grad may clear the gradients that this optimizer steps on."""
    subject = event.subject
    if subject is None or optimizer is None or same(subject, optimizer):
        return True
    if is_optimizer(subject):
        # Two optimizers share parameters only where their models say so.
        mine, other = models_of(subject), models_of(optimizer)
        return bool(mine & other)
    if isinstance(subject, Instance) and not subject.is_module:
        return True
    if isinstance(subject, Unknown) and subject.role is None:
        return True
    models = models_of(optimizer)
    return not models or any(related(subject.key, key) for key in models)


def may_touch(event: Event, value: Value | None) -> bool:
    if value is None or not isinstance(event.value, Container):
        return False
    models = models_of(value)
    for held in event.value.items:
        if held.key == value.key or held.key in models:
            return True
        if value.key.startswith(held.key + "."):
            return True
        if isinstance(held, Instance) and any(v.key == value.key for v in held.attributes.values()):
            return True
    return False
