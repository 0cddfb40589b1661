"""Expressions: what each kind of expression is in the world that is followed."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from collections.abc import Sequence as Sequence_
from typing import Any

from oomlint.analysis.attributes import attribute, element
from oomlint.analysis.binding import bind
from oomlint.analysis.conditions import branch, is_eventful
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.iteration import item_of, iterations_of
from oomlint.analysis.modules import Module
from oomlint.analysis.names import evaluate_name
from oomlint.analysis.operations import evaluate_binary, evaluate_compare, evaluate_unary, is_plain
from oomlint.analysis.state import Kind, World
from oomlint.analysis.values import (
    NONE,
    Callable,
    Constant,
    Container,
    Number,
    Tensor,
    Unknown,
    Value,
    join,
    may_have_graph,
    settled,
    shortened,
)


def evaluate_constant(world: World, node: ast.Constant) -> Value:
    value = node.value
    if value is None:
        return NONE
    held = node.__dict__
    known: Constant | None = held.get("known")
    if known is None:
        known = held["known"] = Constant(shortened(repr(value)), value=value)
    # A text is the same wherever it is; a number may be the beginning of a total.
    return known if type(value) is str else Constant(known.key, value=value)


def evaluate_attribute(world: World, node: ast.Attribute) -> Value:
    receiver = evaluate(world, node.value)
    return attribute(world, receiver, node.attr)


def evaluate_boolean(world: World, node: ast.BoolOp) -> Value:
    rest = node.values[1:]
    if is_eventful(world, world.frame.module, rest):
        # `ready and optimizer.step()` is a branch in disguise.
        conjunction = isinstance(node.op, ast.And)
        taken = branch(
            world, node.values[0], rest if conjunction else [], [] if conjunction else rest
        )
        if taken is not None and taken is not conjunction:
            return Number(f"shortcut@{node.lineno}:{world.marks}")
        for part in rest[:-1]:
            evaluate(world, part)
        return evaluate(world, rest[-1])
    values = [evaluate(world, part) for part in node.values]
    if all(is_plain(value) for value in values):
        word = " and " if isinstance(node.op, ast.And) else " or "
        return Number(shortened("(" + word.join(value.key for value in values) + ")"))
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result


def evaluate_conditional(world: World, node: ast.IfExp) -> Value:
    truth = branch(world, node.test, [node.body], [node.orelse])
    if truth is True:
        return evaluate(world, node.body)
    if truth is False:
        return evaluate(world, node.orelse)
    return join(evaluate(world, node.body), evaluate(world, node.orelse))


def evaluate_subscript(world: World, node: ast.Subscript) -> Value:
    receiver = settled(evaluate(world, node.value))
    index = evaluate(world, node.slice)
    found = element(world, receiver, index)
    if is_index(receiver, found):
        # `outputs.max(1)[1]` carries no graph on: it is a cut, as `argmax` is.
        world.emit(Kind.DETACH, node, None, receiver)
    return found


def is_index(receiver: Value, found: Value) -> bool:
    """Whether an element says where in a tensor the largest values are, not what they are."""
    of_pair = isinstance(receiver, Tensor) and receiver.key.endswith(".indexed()")
    return of_pair and isinstance(found, Tensor) and found.graph is False


def evaluate_display(world: World, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = []
    for part in node.elts:
        value = evaluate(world, part.value if isinstance(part, ast.Starred) else part)
        if isinstance(part, ast.Starred) and isinstance(value, Container):
            items.extend(value.items)
        else:
            items.append(value)
    kind = "tuple" if isinstance(node, ast.Tuple) else "list"
    key = shortened("(" + ",".join(item.key for item in items) + ")")
    if kind == "list":
        key = f"list@{node.lineno}:{node.col_offset}:{world.marks}"
    return Container(key, items=items, born=world.marks, kind=kind)


def evaluate_dict(world: World, node: ast.Dict) -> Value:
    key = f"dict@{node.lineno}:{node.col_offset}:{world.marks}"
    found = Container(key, born=world.marks, kind="dict")
    for name, part in zip(node.keys, node.values, strict=True):
        value = evaluate(world, part)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            found.names[name.value] = value
        elif name is None and isinstance(value, Container):
            found.names.update(value.names)
            found.items.extend(value.items)
        else:
            found.items.append(value)
    return found


def evaluate_comprehension(world: World, node: Any) -> Value:
    """A comprehension is a loop: some iterations, what they yield in one container."""
    kind = "dict" if isinstance(node, ast.DictComp) else "list"
    born = world.marks
    found = Container(f"comp@{node.lineno}:{node.col_offset}:{born}", born=born, kind=kind)
    saved = dict(world.frame.names)
    loops = len(world.loops)
    first = node.generators[0]
    iterable = evaluate(world, first.iter)
    followed = [node.value] if isinstance(node, ast.DictComp) else [node.elt]
    busy = node.__dict__.get("busy")
    if busy is None:
        calls = (isinstance(part, ast.Call) for n in followed for part in ast.walk(n))
        busy = node.__dict__["busy"] = any(calls)
    world.serial += 1
    serial = world.serial
    most = iterations_of(iterable) if busy and len(world.loops) < 4 else 1
    for iteration in range(1, most + 1):
        world.enter_loop(node, serial, iteration)
        bind(world, first.target, item_of(world, iterable, iteration, first.target))
        for generator in node.generators[1:]:
            inner = evaluate(world, generator.iter)
            bind(
                world,
                generator.target,
                item_of(world, inner, iteration, generator.target),
            )
        for part in followed:
            value = evaluate(world, part)
            found.items.append(value)
            if busy and may_have_graph(value):
                detail = {"how": "element", "born": born, "leaves": [(part, value)]}
                place = node.__dict__.get("collected_in", "[...]")
                world.emit(Kind.KEEP, part, found, value, place=place, **detail)
        del world.loops[loops:]
    world.frame.names.clear()
    world.frame.names.update(saved)
    return found


def evaluate_lambda(world: World, node: ast.Lambda) -> Value:
    return Callable(f"lambda@{node.lineno}:{node.col_offset}", frame=world.frame, lambda_node=node)


def evaluate_text(world: World, node: ast.JoinedStr | ast.FormattedValue) -> Value:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    for part in parts:
        if isinstance(part, ast.FormattedValue) and calls_project(world.frame.module, part):
            # `print(f"{validate(model):.3f}")`: the text does not matter, the call does.
            evaluate(world, part.value)
    key = f"text@{node.lineno}:{node.col_offset}"
    return Number(f"{key}#{world.marks}" if changes_with_loop(world, parts) else key)


def changes_with_loop(world: World, parts: Sequence_[ast.expr]) -> bool:
    """Whether a text has another value in each iteration: `f"step_{i}"`."""
    return any(
        isinstance(part, ast.FormattedValue)
        and isinstance(part.value, ast.Name)
        and "#" in evaluate(world, part.value).key
        for part in parts
    )


def calls_project(module: Module, node: ast.AST) -> bool:
    """Whether a function or method of the file is called inside, or one that it imports."""
    memo: dict[int, bool] = module.__dict__.setdefault("calls_project", {})
    if id(node) not in memo:
        names = module.__dict__.get("callable_names")
        if names is None:
            names = {function.name for function in module.all_functions} | module.imports.keys()
            module.__dict__["callable_names"] = names
        calls = (part.func for part in ast.walk(node) if isinstance(part, ast.Call))
        memo[id(node)] = any(
            (func.id if isinstance(func, ast.Name) else func.attr) in names
            for func in calls
            if isinstance(func, (ast.Name, ast.Attribute))
        )
    return memo[id(node)]


def evaluate_named(world: World, node: ast.NamedExpr) -> Value:
    value = evaluate(world, node.value)
    bind(world, node.target, value)
    return value


def evaluate_inner(world: World, node: Any) -> Value:
    return evaluate(world, node.value)


def evaluate_yield(world: World, node: ast.Yield | ast.YieldFrom) -> Value:
    value = evaluate(world, node.value) if node.value is not None else NONE
    if world.frame.consumer is not None and isinstance(node, ast.Yield):
        world.frame.consumer(value)
    return Unknown(f"yield@{node.lineno}")


def evaluate_slice(world: World, node: ast.Slice) -> Value:
    parts = [
        evaluate(world, part).key if part is not None else ""
        for part in (node.lower, node.upper, node.step)
    ]
    return Number(":".join(parts))


HANDLERS: dict[type[ast.expr], Function_[[World, Any], Value]] = {
    ast.Name: evaluate_name,
    ast.Attribute: evaluate_attribute,
    ast.Constant: evaluate_constant,
    ast.BinOp: evaluate_binary,
    ast.UnaryOp: evaluate_unary,
    ast.Compare: evaluate_compare,
    ast.BoolOp: evaluate_boolean,
    ast.IfExp: evaluate_conditional,
    ast.Subscript: evaluate_subscript,
    ast.Tuple: evaluate_display,
    ast.List: evaluate_display,
    ast.Set: evaluate_display,
    ast.Dict: evaluate_dict,
    ast.ListComp: evaluate_comprehension,
    ast.SetComp: evaluate_comprehension,
    ast.GeneratorExp: evaluate_comprehension,
    ast.DictComp: evaluate_comprehension,
    ast.Lambda: evaluate_lambda,
    ast.JoinedStr: evaluate_text,
    ast.FormattedValue: evaluate_text,
    ast.NamedExpr: evaluate_named,
    ast.Starred: evaluate_inner,
    ast.Await: evaluate_inner,
    ast.Yield: evaluate_yield,
    ast.YieldFrom: evaluate_yield,
    ast.Slice: evaluate_slice,
}
