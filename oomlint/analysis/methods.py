"""Methods by their name: which training events they are, what they return."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from collections.abc import Iterator

from oomlint.analysis import knowledge
from oomlint.analysis.attributes import element
from oomlint.analysis.autocast import cast
from oomlint.analysis.following import follow
from oomlint.analysis.keeping import keep_in_container
from oomlint.analysis.knowledge import Role
from oomlint.analysis.opaque import emit_opaque
from oomlint.analysis.roles import is_optimizer, mark_model, mark_used, role_of
from oomlint.analysis.state import Kind, World
from oomlint.analysis.training import backward, forward
from oomlint.analysis.values import (
    NONE,
    Arguments,
    Callable,
    Constant,
    Container,
    Context,
    GradContext,
    Instance,
    Keywords,
    Number,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    may_have_graph,
    scaler_of,
    settled,
    shortened,
    unknown,
)

Handler = Function_[[World, ast.Call, Value, Arguments, Keywords], Value | None]


def method_backward(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    role = role_of(world, receiver)
    wrapped = role in (Role.ACCELERATOR, Role.ENGINE, Role.OPTIMIZER, Role.SCALER, Role.MODEL)
    if not wrapped and isinstance(receiver, (Unknown, Instance)) and arguments:
        first = arguments[0]
        wrapped = isinstance(receiver, Instance) or (
            isinstance(first, Tensor)
            and (not knowledge.LOSS_NAME.search(receiver.name) and first.loss)
        )
    if wrapped and arguments:
        name = role.value if role else "wrapper"
        if role is Role.SCALER:
            name = "stepper"
        backward(world, node, arguments[0], wrapper=name, receiver=receiver)
        return NONE
    retain = keywords.get("retain_graph") or keywords.get("create_graph")
    if arguments and scaler_of(arguments[0]) is not None:
        # `features.backward(scaler.scale(gradient))`: what is handed down is scaled.
        receiver = Tensor(f"{receiver.key}<-scaled", parents=(receiver, arguments[0]))
    backward(world, node, receiver, retain=bool(isinstance(retain, Constant) and retain.value))
    return NONE


def method_step(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    role = role_of(world, receiver)
    first = arguments[0] if arguments else keywords.get("optimizer")
    if is_disabled(receiver) and first is not None:
        world.emit(Kind.STEP, node, first)
        return NONE
    if role is None and is_zeroed(world, receiver):
        mark_used(receiver, Role.OPTIMIZER)
        role = Role.OPTIMIZER
    if role is Role.OPTIMIZER:
        closure = settled(first) if first is not None else keywords.get("closure")
        result: Value = NONE
        if isinstance(closure, Callable):
            result = follow(world, closure, [], {}, node)
        world.emit(Kind.STEP, node, receiver, closure=closure is not None)
        return result if closure is not None else NONE
    if first is not None and (role is Role.SCALER or is_optimizer(world, first)):
        if role in (None, Role.SCALER):
            mark_used(receiver, Role.SCALER)
            world.emit(Kind.SCALER_STEP, node, first, receiver)
            return NONE
    if role is Role.SCHEDULER:
        world.emit(Kind.SCHEDULER_STEP, node, receiver)
        return NONE
    if role is Role.ENGINE or (role is Role.MODEL and not arguments and not keywords):
        world.emit(Kind.ENGINE_STEP, node, receiver)
        return NONE
    if role is Role.ENVIRONMENT:
        world.emit(Kind.ENVIRONMENT_STEP, node, receiver)
        return Container("env.step", kind="tuple")
    return None


def is_zeroed(world: World, receiver: Value) -> bool:
    """Whether the file also erases gradients through this object, whatever its name."""
    if not isinstance(receiver, Unknown):
        return False
    last = receiver.key.rsplit(".", 1)[-1]
    return last.isidentifier() and f"{last}.zero_grad(" in world.frame.module.source.text


def method_zero_grad(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    world.emit(Kind.ZERO_GRAD, node, receiver)
    return NONE


def method_unscale(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if not arguments:
        return None
    if is_disabled(receiver):
        return NONE
    mark_used(receiver, Role.SCALER)
    world.emit(Kind.UNSCALE, node, arguments[0], receiver)
    return NONE


def method_unscale_all(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    world.emit(Kind.UNSCALE, node, None, receiver)
    return NONE


def method_update(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if isinstance(receiver, Container):
        override(receiver, arguments)
    if role_of(world, receiver) is not Role.SCALER:
        return None
    world.emit(Kind.SCALER_UPDATE, node, None, receiver)
    return NONE


def override(receiver: Container, arguments: Arguments) -> None:
    """`defaults.update(options)`: no default is certain any more."""
    if receiver.kind != "dict" or not any(isinstance(given, Unknown) for given in arguments):
        return
    for name, value in receiver.names.items():
        if isinstance(value, Constant):
            receiver.names[name] = unknown(f"{receiver.key}[{name!r}]", name)


def method_scale(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if is_disabled(receiver):
        return arguments[0] if arguments else None
    walked = isinstance(receiver, Unknown) and is_loss_like(arguments) and steps(world, receiver)
    if len(arguments) != 1 or not (role_of(world, receiver) is Role.SCALER or walked):
        return None
    mark_used(receiver, Role.SCALER)
    key = shortened(f"{receiver.key}.scale({arguments[0].key})")
    return Tensor(key, parents=(arguments[0],), scaled=receiver.key, scaler=receiver)


def is_disabled(scaler: Value) -> bool:
    """`GradScaler(enabled=False)` hands losses and steps through as they are."""
    return isinstance(scaler, Unknown) and scaler.name == "disabled"


def steps(world: World, receiver: Unknown) -> bool:
    """Whether the function also steps or unscales with this object."""
    function = world.frame.function
    code = function.code if function is not None else world.frame.module.source.text
    last = receiver.key.rsplit(".", 1)[-1]
    return f"{last}.step(" in code or f"{last}.unscale_(" in code


def is_loss_like(arguments: Arguments) -> bool:
    """`gs.scale(loss)`: an object of any name that scales a loss is a gradient scaler."""
    return bool(arguments) and isinstance(arguments[0], Tensor) and arguments[0].loss


def method_eval(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if arguments or keywords or isinstance(receiver, (Tensor, Container)):
        return None
    mark_model(receiver)
    for network in with_mode(receiver):
        world.eval_keys[network.key] = True
        world.emit(Kind.EVAL_MODE, node, network)
    return receiver


def with_mode(receiver: Value) -> Iterator[Value]:
    """What a switch of the mode reaches: a DeepSpeed engine hands it on to its model."""
    yield receiver
    if isinstance(receiver, Thing) and receiver.role is Role.ENGINE:
        yield from (value for name, value in receiver.arguments.items() if name == "model")


def method_train(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    mode = arguments[0] if arguments else keywords.get("mode")
    if len(arguments) > 1 or isinstance(receiver, (Tensor, Container)):
        return None
    if mode is not None and not (isinstance(mode, Constant) and isinstance(mode.value, bool)):
        world.eval_keys.pop(receiver.key, None)
        return receiver if isinstance(mode, Number) else None
    training = mode is None or bool(mode.value)
    if mode is not None:
        mark_model(receiver)
    for network in with_mode(receiver):
        world.eval_keys[network.key] = not training
        world.emit(Kind.TRAIN_MODE if training else Kind.EVAL_MODE, node, network)
    return receiver


def method_requires_grad(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    mode = arguments[0] if arguments else keywords.get("requires_grad")
    off = isinstance(mode, Constant) and mode.value is False
    if off:
        world.frozen.add(receiver.key)
        return receiver
    world.frozen.discard(receiver.key)
    if role_of(world, receiver) is not Role.MODEL:
        world.emit(Kind.GRADIENT_TAKEN, node, None, receiver, what="requires_grad_")
    return receiver


def method_prepare(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if role_of(world, receiver) is not Role.ACCELERATOR or not arguments:
        return None
    if len(arguments) == 1:
        return arguments[0]
    return Container("prepared", items=list(arguments), kind="tuple")


def method_context(kind: str) -> Handler:
    def handler(
        world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
    ) -> Value | None:
        return Context(f"{kind}@{node.lineno}", kind=kind, inner=receiver)

    return handler


def method_enter_context(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    inner = settled(arguments[0]) if arguments else None
    if isinstance(inner, GradContext):
        world.grad = inner.mode
    return inner


def method_detach(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    world.emit(Kind.DETACH, node, None, receiver)
    if isinstance(receiver, (Number, Constant)):
        return receiver
    return Tensor(f"{receiver.key}.detach()", graph=False)


def method_append(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if not arguments or isinstance(receiver, (Tensor, Thing, Instance, Number)):
        return None
    value = arguments[-1]
    keep_in_container(world, node, receiver, value)
    return NONE


def method_setdefault(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if not arguments or isinstance(receiver, (Tensor, Number)):
        return None
    found = element(world, receiver, arguments[0])
    if isinstance(receiver, Container) and len(arguments) > 1 and isinstance(found, Unknown):
        fresh = arguments[1]
        if isinstance(fresh, Container):
            fresh.born = receiver.born
            receiver.items.append(fresh)
            return fresh
    return found


def method_items(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if arguments or not isinstance(node.func, ast.Attribute):
        return None
    return Sequence(receiver.key, kind=node.func.attr, parts=(receiver,))


def method_parameters(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    mark_model(receiver)
    return Sequence(f"{receiver.key}.parameters()", kind="parameters", parts=(receiver,))


def method_forward(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if role_of(world, receiver) is Role.MODEL:
        return forward(world, node, receiver, arguments, keywords)
    return None


def method_two_step(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    """Sharpness-aware minimisation: `first_step(zero_grad=True)`, `second_step(zero_grad=True)`."""
    mark_used(receiver, Role.OPTIMIZER)
    world.emit(Kind.STEP, node, receiver, two_step=True)
    zero = keywords.get("zero_grad") or (arguments[0] if arguments else None)
    if isinstance(zero, Constant) and zero.value is True:
        world.emit(Kind.ZERO_GRAD, node, receiver)
    return NONE


METHODS: dict[str, Handler] = {
    "backward": method_backward,
    "manual_backward": method_backward,
    "step": method_step,
    "zero_grad": method_zero_grad,
    "unscale_": method_unscale,
    "unscale_gradients": method_unscale_all,
    "update": method_update,
    "scale": method_scale,
    "eval": method_eval,
    "train": method_train,
    "requires_grad_": method_requires_grad,
    "prepare": method_prepare,
    "setup": method_prepare,
    "accumulate": method_context("accumulate"),
    "no_sync": method_context("no_sync"),
    "autocast": method_context("autocast"),
    "enter_context": method_enter_context,
    "detach": method_detach,
    "detach_": method_detach,
    "append": method_append,
    "extend": method_append,
    "add": method_append,
    "insert": method_append,
    "appendleft": method_append,
    "setdefault": method_setdefault,
    "items": method_items,
    "values": method_items,
    "keys": method_items,
    "parameters": method_parameters,
    "named_parameters": method_parameters,
    "forward": method_forward,
    "first_step": method_two_step,
    "second_step": method_two_step,
}


SAME_OBJECT = frozenset(
    "to cuda cpu half float double bfloat16 share_memory contiguous apply requires_grad_ type"
    " compile xpu npu mlu".split()
)


def plain_method(
    world: World,
    node: ast.Call,
    receiver: Value,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    inputs = [*arguments, *keywords.values()]
    key = shortened(f"{receiver.key}.{name}({','.join(v.key for v in inputs)})")
    role = role_of(world, receiver)
    if role is Role.MODEL or isinstance(receiver, Instance):
        if name in SAME_OBJECT:
            cast(world, node, receiver.key, name, inputs)
            return receiver
        if role is Role.MODEL and name in knowledge.FORWARDING:
            return forward(world, node, receiver, arguments, keywords)
    if isinstance(receiver, Tensor):
        return tensor_method(world, node, receiver, name, key, inputs)
    if isinstance(receiver, (Number, Constant)):
        if receiver.key.endswith(GRADIENTS):
            touch_gradients(world, node, receiver, name)
        return Number(key)
    if isinstance(receiver, (Container, Sequence)):
        return element(world, receiver, inputs[0] if inputs else NONE)
    if role in (Role.OPTIMIZER, Role.SCALER, Role.SCHEDULER, Role.LOADER):
        return unknown(key, name)
    touch_gradients(world, node, receiver, name)
    if name in knowledge.CUTTING:
        if name in ("item", "tolist", "numpy", "data"):
            world.emit(Kind.DETACH, node, None, receiver)
        return Number(key)
    emit_opaque(world, node, receiver, inputs)
    if role is Role.MODEL or isinstance(receiver, Instance):
        result = unknown(f"{key}@{node.lineno}:{world.marks}", name)
        result.role = None
        # It may be made from what is given: a gradient of it is then one of these.
        result.made_of = tuple(inputs)
        return result
    transparent = name in knowledge.TENSOR_METHODS and isinstance(receiver, Unknown)
    reduction = name if name in ("mean", "sum") and transparent else ""
    return Tensor(key, parents=(receiver, *inputs), opaque=not transparent, reduction=reduction)


# Results that are places or classes, of which there is no gradient.
CHOOSING = frozenset("argmax argmin argsort multinomial".split())


def tensor_method(
    world: World, node: ast.Call, receiver: Tensor, name: str, key: str, inputs: list[Value]
) -> Value:
    if name in ("item", "tolist", "numpy", "long", "int", "bool") or name in CHOOSING:
        world.emit(Kind.DETACH, node, None, receiver)
    if name in knowledge.CUTTING:
        return Number(key) if name != "detach" else Tensor(key, graph=False)
    if name == "sample" and not receiver.opaque:
        # A draw from a distribution, unlike `rsample`: no gradient comes back from it.
        world.emit(Kind.DETACH, node, None, receiver)
        return Tensor(key, graph=False)
    if name in knowledge.INDEXED and inputs:
        key += ".indexed()"
    given = (v for v in inputs if may_have_graph(v))
    found = Tensor(key, parents=(receiver, *given), made_by=name)
    if name in ("mean", "sum"):
        found.reduction = name
    shares = name in ("mul", "mul_") and any("/" in value.key for value in inputs)
    if name in ("div", "div_", "true_divide") or shares:
        found.divided = True
        # In place, every other name of the tensor sees it too.
        receiver.divided = receiver.divided or name.endswith("_")
    if world.grad is False:
        found.graph = False
    return found


GRADIENTS = (".grad", ".grad.data")


def touch_gradients(world: World, node: ast.Call, receiver: Value, name: str) -> None:
    if receiver.key.endswith(GRADIENTS):
        if name in ("zero_", "detach_"):
            world.emit(Kind.ZERO_GRAD, node, None)
        elif name.endswith("_"):
            world.emit(Kind.GRADIENT_TOUCHED, node, None)
    elif knowledge.GRADIENT_SCALING.search(name):
        world.emit(Kind.GRADIENT_TOUCHED, node, None)
