"""Says in words what the model takes a value for, and how it knows."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import written
from oomlint.analysis.roles import instance_role
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import (
    Callable,
    ClassValue,
    Constant,
    Container,
    Context,
    Either,
    External,
    GradContext,
    Instance,
    Method,
    Number,
    Sequence,
    Super,
    Tensor,
    Thing,
    Unknown,
    Value,
    has_graph,
    options,
    scaler_of,
)

LONGEST = 70
GRAD = {True: "on", False: "off", None: "not known"}


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an expression is taken for; `evidence` is constructed, used, named or empty."""

    what: str
    role: str = ""
    evidence: str = ""
    made: str = ""


def clipped(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def meaning(world: World, value: Value) -> Meaning:
    if isinstance(value, Either):
        parts = list(dict.fromkeys(meaning(world, option) for option in options(value)))
        whats = " or ".join(dict.fromkeys(part.what for part in parts))
        roles = {part.role for part in parts if part.role}
        known = next((part for part in parts if part.role), Meaning(""))
        return Meaning(whats, known.role if len(roles) == 1 else "", known.evidence, known.made)
    if isinstance(value, Thing):
        return thing(value)
    if isinstance(value, Instance):
        return instance(world, value)
    if isinstance(value, Unknown):
        return unknown(value)
    return Meaning(plain(world, value))


def thing(value: Thing) -> Meaning:
    made = ""
    if value.made is not None:
        module = value.key.partition("@")[2].partition(":")[0]
        made = f"line {value.made.lineno} of `{module}`: `{clipped(written(value.made))}`"
    return Meaning(article(value.role.value), value.role.value, "constructed", made)


def instance(world: World, value: Instance) -> Meaning:
    role = instance_role(world, value)
    cls = value.cls
    of = f"an object of `{cls.name}`" if cls is not None else "an object of the project"
    made = f"class at line {cls.node.lineno} of `{cls.module.name}`" if cls is not None else ""
    if value.key == "self":
        of += ", as its constructor leaves it"
    what = f"{article(role.value)}: {of}" if role is not None else of
    return Meaning(what, role.value if role else "", "constructed", made)


def unknown(value: Unknown) -> Meaning:
    if value.role is None:
        return Meaning("not known: nothing says what it is")
    role = value.role.value
    if value.evidence is Evidence.NAMED:
        return Meaning(f"{article(role)}, by its name `{value.name}` alone", role, "named")
    return Meaning(f"{article(role)}, by its annotation or by how it is used", role, "used")


def plain(world: World, value: Value) -> str:
    match value:
        case Tensor():
            return tensor(value)
        case Constant():
            return f"the constant `{clipped(value.key)}`"
        case Number():
            return "a number, a text or a truth value"
        case Container():
            return container(world, value)
        case Callable(function=None):
            return "a lambda"
        case Callable(function=function) if function is not None:
            row = function.node.lineno
            return f"the function `{function.qualname}`, line {row} of `{function.module.name}`"
        case ClassValue(cls=cls) if cls is not None:
            return f"the class `{cls.name}`, line {cls.node.lineno} of `{cls.module.name}`"
        case External():
            return f"`{value.qualified}`, from outside the project"
        case Method():
            return f"the method `{value.name}`"
        case GradContext():
            return f"a context in which gradients are {GRAD[value.mode]}"
        case Context():
            return f"a context: {value.kind}"
        case Sequence():
            return f"what a loop runs over ({value.kind or 'items'})"
        case Super():
            return "the base class"
    return "a value"


def container(world: World, value: Container) -> str:
    held = [*value.items, *value.names.values()]
    kinds = list(dict.fromkeys(meaning(world, item).what for item in held))[:2]
    inside = f" that holds {'; '.join(kinds)}" if kinds else ""
    return f"{article(value.kind)}{inside}"


def tensor(value: Tensor) -> str:
    words = "a loss" if value.loss else "a tensor"
    if has_graph(value):
        words += " with an autograd graph"
    elif value.graph is False:
        words += " without an autograd graph"
    elif value.opaque:
        words = "not known: the result of a call that is not followed"
    if value.divided:
        words += ", divided"
    scaler = scaler_of(value)
    if scaler is not None:
        words += ", scaled by the gradient scaler"
    return words


def article(noun: str) -> str:
    return ("an " if noun[:1] in "aeiou" else "a ") + noun


# Events in the words of a reader who does not know the model.
EVENTS = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.ZERO_GRAD: "zero_grad",
    Kind.UNSCALE: "unscale_",
    Kind.CLIP: "clip",
    Kind.STEP: "step",
    Kind.SCALER_STEP: "scaler.step",
    Kind.SCALER_UPDATE: "scaler.update",
    Kind.SCHEDULER_STEP: "scheduler.step",
    Kind.ENGINE_STEP: "engine step",
    Kind.EVAL_MODE: "eval mode",
    Kind.TRAIN_MODE: "train mode",
    Kind.GRADIENT_TAKEN: "gradient taken",
    Kind.GRADIENT_TOUCHED: "gradients changed",
    Kind.KEEP: "value kept",
    Kind.ENVIRONMENT_STEP: "environment step",
    Kind.OPAQUE_CALL: "call not followed",
    Kind.DETACH: "detach",
    Kind.SHOWN: "shown, and so kept",
}
# Almost every line has one of these: they are shown where they happen, not beside other lines.
QUIET = frozenset({Kind.OPAQUE_CALL, Kind.DETACH})


def object_of(event: Event) -> str:
    """What an event happens to, in the words of the code or of its maker."""
    if event.kind is Kind.OPAQUE_CALL:
        return ""
    value = event.subject if event.subject is not None else event.value
    if isinstance(value, Thing):
        return value.qualified.rsplit(".", 1)[-1] or value.role.value
    if isinstance(value, Instance) and value.cls is not None:
        return value.cls.name
    if isinstance(value, Unknown):
        return value.name or value.key
    return ""


# Methods whose meaning depends on what they are called on, with what is missing for it.
WANTED = {
    "step": ((Role.OPTIMIZER, Role.SCALER, Role.SCHEDULER, Role.ENGINE), "an optimizer"),
    "update": ((Role.SCALER,), "a gradient scaler"),
    "scale": ((Role.SCALER,), "a gradient scaler"),
    "forward": ((Role.MODEL,), "a model"),
    "prepare": ((Role.ACCELERATOR,), "an accelerator"),
}


def missing_role(node: ast.Call, receiver: Meaning | None, target: Meaning | None) -> str:
    """Why a call by a telling name is no event; empty where there is nothing to explain."""
    if isinstance(node.func, ast.Attribute) and node.func.attr in WANTED:
        roles, noun = WANTED[node.func.attr]
        if receiver is None or receiver.role in {role.value for role in roles}:
            return ""
        held = clipped(written(node.func.value))
        taken = f"it is taken for: {receiver.what}" if receiver.role else "its role is not known"
        return f"no `{node.func.attr}` of {noun}: nothing says that `{held}` is one ({taken})"
    if target is not None and target.what.startswith("not known"):
        return f"no forward and no loss: nothing says what `{clipped(written(node.func))}` is"
    return ""
