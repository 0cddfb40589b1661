"""Calls: what is called, and who knows what that does."""

from __future__ import annotations

import ast
from dataclasses import replace

from oomlint.analysis import classes, driven, generators, knowledge
from oomlint.analysis.attributes import attribute, bound_method, instance_attribute
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.following import OPEN, follow
from oomlint.analysis.knowledge import Role
from oomlint.analysis.methods import METHODS, method_backward, plain_method
from oomlint.analysis.opaque import emit_opaque, opaque
from oomlint.analysis.outside import call_external
from oomlint.analysis.roles import is_network_by_use, is_optimizer, is_own_optimizer, role_of
from oomlint.analysis.state import Kind, World
from oomlint.analysis.taught_calls import call_taught
from oomlint.analysis.things import construct, made_at
from oomlint.analysis.training import backward, clip, forward, loss_of
from oomlint.analysis.values import (
    NONE,
    Arguments,
    Callable,
    ClassValue,
    Constant,
    Container,
    External,
    GradContext,
    Instance,
    Keywords,
    Method,
    Number,
    Super,
    Tensor,
    Thing,
    Unknown,
    Value,
    settled,
    unknown,
)


def evaluate_call(world: World, node: ast.Call) -> Value:
    function = node.func
    if isinstance(function, ast.Attribute):
        found = evaluate(world, function.value)
        receiver = settled(found)
        arguments, keywords = evaluate_arguments(world, node)
        if receiver is not found and function.attr == "backward" and not arguments:
            # Both losses are walked, whichever it is.
            return method_backward(world, node, found, arguments, keywords) or NONE
        return call_attribute(world, node, receiver, function.attr, arguments, keywords)
    target = settled(evaluate(world, function))
    arguments, keywords = evaluate_arguments(world, node)
    return call_value(world, node, target, arguments, keywords)


def evaluate_arguments(world: World, node: ast.Call) -> tuple[Arguments, Keywords]:
    arguments: Arguments = []
    keywords_open = False
    for part in node.args:
        if isinstance(part, ast.Starred):
            value = evaluate(world, part.value)
            if isinstance(value, Container):
                arguments.extend(value.items)
            else:
                keywords_open = True
        else:
            arguments.append(evaluate(world, part))
    keywords: Keywords = {}
    for keyword in node.keywords:
        value = evaluate(world, keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, Container) and value.names:
            keywords.update(value.names)
        else:
            keywords_open = True
    if keywords_open:
        keywords[OPEN] = NONE
    return arguments, keywords


def taught_method(world: World, receiver: Value, name: str) -> Value | None:
    """The method whose effect is taught, for the names of its parameters."""
    cls = receiver.cls if isinstance(receiver, (Instance, ClassValue)) else None
    method = classes.find_method(world, cls, name) if cls is not None else None
    return Callable(name, function=method) if method is not None else None


def call_value(
    world: World, node: ast.Call, target: Value, arguments: Arguments, keywords: Keywords
) -> Value:
    if world.project.teaching is not None:
        taught = world.project.teaching.of_value(target)
        if taught is not None:
            return call_taught(world, node, taught, None, target, arguments, keywords)
        if isinstance(target, External) and target.qualified in world.project.teaching.owners:
            emit_opaque(world, node, None, [*arguments, *keywords.values()])
            key = f"{target.qualified}@{made_at(world, node)}"
            return Unknown(key, qualified=target.qualified)
    if isinstance(target, External):
        if target.given or target.named:
            arguments, keywords = [*target.given, *arguments], {**target.named, **keywords}
        if target.qualified in generators.TAKING_ALL and arguments:
            if isinstance(arguments[0], generators.Generated):
                return generators.collect(world, node, arguments[0])
        if target.qualified == "map" and len(arguments) > 1:
            return call_value(world, node, settled(arguments[0]), [unknown("map-item", "")], {})
        return call_external(world, node, target.qualified, arguments, keywords)
    if isinstance(target, ClassValue) and target.cls is not None:
        return construct(world, node, target.cls, arguments, keywords)
    if isinstance(target, Callable):
        if target.function is not None and generators.is_followed(world, target.function):
            return generators.start(target, arguments, keywords, node)
        return follow(world, target, arguments, keywords, node)
    if isinstance(target, GradContext) and arguments and isinstance(arguments[0], Callable):
        return replace(arguments[0], mode=target.mode)
    if isinstance(target, Method) and target.receiver is not None:
        return call_attribute(world, node, target.receiver, target.name, arguments, keywords)
    if isinstance(target, Thing):
        return call_thing(world, node, target, arguments, keywords)
    if isinstance(target, Instance):
        return call_instance(world, node, target, arguments, keywords)
    if isinstance(target, Unknown):
        return call_unknown(world, node, target, arguments, keywords)
    return opaque(world, node, target.key, arguments, keywords)


def call_thing(
    world: World, node: ast.Call, target: Thing, arguments: Arguments, keywords: Keywords
) -> Value:
    if target.role in (Role.MODEL, Role.ENGINE):
        return forward(world, node, target, arguments, keywords)
    if target.role is Role.CRITERION:
        return loss_of(world, node, target, arguments, keywords, target.reduction)
    if target.role is Role.STEPPER:
        return stepper_call(world, node, target, arguments, keywords)
    return opaque(world, node, target.key, arguments, keywords)


def stepper_call(
    world: World, node: ast.Call, target: Thing, arguments: Arguments, keywords: Keywords
) -> Value:
    """timm's `loss_scaler(loss, optimizer, clip_grad=..., need_update=...)`."""
    if arguments:
        backward(world, node, arguments[0], wrapper="stepper")
    optimizer = arguments[1] if len(arguments) > 1 else keywords.get("optimizer")
    world.emit(Kind.STEP, node, optimizer, stepper=True)
    return NONE


def call_instance(
    world: World, node: ast.Call, target: Instance, arguments: Arguments, keywords: Keywords
) -> Value:
    if target.is_module:
        return forward(world, node, target, arguments, keywords)
    if target.cls is not None:
        method = classes.find_method(world, target.cls, "__call__")
        if method is not None:
            bound = Callable(f"{target.key}()", function=method, this=target)
            return follow(world, bound, arguments, keywords, node)
    return opaque(world, node, target.key, arguments, keywords)


def call_unknown(
    world: World, node: ast.Call, target: Unknown, arguments: Arguments, keywords: Keywords
) -> Value:
    role = role_of(world, target)
    if role is Role.MODEL or is_network_by_use(world, target):
        return forward(world, node, target, arguments, keywords)
    if role is Role.CRITERION:
        return loss_of(world, node, target, arguments, keywords, "")
    if role is Role.SCALER and len(arguments) >= 2 and is_optimizer(world, arguments[1]):
        backward(world, node, arguments[0], wrapper="stepper")
        world.emit(Kind.STEP, node, arguments[1], stepper=True)
        return NONE
    return opaque(world, node, target.key, arguments, keywords)


def call_attribute(
    world: World,
    node: ast.Call,
    receiver: Value,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    receiver = settled(receiver)
    if world.project.teaching is not None:
        taught = world.project.teaching.of_method(world, receiver, name)
        if taught is not None:
            called = taught_method(world, receiver, name)
            return call_taught(world, node, taught, receiver, called, arguments, keywords)
    if isinstance(receiver, External):
        target = attribute(world, receiver, name)
        return call_value(world, node, target, arguments, keywords)
    if isinstance(receiver, ANYTHING):
        return call_method(world, node, receiver, name, arguments, keywords)
    if isinstance(receiver, driven.Engine):
        done = driven.call_engine(world, node, receiver, name, arguments, keywords)
        if done is not None:
            return done
    if isinstance(receiver, Super):
        return call_super(world, node, receiver, name, arguments, keywords)
    if isinstance(receiver, Instance) and receiver.cls is not None:
        method = classes.find_method(world, receiver.cls, name)
        if method is not None and not (receiver.is_module and name == "forward"):
            bound = bound_method(world, method, receiver)
            if isinstance(bound, Callable):
                if generators.is_followed(world, method):
                    return generators.start(bound, arguments, keywords, node)
                start = len(world.events)
                returned = follow(world, bound, arguments, keywords, node)
                complete_own_optimizer(world, node, receiver, name, start)
                return returned
        if name in receiver.attributes or (method is None and name not in METHODS):
            held = settled(instance_attribute(world, receiver, name))
            known = not isinstance(held, Unknown) or held.role in (Role.MODEL, Role.CRITERION)
            if known or is_network_by_use(world, held):
                return call_value(world, node, held, arguments, keywords)
    if isinstance(receiver, ClassValue) and receiver.cls is not None:
        target = attribute(world, receiver, name)
        return call_value(world, node, target, arguments, keywords)
    if isinstance(receiver, Unknown) and name not in METHODS:
        held = attribute(world, receiver, name)
        if isinstance(held, (Unknown, Thing)) and held.role in (Role.MODEL, Role.CRITERION):
            return call_value(world, node, held, arguments, keywords)
    return call_method(world, node, receiver, name, arguments, keywords)


# What has no methods of the project: what a method of it does is told by its name.
ANYTHING = (Tensor, Number, Constant, Container, Thing)


def call_method(
    world: World,
    node: ast.Call,
    receiver: Value,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    handler = METHODS.get(name)
    if handler is not None:
        result = handler(world, node, receiver, arguments, keywords)
        if result is not None:
            return result
    if knowledge.CLIP_METHOD.match(name):
        return clip(world, node, arguments, keywords, receiver)
    return plain_method(world, node, receiver, name, arguments, keywords)


def complete_own_optimizer(
    world: World, node: ast.Call, receiver: Instance, name: str, start: int
) -> None:
    """An optimizer of the project steps and zeroes, even where that is not seen inside of it."""
    if name not in ("step", "zero_grad") or not is_own_optimizer(world, receiver):
        return
    if name == "zero_grad":
        world.emit(Kind.ZERO_GRAD, node, receiver)
    elif not any(event.kind in STEPPING for event in world.events[start:]):
        world.emit(Kind.STEP, node, receiver)


STEPPING = frozenset({Kind.STEP, Kind.SCALER_STEP, Kind.ENGINE_STEP})


def call_super(
    world: World,
    node: ast.Call,
    receiver: Super,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    if receiver.cls is not None and isinstance(receiver.this, Instance) and receiver.this.cls:
        method = classes.find_method(world, receiver.this.cls, name, after=receiver.cls)
        if method is not None:
            bound = Callable(f"{receiver.this.key}.{name}", function=method, this=receiver.this)
            return follow(world, bound, arguments, keywords, node)
    if receiver.this is not None and name in METHODS and name != "update":
        result = METHODS[name](world, node, receiver.this, arguments, keywords)
        if result is not None:
            return result
    return Unknown(f"super.{name}")
