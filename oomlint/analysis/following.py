"""Following calls into the project: which are worth it, what the parameters are bound to."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from oomlint.analysis import classes, knowledge
from oomlint.analysis.conditions import eventful_names
from oomlint.analysis.dispatch import evaluate, run_body
from oomlint.analysis.knowledge import Evidence
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.names import lookup
from oomlint.analysis.opaque import emit_opaque
from oomlint.analysis.state import Call, Frame, Raised, World
from oomlint.analysis.values import (
    Arguments,
    Callable,
    Container,
    Context,
    Keywords,
    Tensor,
    Unknown,
    Value,
    shortened,
    unknown,
)

MAX_DEPTH = 9
# Stands among the keywords where `*args` or `**kwargs` may give more than is known.
OPEN = "**"
# A helper without training events is followed only when it is small.
SMALL = 60
SMALL_ELSEWHERE = 25
# Statements of a world behind which only what may hold training events is followed.
TIRED = 500
# Statements that hold others.
COMPOUND = (
    *(ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try),
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *((ast.TryStar,) if hasattr(ast, "TryStar") else ()),
)
# `step` alone says little: environments, schedulers and profilers step too.
EVENT_NAMES = knowledge.EVENT_WORDS - {"step"}


def follow(
    world: World,
    target: Callable,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.AST,
) -> Value:
    if target.given or target.named:
        arguments, keywords = [*target.given, *arguments], {**target.named, **keywords}
    if target.lambda_node is not None:
        return follow_lambda(world, target, arguments)
    function = target.function
    if function is None or not worth_following(world, function):
        return unfollowed(world, target, arguments, keywords, node)
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
    world.contexts.extend(decorated_contexts(world, function))
    given = tuple(arguments)
    world.calls.append(Call(node, world.frame.module, function, caller_this, target.this, given))
    world.enter(frame)
    returned: Value | None = None
    try:
        returned = run_body(world, function.node.body)
    except Raised:
        # A subclass defines it, or it is given something else: training goes on all the same.
        if world.catching:
            raise
    finally:
        world.frames.pop()
        del world.calls[depth[0] :], world.guards[depth[1] :], world.loops[depth[2] :]
        world.contexts[:] = contexts
        if mode is not None:
            world.grad = grad
    if returned is None:
        return unfollowed(world, target, arguments, keywords, node)
    return returned


def unfollowed(
    world: World, target: Callable, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """The result of a call of the project's that is not followed."""
    inputs = [*arguments, *keywords.values()]
    if isinstance(node, ast.Call):
        emit_opaque(world, node, target.this, inputs)
    key = shortened(f"{target.key}({','.join(value.key for value in inputs)})")
    return Tensor(key, parents=tuple(inputs), opaque=True)


def follow_lambda(world: World, target: Callable, arguments: Arguments) -> Value:
    node = target.lambda_node
    if node is None or len(world.frames) > MAX_DEPTH * 2:
        return Unknown(target.key)
    parent = target.frame
    frame = Frame(world.frame.module if parent is None else parent.module, None, parent)
    frame.this = parent.this if parent else None
    for parameter, value in zip(node.args.args, arguments, strict=False):
        frame.names[parameter.arg] = value
    world.enter(frame)
    try:
        return evaluate(world, node.body)
    finally:
        world.frames.pop()


def worth_following(world: World, function: Function) -> bool:
    if len(world.calls) >= MAX_DEPTH or function.is_generator:
        return False
    for frame in world.frames:
        if frame.function is function:
            return False
    words = function.words
    if not EVENT_NAMES.isdisjoint(words):
        return True
    if function.name in eventful_names(function.module, world.project.taught_words):
        return True
    if function.name != "__init__" and not knowledge.MODE_WORDS.isdisjoint(words):
        return True
    if world.statements > TIRED:
        return False
    if function.module is world.subject:
        return size_of(function) <= SMALL
    # Elsewhere only what the checked file itself calls: a meter, a loss, a step helper.
    return world.frame.module is world.subject and size_of(function) <= SMALL_ELSEWHERE


def size_of(function: Function) -> int:
    """How many statements a function has, nested ones included, as far as it may be small."""
    known: int | None = function.__dict__.get("size_so_far")
    if known is not None:
        return known
    total, pending = 0, [function.node.body]
    while pending and total <= SMALL:
        body = pending.pop()
        total += len(body)
        for node in body:
            if isinstance(node, COMPOUND):
                pending += (
                    getattr(node, name)
                    for name in ("body", "orelse", "finalbody")
                    if hasattr(node, name)
                )
    function.__dict__["size_so_far"] = total
    return total


def decorated_contexts(world: World, function: Function) -> list[str]:
    """The autocast regions that decorators open around a function, outermost first."""
    found = []
    for decorator in function.decorators:
        text = classes.dotted(decorator.func) if isinstance(decorator, ast.Call) else None
        if text is None or not knowledge.AUTOCAST.search(function.module.qualified(text)):
            continue
        world.frames.append(Frame(function.module, None))
        try:
            value = evaluate(world, decorator)
        finally:
            world.frames.pop()
        if isinstance(value, Context):
            found.append(value.kind)
    return found


def decorated_mode(world: World, function: Function) -> bool | str | None:
    """The grad mode that decorators give a function; `unsure` where one depends on a value."""
    module: Module = function.module
    if world.project.teaching is not None:
        taught = world.project.teaching.mode_of(module, function.decorators)
        if taught is not None:
            return taught
    for decorator in function.decorators:
        call = decorator if isinstance(decorator, ast.Call) else None
        text = classes.dotted(call.func if call else decorator)
        if text is None:
            continue
        qualified = module.qualified(text)
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
    signature = signature_of(function)
    names = frame.names
    given = [this, *arguments] if this is not None else arguments
    names.update(zip(signature.positional, given, strict=False))
    if signature.vararg:
        rest = given[len(signature.positional) :]
        names[signature.vararg] = Container(
            f"*{signature.vararg}", items=rest, kind="tuple", born=world.marks
        )
    extra = {}
    for name, value in keywords.items():
        if name in signature.named:
            names[name] = value
        else:
            extra[name] = value
    if signature.kwarg:
        names[signature.kwarg] = Container(
            f"**{signature.kwarg}:{world.marks}", names=extra, kind="dict", born=world.marks
        )
    bind_defaults(world, frame, function, signature, OPEN in keywords)


@dataclass(frozen=True, slots=True)
class Signature:
    """The names of a function's parameters, and its defaults; "" for what it does not take."""

    positional: tuple[str, ...]
    vararg: str
    kwarg: str
    named: frozenset[str]
    defaults: tuple[tuple[ast.arg, ast.expr | None], ...]


def signature_of(function: Function) -> Signature:
    known: Signature | None = function.__dict__.get("signature")
    if known is not None:
        return known
    parameters = function.node.args
    positional = [*parameters.posonlyargs, *parameters.args]
    defaults = [None] * (len(positional) - len(parameters.defaults)) + list(parameters.defaults)
    found = function.__dict__["signature"] = Signature(
        tuple(parameter.arg for parameter in positional),
        parameters.vararg.arg if parameters.vararg is not None else "",
        parameters.kwarg.arg if parameters.kwarg is not None else "",
        frozenset(parameter.arg for parameter in (*positional, *parameters.kwonlyargs)),
        (
            *zip(positional, defaults, strict=True),
            *zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True),
        ),
    )
    return found


def bind_defaults(
    world: World, frame: Frame, function: Function, signature: Signature, is_open: bool
) -> None:
    for parameter, default in signature.defaults:
        if parameter.arg in frame.names:
            continue
        if isinstance(default, ast.Constant) and not is_open:
            frame.names[parameter.arg] = evaluate(world, default)
        elif isinstance(default, ast.Name) and not is_open:
            frame.names[parameter.arg] = lookup(world, frame, default.id)
        else:
            frame.names[parameter.arg] = parameter_value(world, function, parameter)


def parameter_value(world: World, function: Function, parameter: ast.arg) -> Value:
    """A parameter of which nothing is known but its name, annotation and use."""
    value = unknown(f"{parameter.arg}", parameter.arg)
    if parameter.annotation is not None:
        text = written(parameter.annotation).strip("'\"")
        qualified = function.module.qualified(text)
        role = knowledge.role_of_annotation(qualified)
        value.qualified = qualified
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
