"""Following calls into the project: which are worth it, what the parameters are bound to."""

from __future__ import annotations

import ast

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
    if any(frame.function is function for frame in world.frames):
        return False
    taught = world.project.taught_words
    if function.words & EVENT_NAMES or function.name in eventful_names(function.module, taught):
        return True
    if function.words & knowledge.MODE_WORDS and function.name != "__init__":
        return True
    if world.statements > TIRED:
        return False
    if function.module is world.subject:
        return function.size <= SMALL
    # Elsewhere only what the checked file itself calls: a meter, a loss, a step helper.
    return function.size <= SMALL_ELSEWHERE and world.frame.module is world.subject


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
