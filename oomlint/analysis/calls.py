"""Calls: which training events they are, what they return, which are followed further."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from dataclasses import replace
from functools import lru_cache

from oomlint.analysis import classes, evaluation, knowledge
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.keeping import keep_in_container
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import Class, Function
from oomlint.analysis.state import Call, Event, Frame, Kind, World
from oomlint.analysis.values import (
    NONE,
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
    ancestors,
    has_graph,
    join,
    may_have_graph,
    options,
    scaler_of,
    settled,
    shortened,
    unknown,
)

MAX_DEPTH = 9
# Stands among the keywords where `*args` or `**kwargs` may give more than is known.
OPEN = "**"
# A helper without training events is followed only when it is small.
SMALL = 60
SMALL_ELSEWHERE = 25
# `step` alone says little: environments, schedulers and profilers step too.
EVENT_NAMES = knowledge.EVENT_WORDS - {"step"}

Arguments = list[Value]
Keywords = dict[str, Value]
Handler = Function_[[World, ast.Call, Value, Arguments, Keywords], Value | None]


def evaluate_call(world: World, node: ast.Call) -> Value:
    function = node.func
    if isinstance(function, ast.Attribute):
        found = evaluate(world, function.value)
        receiver = settled(found)
        arguments, keywords = evaluate_arguments(world, node)
        if isinstance(found, Either) and function.attr == "backward" and not arguments:
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


# calls of a value


def call_value(
    world: World, node: ast.Call, target: Value, arguments: Arguments, keywords: Keywords
) -> Value:
    if isinstance(target, External):
        return call_external(world, node, target.qualified, arguments, keywords)
    if isinstance(target, ClassValue) and target.cls is not None:
        return construct(world, node, target.cls, arguments, keywords)
    if isinstance(target, Callable):
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
    if role is Role.MODEL:
        return forward(world, node, target, arguments, keywords)
    if role is Role.CRITERION:
        return loss_of(world, node, target, arguments, keywords, "")
    if role is Role.SCALER and len(arguments) >= 2 and is_optimizer(world, arguments[1]):
        backward(world, node, arguments[0], wrapper="stepper")
        world.emit(Kind.STEP, node, arguments[1], stepper=True)
        return NONE
    return opaque(world, node, target.key, arguments, keywords)


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
    return None


def is_optimizer(world: World, value: Value | None) -> bool:
    return role_of(world, value) is Role.OPTIMIZER


# forward, loss, backward


def forward(
    world: World, node: ast.Call, model: Value, arguments: Arguments, keywords: Keywords
) -> Value:
    name = model.name if isinstance(model, Unknown) else ""
    if isinstance(model, Instance) and instance_role(world, model) is Role.CRITERION:
        return loss_of(world, node, model, arguments, keywords, "")
    inputs = [*arguments, *keywords.values()]
    grad = world.grad
    frozen = model.key in world.frozen and not any(has_graph(value) for value in inputs)
    if isinstance(model, Instance) and model.cls is not None:
        method = classes.find_method(world, model.cls, "forward")
        if method is not None and decorated_mode(world, method) is False:
            grad = False
    graph = grad is True and not frozen if grad is not None else None
    key = shortened(f"{model.key}({','.join(v.key for v in inputs)})@{node.lineno}:{world.marks}")
    output = Tensor(key, parents=tuple(inputs), graph=graph, barrier=True)
    event = world.emit(
        Kind.FORWARD,
        node,
        model,
        output,
        frozen=frozen,
        eval_mode=eval_mode_of(world, model),
        name=name,
        mode=grad,
        inputs_graph=any(has_graph(value) for value in inputs),
    )
    event.detail["role"] = model.evidence if isinstance(model, Unknown | Thing) else None
    return output


def eval_mode_of(world: World, model: Value) -> bool | None:
    """Whether the model, or what holds it, was put into evaluation mode in this world."""
    key = model.key
    while True:
        if key in world.eval_keys:
            return world.eval_keys[key]
        if "." not in key:
            return None
        key = key.rsplit(".", 1)[0]


def loss_of(
    world: World,
    node: ast.Call,
    criterion: Value,
    arguments: Arguments,
    keywords: Keywords,
    reduction: str,
) -> Value:
    inputs = [*arguments, *keywords.values()]
    given = keywords.get("reduction")
    if isinstance(given, Constant) and isinstance(given.value, str):
        reduction = given.value
    elif given is not None:
        reduction = ""
    key = shortened(
        f"{criterion.key}({','.join(v.key for v in inputs)})@{node.lineno}:{world.marks}"
    )
    graph: bool | None = None
    if world.grad is False:
        graph = False
    elif world.grad is True and not isinstance(criterion, External) and inputs:
        graph = True if any(has_graph(value) for value in inputs) else None
    return Tensor(
        key,
        parents=tuple(inputs),
        graph=graph,
        barrier=True,
        loss=True,
        reduction="" if reduction == "none" else reduction,
    )


def backward(
    world: World, node: ast.Call, loss: Value, wrapper: str = "", **detail: object
) -> Event:
    if world.grad is not False:
        prove(loss)
    return world.emit(Kind.BACKWARD, node, None, loss, wrapper=wrapper, **detail)


def prove(value: Value, depth: int = 0) -> None:
    """A backward from a value proves that it carries a graph, and what it alone came from."""
    if depth > 30 or value.proven:
        return
    value.proven = True
    if isinstance(value, Either):
        return
    carriers = [p for p in value.parents if may_have_graph(p)]
    if isinstance(value, Tensor) and (value.barrier or value.opaque):
        return
    if len(carriers) == 1:
        prove(carriers[0], depth + 1)


# calls of a method


def call_attribute(
    world: World,
    node: ast.Call,
    receiver: Value,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    receiver = settled(receiver)
    if isinstance(receiver, External):
        target = evaluation.attribute(world, receiver, name)
        return call_value(world, node, target, arguments, keywords)
    if isinstance(receiver, Super):
        return call_super(world, node, receiver, name, arguments, keywords)
    if isinstance(receiver, Instance) and receiver.cls is not None:
        method = classes.find_method(world, receiver.cls, name)
        if method is not None and not (receiver.is_module and name == "forward"):
            bound = evaluation.bound(world, method, receiver)
            if isinstance(bound, Callable):
                return follow(world, bound, arguments, keywords, node)
        if name in receiver.attributes or (method is None and name not in METHODS):
            held = settled(evaluation.instance_attribute(world, receiver, name))
            if not isinstance(held, Unknown) or held.role in (Role.MODEL, Role.CRITERION):
                return call_value(world, node, held, arguments, keywords)
    if isinstance(receiver, ClassValue) and receiver.cls is not None:
        target = evaluation.attribute(world, receiver, name)
        return call_value(world, node, target, arguments, keywords)
    if isinstance(receiver, Unknown) and name not in METHODS:
        held = evaluation.attribute(world, receiver, name)
        if isinstance(held, Unknown | Thing) and held.role in (Role.MODEL, Role.CRITERION):
            return call_value(world, node, held, arguments, keywords)
    handler = METHODS.get(name)
    if handler is not None:
        result = handler(world, node, receiver, arguments, keywords)
        if result is not None:
            return result
    if knowledge.CLIP_METHOD.match(name):
        return clip(world, node, arguments, keywords, receiver)
    return plain_method(world, node, receiver, name, arguments, keywords)


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


def method_backward(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    role = role_of(world, receiver)
    wrapped = role in (Role.ACCELERATOR, Role.ENGINE, Role.OPTIMIZER, Role.SCALER, Role.MODEL)
    if not wrapped and isinstance(receiver, Unknown | Instance) and arguments:
        first = arguments[0]
        wrapped = isinstance(receiver, Instance) or (
            isinstance(first, Tensor)
            and (not knowledge.LOSS_NAME.search(receiver.name) and first.loss)
        )
    if wrapped and arguments:
        name = role.value if role else "wrapper"
        if role is Role.SCALER:
            name = "stepper"
        backward(world, node, arguments[0], wrapper=name)
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


def mark_used(value: Value, role: Role) -> None:
    if isinstance(value, Unknown) and value.role is not role:
        value.role, value.evidence = role, Evidence.USED


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
    if role_of(world, receiver) is not Role.SCALER:
        return None
    world.emit(Kind.SCALER_UPDATE, node, None, receiver)
    return NONE


def method_scale(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if isinstance(receiver, Unknown) and receiver.name == "disabled":
        return arguments[0] if arguments else None
    walked = isinstance(receiver, Unknown) and is_loss_like(arguments) and steps(world, receiver)
    if len(arguments) != 1 or not (role_of(world, receiver) is Role.SCALER or walked):
        return None
    mark_used(receiver, Role.SCALER)
    key = shortened(f"{receiver.key}.scale({arguments[0].key})")
    return Tensor(key, parents=(arguments[0],), scaled=receiver.key, scaler=receiver)


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
    if arguments or keywords or isinstance(receiver, Tensor | Container):
        return None
    world.eval_keys[receiver.key] = True
    mark_model(receiver)
    world.emit(Kind.EVAL_MODE, node, receiver)
    return receiver


def method_train(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    mode = arguments[0] if arguments else keywords.get("mode")
    if len(arguments) > 1 or isinstance(receiver, Tensor | Container):
        return None
    if mode is not None and not (isinstance(mode, Constant) and isinstance(mode.value, bool)):
        world.eval_keys.pop(receiver.key, None)
        return receiver if isinstance(mode, Number) else None
    training = mode is None or bool(mode.value)
    world.eval_keys[receiver.key] = not training
    if mode is not None:
        mark_model(receiver)
    world.emit(Kind.TRAIN_MODE if training else Kind.EVAL_MODE, node, receiver)
    return receiver


def mark_model(value: Value) -> None:
    if isinstance(value, Unknown) and value.role in (None, Role.MODEL):
        value.role, value.evidence = Role.MODEL, Evidence.USED


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
    if isinstance(receiver, Number | Constant):
        return receiver
    return Tensor(f"{receiver.key}.detach()", graph=False)


def method_append(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if not arguments or isinstance(receiver, Tensor | Thing | Instance | Number):
        return None
    value = arguments[-1]
    keep_in_container(world, node, receiver, value)
    return NONE


def method_setdefault(
    world: World, node: ast.Call, receiver: Value, arguments: Arguments, keywords: Keywords
) -> Value | None:
    if not arguments or isinstance(receiver, Tensor | Number):
        return None
    found = evaluation.element(world, receiver, arguments[0])
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
            return receiver
    if isinstance(receiver, Tensor):
        return tensor_method(world, node, receiver, name, key, inputs)
    if isinstance(receiver, Number | Constant):
        return Number(key)
    if isinstance(receiver, Container | Sequence):
        return evaluation.element(world, receiver, inputs[0] if inputs else NONE)
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
        return result
    transparent = name in knowledge.TENSOR_METHODS and isinstance(receiver, Unknown)
    reduction = name if name in ("mean", "sum") and transparent else ""
    return Tensor(key, parents=(receiver, *inputs), opaque=not transparent, reduction=reduction)


def tensor_method(
    world: World, node: ast.Call, receiver: Tensor, name: str, key: str, inputs: list[Value]
) -> Value:
    if name in ("item", "tolist", "numpy"):
        world.emit(Kind.DETACH, node, None, receiver)
    if name in knowledge.CUTTING:
        return Number(key) if name != "detach" else Tensor(key, graph=False)
    if name in knowledge.INDEXED and inputs:
        key += ".indexed()"
    found = Tensor(key, parents=(receiver, *(v for v in inputs if may_have_graph(v))))
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


def touch_gradients(world: World, node: ast.Call, receiver: Value, name: str) -> None:
    text = receiver.key
    if text.endswith((".grad", ".grad.data")):
        if name in ("zero_", "detach_"):
            world.emit(Kind.ZERO_GRAD, node, None)
        elif name.endswith("_"):
            world.emit(Kind.GRADIENT_TOUCHED, node, None)
    elif knowledge.GRADIENT_SCALING.search(name):
        world.emit(Kind.GRADIENT_TOUCHED, node, None)


def opaque(
    world: World, node: ast.Call, key: str, arguments: Arguments, keywords: Keywords
) -> Value:
    """The result of a call that cannot be followed: it may be anything."""
    inputs = [*arguments, *keywords.values()]
    if knowledge.GRADIENT_SCALING.search(key):
        world.emit(Kind.GRADIENT_TOUCHED, node, None)
    emit_opaque(world, node, None, inputs)
    full = shortened(f"{key}({','.join(value.key for value in inputs)})")
    return Tensor(full, parents=tuple(inputs), opaque=True)


def emit_opaque(world: World, node: ast.Call, receiver: Value | None, inputs: list[Value]) -> None:
    """A call that cannot be followed may do anything to the objects that it gets."""
    held: list[Value] = [
        value
        for given in inputs
        for value in options(given)
        if isinstance(value, Thing | Instance | Callable)
        or (isinstance(value, Unknown) and value.role is not None)
    ]
    if isinstance(receiver, Instance | Unknown):
        held.append(receiver)
    passed = [value for value in inputs if isinstance(value, Tensor | Container)]
    if held or passed:
        world.emit(Kind.OPAQUE_CALL, node, receiver, Container("held", items=held), passed=passed)


# calls outside the project


@lru_cache(maxsize=4096)
def is_special(qualified: str) -> bool:
    """Whether a qualified name is one of those that `call_external` knows."""
    patterns = (
        knowledge.NO_GRAD,
        knowledge.ENABLE_GRAD,
        knowledge.SET_GRAD,
        knowledge.AUTOGRAD_GRAD,
        knowledge.AUTOGRAD_BACKWARD,
        knowledge.CLIP,
        knowledge.FUNCTIONAL_LOSS,
        knowledge.AMP_SCALE_LOSS,
    )
    return (
        any(pattern.fullmatch(qualified) for pattern in patterns)
        or qualified.endswith("autograd.backward")
        or bool(knowledge.AUTOCAST.search(qualified))
    )


def call_external(
    world: World, node: ast.Call, qualified: str, arguments: Arguments, keywords: Keywords
) -> Value:
    if not is_special(qualified):
        return call_known(world, node, qualified, arguments, keywords)
    first = arguments[0] if arguments else None
    if knowledge.NO_GRAD.fullmatch(qualified):
        off = first if first is not None else keywords.get("mode")
        if isinstance(first, Callable):
            return first
        if off is not None:
            known = isinstance(off, Constant)
            mode = None if not known else (off.value is False)  # type: ignore[attr-defined]
            return GradContext(qualified, mode=mode)
        return GradContext(qualified, mode=False)
    if knowledge.ENABLE_GRAD.fullmatch(qualified):
        return GradContext(qualified, mode=True)
    if knowledge.SET_GRAD.fullmatch(qualified):
        return set_grad(world, first if first is not None else keywords.get("mode"))
    if knowledge.AUTOGRAD_GRAD.fullmatch(qualified):
        world.emit(Kind.GRADIENT_TAKEN, node, None, first)
        kept = keywords.get("create_graph")
        second = isinstance(kept, Constant) and kept.value is True
        return Tensor(f"grad@{node.lineno}:{world.marks}", graph=bool(second))
    if knowledge.AUTOGRAD_BACKWARD.fullmatch(qualified) or qualified.endswith("autograd.backward"):
        if first is not None:
            backward(
                world, node, first, wrapper="" if qualified.startswith("torch.autograd") else "rpc"
            )
        return NONE
    if knowledge.CLIP.fullmatch(qualified):
        return clip(world, node, arguments, keywords, None)
    if knowledge.FUNCTIONAL_LOSS.fullmatch(qualified):
        return loss_of(world, node, External(qualified), arguments, keywords, "mean")
    if knowledge.AMP_SCALE_LOSS.fullmatch(qualified) and first is not None:
        return Context(qualified, kind="scale_loss", inner=first)
    if knowledge.AUTOCAST.search(qualified):
        return Context(qualified, kind="autocast")
    return call_known(world, node, qualified, arguments, keywords)


def set_grad(world: World, mode: Value | None) -> Value:
    known = isinstance(mode, Constant) and isinstance(mode.value, bool)
    world.grad = mode.value if known else None  # type: ignore[union-attr]
    if isinstance(mode, Number | Unknown) and not known:
        assumed = world.assumptions.get(mode.key, world.assumptions.get(f"none:{mode.key}"))
        if assumed is not None:
            world.grad = assumed if mode.key in world.assumptions else not assumed
    return GradContext("set_grad_enabled", mode=world.grad)


def call_known(
    world: World, node: ast.Call, qualified: str, arguments: Arguments, keywords: Keywords
) -> Value:
    first = arguments[0] if arguments else None
    if first is not None and knowledge.is_transparent(qualified):
        return first
    role = knowledge.role_of_constructor(qualified)
    if role is not None:
        return make_thing(world, node, role, qualified, arguments, keywords)
    if "." not in qualified:
        return call_builtin(world, node, qualified, arguments, keywords)
    head, _, last = qualified.partition(".")
    last = qualified.rsplit(".", 1)[-1]
    if knowledge.CLIP_NAME.match(last):
        return clip(world, node, arguments, keywords, None)
    inputs = [*arguments, *keywords.values()]
    key = shortened(f"{qualified}({','.join(value.key for value in inputs)})")
    if head == "torch":
        return call_torch(world, qualified, last, key, inputs)
    if qualified in ("copy.deepcopy", "copy.copy") and first is not None:
        return copied(first, node)
    if qualified == "functools.partial" and first is not None:
        if isinstance(first, Callable):
            return replace(first, given=(*first.given, *arguments[1:]), named=dict(keywords))
        return first
    if qualified in ("collections.deque", "collections.defaultdict", "collections.OrderedDict"):
        bounded = "maxlen" in keywords or (qualified.endswith("deque") and len(arguments) > 1)
        return Container(
            f"{qualified}@{node.lineno}:{node.col_offset}:{world.marks}",
            born=world.marks,
            kind="dict" if "ict" in qualified else "list",
            bounded=bounded,
        )
    if qualified.startswith("itertools.") and arguments:
        return arguments[0]
    if qualified == "deepspeed.initialize":
        return deepspeed_initialize(node)
    if qualified.startswith("contextlib."):
        return GradContext(qualified) if "ExitStack" in last else Context(key, kind="null")
    if head in knowledge.NUMBER_MODULES:
        for value in inputs:
            if isinstance(value, Tensor | Unknown):
                world.emit(Kind.DETACH, node, None, value)
        return Number(key)
    return opaque(world, node, qualified, arguments, keywords)


def deepspeed_initialize(node: ast.Call) -> Value:
    engine = Thing(f"deepspeed@{node.lineno}", role=Role.ENGINE, qualified="deepspeed.initialize")
    others = [
        Thing(f"deepspeed.{role.value}@{node.lineno}", role=role)
        for role in (Role.ENGINE, Role.LOADER, Role.SCHEDULER)
    ]
    return Container("deepspeed", items=[engine, *others], kind="tuple")


def call_torch(world: World, qualified: str, last: str, key: str, inputs: list[Value]) -> Value:
    if last == "is_tensor" and inputs and has_graph(inputs[0]):
        return Constant("True", value=True)
    if last in knowledge.FACTORIES or ".utils." in qualified or ".distributed." in qualified:
        return Tensor(key, graph=False if last in knowledge.FACTORIES else None, opaque=True)
    if qualified.startswith("torch.cuda.") or last in ("save", "load", "manual_seed", "device"):
        return unknown(key, last)
    if last in knowledge.CUTTING:
        return Number(key)
    if last in knowledge.INDEXED and len(inputs) > 1:
        key += ".indexed()"
    found = Tensor(key, parents=tuple(inputs))
    if last in ("mean", "sum"):
        found.reduction = last
    if last in ("div", "true_divide"):
        found.divided = True
    if world.grad is False:
        found.graph = False
    return found


def copied(value: Value, node: ast.Call) -> Value:
    key = f"copy({value.key})@{node.lineno}"
    if isinstance(value, Thing):
        return Thing(key, role=value.role, qualified=value.qualified)
    if isinstance(value, Instance):
        return Instance(
            key, cls=value.cls, attributes=dict(value.attributes), is_module=value.is_module
        )
    if isinstance(value, Unknown):
        return Unknown(key, name=value.name, role=value.role, evidence=value.evidence)
    return value


def make_thing(
    world: World,
    node: ast.Call,
    role: Role,
    qualified: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    key = f"{qualified.rsplit('.', 1)[-1]}@{made_at(world, node)}"
    reduction = ""
    if role is Role.CRITERION:
        given = keywords.get("reduction")
        reduction = "mean" if given is None else ""
        if isinstance(given, Constant) and isinstance(given.value, str):
            reduction = given.value
        if "size_average" in keywords or "reduce" in keywords:
            reduction = ""
    models: frozenset[str] = frozenset()
    if role is Role.OPTIMIZER:
        models = owners_of(arguments[0] if arguments else keywords.get("params"))
    if role is Role.SCALER:
        enabled = keywords.get("enabled")
        if isinstance(enabled, Constant) and enabled.value is False:
            return Unknown(key, name="disabled")
    thing = Thing(key, role=role, qualified=qualified, reduction=reduction, models=models)
    thing.arguments = {**{str(i): v for i, v in enumerate(arguments)}, **keywords}
    return thing


def made_at(world: World, node: ast.Call) -> str:
    """Where and when an object is made: the same line makes another one on another way to it."""
    way = "/".join(
        f"{call.node.lineno}.{call.node.col_offset}"
        for call in world.calls
        if isinstance(call.node, ast.expr)
    )
    return f"{world.frame.module.name}:{node.lineno}:{node.col_offset}:{way}:{world.marks}"


def owners_of(value: Value | None) -> frozenset[str]:
    """Keys of the models whose `.parameters()` a value holds."""
    if value is None:
        return frozenset()
    found = set()
    for part in ancestors(value).values():
        if isinstance(part, Sequence) and part.kind == "parameters":
            found.add(part.parts[0].key)
    return frozenset(found)


def clip(
    world: World,
    node: ast.Call,
    arguments: Arguments,
    keywords: Keywords,
    receiver: Value | None,
) -> Value:
    role = role_of(world, receiver)
    target = arguments[0] if arguments else keywords.get("parameters")
    limit = (
        arguments[1]
        if len(arguments) > 1
        else keywords.get("max_norm") or keywords.get("clip_value")
    )
    if role is Role.MODEL and len(arguments) == 1:
        target, limit = receiver, arguments[0]
    world.emit(
        Kind.CLIP,
        node,
        target,
        receiver,
        limit=limit,
        wrapper=role.value if role in (Role.ACCELERATOR, Role.ENGINE, Role.OPTIMIZER) else "",
        models=owners_of(target),
    )
    return Tensor(f"norm@{node.lineno}:{world.marks}", graph=False)


def call_builtin(
    world: World, node: ast.Call, name: str, arguments: Arguments, keywords: Keywords
) -> Value:
    first = arguments[0] if arguments else None
    key = shortened(f"{name}({','.join(value.key for value in arguments)})")
    if name in ("enumerate", "zip", "range", "reversed"):
        if name == "reversed" and first is not None:
            return first
        parts = [*arguments, *keywords.values()] if name == "enumerate" else arguments
        return Sequence(key, kind=name, parts=tuple(parts))
    if name in ("float", "int") and first is not None:
        world.emit(Kind.DETACH, node, None, first)
    if name == "hasattr" and isinstance(first, Tensor) and len(arguments) > 1:
        asked = arguments[1]
        if isinstance(asked, Constant) and asked.value in ("item", "detach", "backward", "cpu"):
            return Constant("True", value=True)
    if name == "isinstance" and isinstance(first, Tensor) and has_graph(first):
        asked = arguments[1] if len(arguments) > 1 else NONE
        if isinstance(asked, External) and asked.qualified.endswith("Tensor"):
            return Constant("True", value=True)
    if name in knowledge.NUMBER_CALLS:
        return Number(key)
    if name == "sum" and first is not None:
        return (
            Tensor(key, parents=(first,))
            if may_have_graph(first) or isinstance(first, Sequence)
            else Number(key)
        )
    if name in ("max", "min") and arguments:
        return arguments[0] if len(arguments) == 1 else join(arguments[0], arguments[1])
    if name in ("list", "tuple", "set", "dict", "sorted", "iter"):
        return collected(world, node, name, first, keywords)
    if name == "next" and first is not None:
        from oomlint.analysis.execution import item_of

        return item_of(world, first, 1, None)
    if name == "super":
        frame = world.frame
        while frame.parent is not None and (frame.function is None or frame.function.owner is None):
            frame = frame.parent
        owner: Class | None = frame.function.owner if frame.function else None
        return Super("super", this=frame.this, cls=owner)
    if name == "getattr" and len(arguments) > 1 and isinstance(arguments[1], Constant):
        return evaluation.attribute(world, arguments[0], str(arguments[1].value))
    if name in ("abs",) and first is not None and not isinstance(first, Number | Constant):
        return Tensor(key, parents=(first,))
    if name == "map" and len(arguments) > 1:
        return call_value(world, node, settled(arguments[0]), [unknown("map-item", "")], {})
    return opaque(world, node, name, arguments, keywords)


def collected(
    world: World, node: ast.Call, name: str, first: Value | None, keywords: Keywords
) -> Value:
    key = f"{name}@{node.lineno}:{node.col_offset}:{world.marks}"
    if isinstance(first, Container):
        return Container(
            key, items=list(first.items), names=dict(first.names), born=world.marks, kind=first.kind
        )
    if first is None:
        kind = "dict" if name == "dict" else "list"
        return Container(key, names=dict(keywords), born=world.marks, kind=kind)
    return first


# following calls into the project


def construct(
    world: World, node: ast.Call, cls: Class, arguments: Arguments, keywords: Keywords
) -> Value:
    bases = classes.base_names(world, cls)
    key = f"{cls.name}@{made_at(world, node)}"
    for base in bases:
        role = knowledge.role_of_constructor(base)
        if role in (Role.OPTIMIZER, Role.LOADER, Role.SCHEDULER, Role.SCALER):
            if any(
                "zero_grad" in m.words
                for kin in classes.lineage(world, cls)
                for m in kin.methods.values()
            ):
                break
            return make_thing(world, node, role, base, arguments, keywords)
    is_module = any(knowledge.MODULE_BASE.fullmatch(base) for base in bases)
    instance = Instance(key, cls=cls, is_module=is_module)
    if is_module and knowledge.LOSS_NAME.search(cls.name):
        return instance
    if is_module and not any(knowledge.LIGHTNING_MODULE.fullmatch(base) for base in bases):
        # The parts of a network do not matter to the training step.
        return instance
    method = classes.find_method(world, cls, "__init__")
    if method is not None:
        follow(world, Callable(key, function=method, this=instance), arguments, keywords, node)
    elif any("dataclass" in ast.unparse(d) for d in cls.node.decorator_list):
        names = [
            s.target.id
            for s in cls.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        instance.attributes.update(zip(names, arguments, strict=False))
        instance.attributes.update(keywords)
    return instance


def follow(
    world: World,
    target: Callable,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.AST,
) -> Value:
    from oomlint.analysis import execution

    if target.given or target.named:
        arguments, keywords = [*target.given, *arguments], {**target.named, **keywords}
    if target.lambda_node is not None:
        return follow_lambda(world, target, arguments)
    function = target.function
    if function is None or not worth_following(world, function):
        inputs = [*arguments, *keywords.values()]
        if isinstance(node, ast.Call):
            emit_opaque(world, node, target.this, inputs)
        key = shortened(f"{target.key}({','.join(value.key for value in inputs)})")
        return Tensor(key, parents=tuple(inputs), opaque=True)
    frame = Frame(function.module, function, parent=target.frame, this=target.this)
    bind_arguments(world, frame, function, target.this, arguments, keywords)
    caller_this = world.frame.this if world.frames else None
    if target.this is None and target.frame is not None:
        frame.this = target.frame.this
    world.visited.add(function)
    depth = (len(world.calls), len(world.guards), len(world.loops), len(world.contexts))
    grad, contexts = world.grad, list(world.contexts)
    mode = target.mode if target.mode is not None else decorated_mode(world, function)
    if mode is not None:
        world.grad = mode if isinstance(mode, bool) else None
    world.calls.append(Call(node, world.frame.module, function, caller_this, target.this))
    world.frames.append(frame)
    try:
        returned = execution.run_body(world, function.node.body)
    finally:
        world.frames.pop()
        del world.calls[depth[0] :], world.guards[depth[1] :], world.loops[depth[2] :]
        world.contexts[:] = contexts
        if mode is not None:
            world.grad = grad
    return returned


def follow_lambda(world: World, target: Callable, arguments: Arguments) -> Value:
    node = target.lambda_node
    if node is None or len(world.frames) > MAX_DEPTH * 2:
        return Unknown(target.key)
    parent = target.frame
    frame = Frame(world.frame.module if parent is None else parent.module, None, parent)
    frame.this = parent.this if parent else None
    for parameter, value in zip(node.args.args, arguments, strict=False):
        frame.names[parameter.arg] = value
    world.frames.append(frame)
    try:
        return evaluate(world, node.body)
    finally:
        world.frames.pop()


def worth_following(world: World, function: Function) -> bool:
    from oomlint.analysis.conditions import eventful_names

    if len(world.calls) >= MAX_DEPTH or function.is_generator:
        return False
    if any(frame.function is function for frame in world.frames):
        return False
    if function.words & EVENT_NAMES or function.name in eventful_names(function.module):
        return True
    if function.words & knowledge.MODE_WORDS and function.name != "__init__":
        return True
    if function.module is world.subject:
        return function.size <= SMALL
    # Elsewhere only what the checked file itself calls: a meter, a loss, a step helper.
    return function.size <= SMALL_ELSEWHERE and world.frame.module is world.subject


def decorated_mode(world: World, function: Function) -> bool | str | None:
    """The grad mode that decorators give a function; `unsure` where one depends on a value."""
    from oomlint.analysis.modules import Module

    module: Module = function.module
    for decorator in function.decorators:
        call = decorator if isinstance(decorator, ast.Call) else None
        text = classes.dotted(call.func if call else decorator)
        if text is None:
            continue
        head, _, rest = text.partition(".")
        qualified = module.imports.get(head, head) + (f".{rest}" if rest else "")
        given = [*call.args, *(keyword.value for keyword in call.keywords)] if call else []
        if knowledge.NO_GRAD.fullmatch(qualified):
            # `inference_mode(False)` turns gradients on again.
            return bool(given and isinstance(given[0], ast.Constant) and given[0].value is False)
        if knowledge.ENABLE_GRAD.fullmatch(qualified):
            return True
        if knowledge.SET_GRAD.fullmatch(qualified) and given:
            argument = given[0]
            return bool(argument.value) if isinstance(argument, ast.Constant) else "unsure"
        if knowledge.NO_GRAD_NAME.search(text.rsplit(".", 1)[-1]):
            return False
    owner = function.owner
    if owner is not None:
        for decorator in owner.node.decorator_list:
            text = classes.dotted(decorator.func if isinstance(decorator, ast.Call) else decorator)
            if text and knowledge.NO_GRAD_NAME.search(text.rsplit(".", 1)[-1]):
                return False
    return None


def bind_arguments(
    world: World,
    frame: Frame,
    function: Function,
    this: Value | None,
    arguments: Arguments,
    keywords: Keywords,
) -> None:
    parameters = function.node.args
    positional = [*parameters.posonlyargs, *parameters.args]
    names = frame.names
    given = list(arguments)
    if this is not None:
        given.insert(0, this)
    for parameter, value in zip(positional, given, strict=False):
        names[parameter.arg] = value
    if parameters.vararg is not None:
        rest = given[len(positional) :]
        names[parameters.vararg.arg] = Container(
            f"*{parameters.vararg.arg}", items=rest, kind="tuple", born=world.marks
        )
    known = {p.arg for p in (*positional, *parameters.kwonlyargs)}
    extra = {}
    is_open = OPEN in keywords
    for name, value in keywords.items():
        if name in known:
            names[name] = value
        else:
            extra[name] = value
    if parameters.kwarg is not None:
        names[parameters.kwarg.arg] = Container(
            f"**{parameters.kwarg.arg}:{world.marks}", names=extra, kind="dict", born=world.marks
        )
    bind_defaults(world, frame, function, is_open)


def bind_defaults(world: World, frame: Frame, function: Function, is_open: bool) -> None:
    parameters = function.node.args
    positional = [*parameters.posonlyargs, *parameters.args]
    defaults = [None] * (len(positional) - len(parameters.defaults)) + list(parameters.defaults)
    pairs = [
        *zip(positional, defaults, strict=True),
        *zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        if parameter.arg in frame.names:
            continue
        if isinstance(default, ast.Constant) and not is_open:
            frame.names[parameter.arg] = evaluation.evaluate_constant(world, default)
        elif isinstance(default, ast.Name) and not is_open:
            frame.names[parameter.arg] = evaluation.lookup(world, frame, default.id)
        else:
            frame.names[parameter.arg] = parameter_value(world, function, parameter)


def parameter_value(world: World, function: Function, parameter: ast.arg) -> Value:
    """A parameter of which nothing is known but its name, annotation and use."""
    value = unknown(f"{parameter.arg}", parameter.arg)
    if parameter.annotation is not None:
        text = ast.unparse(parameter.annotation).strip("'\"")
        head, _, rest = text.partition(".")
        qualified = function.module.imports.get(head, head) + (f".{rest}" if rest else "")
        role = knowledge.role_of_constructor(qualified) or (
            Role.MODEL if qualified.endswith("nn.Module") else None
        )
        if role is not None:
            value.role, value.evidence = role, Evidence.USED
    return value


def bind_unknown(world: World, frame: Frame, function: Function) -> None:
    """Binds every parameter to an unknown, as for a function that anybody may call."""
    parameters = function.node.args
    for parameter in (*parameters.posonlyargs, *parameters.args, *parameters.kwonlyargs):
        if parameter.arg not in frame.names:
            frame.names[parameter.arg] = parameter_value(world, function, parameter)
    if parameters.vararg is not None:
        frame.names[parameters.vararg.arg] = unknown(parameters.vararg.arg, "")
    if parameters.kwarg is not None:
        frame.names[parameters.kwarg.arg] = unknown(parameters.kwarg.arg, "")
