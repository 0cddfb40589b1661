"""Calls of what the settings teach: the event that they are, the object that they make."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from dataclasses import dataclass, replace

from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import Function
from oomlint.analysis.opaque import emit_opaque
from oomlint.analysis.roles import is_optimizer, mark_used, role_of
from oomlint.analysis.state import Kind, World
from oomlint.analysis.teaching import MODES
from oomlint.analysis.things import make_thing
from oomlint.analysis.training import backward, clip, forward
from oomlint.analysis.values import (
    NONE,
    Arguments,
    Callable,
    GradContext,
    Instance,
    Keywords,
    Tensor,
    Unknown,
    Value,
    scaler_of,
    settled,
    shortened,
)
from oomlint.effects import Effect, Taught

ROLES = {
    Effect.MODEL: Role.MODEL,
    Effect.OPTIMIZER: Role.OPTIMIZER,
    Effect.SCALER: Role.SCALER,
    Effect.SCHEDULER: Role.SCHEDULER,
    Effect.CRITERION: Role.CRITERION,
    Effect.LOADER: Role.LOADER,
}


@dataclass(frozen=True, slots=True)
class Use:
    """One call of a taught name; the receiver is the object whose method it is."""

    world: World
    node: ast.Call
    taught: Taught
    receiver: Value | None
    function: Function | None
    arguments: Arguments
    keywords: Keywords

    @property
    def inputs(self) -> list[Value]:
        return [*self.arguments, *self.keywords.values()]

    def told(self, name: str) -> Value | None:
        """The argument that the settings name, by its place or its name."""
        position = self.taught.position(name)
        if position is None:
            return None
        parameters = self.parameters()
        if isinstance(position, str):
            if position in self.keywords:
                return self.keywords[position]
            if position not in parameters:
                return None
            position = parameters.index(position)
        if position < len(self.arguments):
            return self.arguments[position]
        named = parameters[position] if position < len(parameters) else ""
        return self.keywords.get(named)

    def parameters(self) -> list[str]:
        if self.function is None:
            return []
        given = self.function.node.args
        names = [parameter.arg for parameter in (*given.posonlyargs, *given.args)]
        return names[1:] if self.receiver is not None else names

    def first(self, name: str) -> Value | None:
        """What is told, else the argument of this name, else the first one, else the receiver."""
        told = self.told(name)
        if told is not None:
            return told
        if self.taught.position(name) is None:
            found = self.keywords.get(name)
            if found is not None or self.arguments:
                return found or self.arguments[0]
        return self.receiver

    def playing(self, name: str, role: Role) -> Value | None:
        """What is told, else what has this role: an argument, the receiver, what it holds."""
        told = self.told(name)
        if told is not None:
            mark_used(told, role)
            return told
        held = self.receiver.attributes.values() if isinstance(self.receiver, Instance) else ()
        around = [self.receiver] if self.receiver is not None else []
        for value in (*self.inputs, *around, *held):
            if role_of(self.world, value) is role:
                return settled(value)
        return None

    def result(self) -> Value:
        """What the call returns may be anything."""
        key = f"{self.taught.name}({','.join(value.key for value in self.inputs)})"
        return Tensor(shortened(key), parents=tuple(self.inputs), opaque=True)


def call_taught(
    world: World,
    node: ast.Call,
    taught: Taught,
    receiver: Value | None,
    target: Value | None,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    """Does what the settings say of a call, instead of following it."""
    function = None
    if isinstance(target, Callable):
        function = target.function
        arguments, keywords = [*target.given, *arguments], {**target.named, **keywords}
        receiver = receiver if receiver is not None else target.this
    use = Use(world, node, taught, receiver, function, arguments, keywords)
    role = ROLES.get(taught.effect)
    if role is not None:
        return make_thing(world, node, role, taught.name, arguments, keywords)
    if taught.effect in MODES:
        mode = MODES[taught.effect]
        if arguments and isinstance(arguments[0], Callable):
            return replace(arguments[0], mode=mode)
        return GradContext(taught.name, mode=mode)
    return HANDLERS[taught.effect](use)


def use_backward(use: Use) -> Value:
    loss = use.first("loss")
    if loss is not None:
        backward(use.world, use.node, loss, receiver=use.receiver)
    return use.result()


def use_scaled_backward(use: Use) -> Value:
    loss = use.first("loss")
    if loss is None:
        return use.result()
    if scaler_of(loss) is None:
        scaler = use.playing("scaler", Role.SCALER) or use.receiver or taught_scaler(use)
        key = shortened(f"{use.taught.name}({loss.key})")
        loss = Tensor(key, parents=(loss,), scaled=scaler.key, scaler=scaler)
    backward(use.world, use.node, loss, receiver=use.receiver)
    return use.result()


def taught_scaler(use: Use) -> Value:
    """The scaler that nobody passes: one for all that is taught."""
    return Unknown("taught scaler", name="scaler", role=Role.SCALER, evidence=Evidence.USED)


def optimizer_of(use: Use) -> Value | None:
    found = use.playing("optimizer", Role.OPTIMIZER)
    found = found if found is not None else use.first("optimizer")
    if found is not None and found is not use.receiver and not is_optimizer(use.world, found):
        mark_used(found, Role.OPTIMIZER)
    return found


def scaler_used(use: Use) -> Value:
    return use.playing("scaler", Role.SCALER) or use.receiver or taught_scaler(use)


def use_zero_grad(use: Use) -> Value:
    use.world.emit(Kind.ZERO_GRAD, use.node, optimizer_of(use))
    return use.result()


def use_step(use: Use) -> Value:
    use.world.emit(Kind.STEP, use.node, optimizer_of(use), closure=False)
    return use.result()


def use_scaler_step(use: Use) -> Value:
    use.world.emit(Kind.SCALER_STEP, use.node, optimizer_of(use), scaler_used(use))
    return use.result()


def use_scaler_update(use: Use) -> Value:
    use.world.emit(Kind.SCALER_UPDATE, use.node, None, scaler_used(use))
    return use.result()


def use_unscale(use: Use) -> Value:
    use.world.emit(Kind.UNSCALE, use.node, optimizer_of(use), scaler_used(use))
    return use.result()


def use_clip(use: Use) -> Value:
    target, limit = use.told("parameters"), use.told("limit")
    arguments = use.arguments
    if target is not None:
        arguments = [target, *([limit] if limit is not None else ())]
    return clip(use.world, use.node, arguments, use.keywords, use.receiver)


def use_scheduler_step(use: Use) -> Value:
    scheduler = use.playing("scheduler", Role.SCHEDULER)
    subject = scheduler if scheduler is not None else use.first("scheduler")
    use.world.emit(Kind.SCHEDULER_STEP, use.node, subject)
    return use.result()


def use_forward(use: Use) -> Value:
    model = use.playing("model", Role.MODEL) or use.receiver
    if model is None:
        name = use.taught.name
        model = Unknown(name, name=use.taught.last, role=Role.MODEL, evidence=Evidence.USED)
    inputs = [value for value in use.arguments if value is not model]
    return forward(use.world, use.node, model, inputs, use.keywords)


def use_detach(use: Use) -> Value:
    value = use.arguments[0] if use.arguments else use.receiver
    use.world.emit(Kind.DETACH, use.node, None, value if value is not None else NONE)
    return Tensor(use.result().key, graph=False)


def use_opaque(use: Use) -> Value:
    emit_opaque(use.world, use.node, use.receiver, use.inputs)
    return use.result()


HANDLERS: dict[Effect, Function_[[Use], Value]] = {
    Effect.BACKWARD: use_backward,
    Effect.SCALED_BACKWARD: use_scaled_backward,
    Effect.ZERO_GRAD: use_zero_grad,
    Effect.STEP: use_step,
    Effect.SCALER_STEP: use_scaler_step,
    Effect.SCALER_UPDATE: use_scaler_update,
    Effect.UNSCALE: use_unscale,
    Effect.CLIP: use_clip,
    Effect.SCHEDULER_STEP: use_scheduler_step,
    Effect.FORWARD: use_forward,
    Effect.DETACH: use_detach,
    Effect.OPAQUE: use_opaque,
}
