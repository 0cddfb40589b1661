"""Statements: following the code of one world, loops twice, branches as the conditions say."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from collections.abc import Iterator
from typing import Any

from oomlint.analysis import driven, generators
from oomlint.analysis.binding import bind, run_annotated, run_assign, run_augmented
from oomlint.analysis.conditions import (
    Atom,
    branch,
    decide,
    is_eventful,
    keys_of,
    memo_of,
    read_condition,
)
from oomlint.analysis.contexts import run_with
from oomlint.analysis.dispatch import (
    BREAK,
    CONTINUE,
    MAX_STATEMENTS,
    RAISE,
    Return,
    Signal,
    evaluate,
    run,
    run_block,
)
from oomlint.analysis.iteration import MAX_AROUND_LOOPS, are_objects, item_of, iterations_of
from oomlint.analysis.modules import written
from oomlint.analysis.state import Guard, Kind, Stop, World
from oomlint.analysis.values import NONE, Callable, ClassValue, Instance, Value, join, shortened


def run_if(world: World, node: ast.If) -> Signal:
    condition = read_condition(world, node.test)
    taken = branch(world, node.test, node.body, node.orelse, condition)
    key = keys_of(condition)
    if taken is None:
        return run_both(world, node, key)
    world.guards.append(Guard(node.test, taken, key, world.frame.module))
    signal = run_block_inside(world, node.body if taken else node.orelse)
    other = node.orelse if taken else node.body
    # After `if skip: continue` the rest of the block happens under `not skip`.
    if signal is None and leaves(other):
        return None
    world.guards.pop()
    return signal


def leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Continue, ast.Break, ast.Return, ast.Raise))


def run_block_inside(world: World, body: list[ast.stmt]) -> Signal:
    for statement in body:
        signal = run(world, statement)
        if signal is not None:
            return signal
    return None


def run_both(world: World, node: ast.If, key: str) -> Signal:
    """Both arms, one after the other from the same start; what differs afterwards is an Either."""
    frame = world.frame
    start, start_born = dict(frame.names), dict(frame.born)
    this = frame.this if isinstance(frame.this, Instance) else None
    start_this = dict(this.attributes) if this else {}
    start_attributes = dict(world.attributes)
    eval_keys = dict(world.eval_keys)
    world.guards.append(Guard(node.test, True, key, frame.module))
    first = run_block(world, node.body)
    world.guards.pop()
    names, attributes = dict(frame.names), dict(world.attributes)
    held = dict(this.attributes) if this else {}
    if node.orelse or isinstance(first, Return):
        frame.names.clear()
        frame.names.update(start)
        restore(world, this, start_this, start_attributes)
        changed_eval, world.eval_keys = world.eval_keys, eval_keys
        world.guards.append(Guard(node.test, False, key, frame.module))
        second = run_block(world, node.orelse)
        world.guards.pop()
        if isinstance(first, Return) and isinstance(second, Return):
            return Return(join(first.value, second.value))
        if isinstance(first, Return):
            frame.returns.append(first.value)
            return second
        if isinstance(second, Return):
            frame.returns.append(second.value)
            second = None
            frame.names.clear()
            frame.names.update(names)
            restore(world, this, held, attributes)
            world.eval_keys = changed_eval
            return None
        start, start_this, start_attributes = (
            dict(frame.names),
            dict(this.attributes) if this else {},
            dict(world.attributes),
        )
    merge(frame.names, names, start)
    if this is not None:
        merge(this.attributes, held, start_this)
    merge(world.attributes, attributes, start_attributes)
    frame.born.update(start_born)
    return None


def restore(
    world: World,
    this: Instance | None,
    held: dict[str, Value],
    attributes: dict[tuple[str, str], Value],
) -> None:
    if this is not None:
        this.attributes.clear()
        this.attributes.update(held)
    world.attributes.clear()
    world.attributes.update(attributes)


def merge(goal: dict[Any, Value], one: dict[Any, Value], other: dict[Any, Value]) -> None:
    if one == other:
        return  # the goal holds one of them, and values are equal only to themselves
    for name in {**one, **other}:
        if name in one and name in other:
            goal[name] = one[name] if one[name] is other[name] else join(one[name], other[name])
        else:
            goal[name] = one.get(name) or other[name]


def run_match(world: World, node: ast.Match) -> Signal:
    subject = evaluate(world, node.subject)
    module = world.frame.module
    eventful = any(is_eventful(world, module, case.body) for case in node.cases)
    for case in node.cases:
        if not eventful:
            signal = run_block(world, case.body)
            if signal is not None:
                return signal
            continue
        key = shortened(f"match({subject.key}:{written(case.pattern)})")
        if case is node.cases[-1] or decide(world, Atom(key, False, None), True):
            return run_block(world, case.body)
    return None


def run_try(world: World, node: ast.Try) -> Signal:
    world.catching += bool(node.handlers)
    try:
        signal = run_block(world, node.body)
    except Stop:
        signal = RAISE
        if world.statements > MAX_STATEMENTS:
            raise
    finally:
        world.catching -= bool(node.handlers)
    if signal == RAISE and node.handlers:
        signal = run_block(world, node.handlers[0].body)
    elif signal is None:
        signal = run_block(world, node.orelse)
    last = run_block(world, node.finalbody)
    return last or signal


def run_for(world: World, node: ast.For | ast.AsyncFor) -> Signal:
    iterable = evaluate(world, node.iter)
    if isinstance(iterable, generators.Generated):
        return generators.run_over(world, node, iterable)
    return run_loop(world, node, iterable)


def run_while(world: World, node: ast.While) -> Signal:
    evaluate(world, node.test)
    return run_loop(world, node, None)


def run_loop(
    world: World, node: ast.For | ast.AsyncFor | ast.While, iterable: Value | None
) -> Signal:
    world.serial += 1
    serial = world.serial
    depth = len(world.loops)
    start = len(world.events)
    # In a later pass of the loop around it, what follows its first iteration is known already.
    later = any(loop.iteration > 1 for loop in world.loops)
    most = iterations_of(iterable)
    if most > MAX_AROUND_LOOPS and not is_flat(node):
        most = MAX_AROUND_LOOPS
    for iteration in range(1, most + 1):
        if iteration == 2 and not (
            are_objects(iterable) or (world.trains and not later and runs_again(world, node, start))
        ):
            break
        world.enter_loop(node, serial, iteration)
        if iterable is not None and not isinstance(node, ast.While):
            bind(world, node.target, item_of(world, iterable, iteration, node.target))
        signal = run_block(world, node.body)
        del world.loops[depth:]
        if signal == BREAK:
            return None
        if signal == CONTINUE or signal is None:
            continue
        return signal
    return run_block(world, node.orelse)


def is_flat(node: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether no loop is inside, which is followed again for each object."""
    return not any(isinstance(part, (ast.For, ast.While)) for part in walk_all(node.body))


# What happens in one iteration and says nothing about the next.
PASSING = frozenset({Kind.OPAQUE_CALL, Kind.FORWARD, Kind.DETACH, Kind.EVAL_MODE, Kind.TRAIN_MODE})


def runs_again(world: World, node: ast.For | ast.AsyncFor | ast.While, start: int) -> bool:
    """Whether events or values of the first iteration, since `start`, meet those of the next."""
    if is_eventful(world, world.frame.module, node.body):
        return True
    if len(world.loops) >= 4:
        return False
    if any(event.kind not in PASSING for event in world.events[start:]):
        return True
    memo = memo_of(world.frame.module)
    carries = memo.get(-id(node))
    if carries is None:
        carries = memo[-id(node)] = carries_over(node)
    return carries


def carries_over(loop: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Whether the body reads, before it assigns it, a name that it assigns."""
    written_at: dict[str, tuple[int, int]] = {}
    read_at: dict[str, tuple[int, int]] = {}
    for part in walk_all(loop.body):
        if isinstance(part, ast.AugAssign):
            return True
        if not isinstance(part, (ast.Name, ast.Attribute)):
            continue
        name = part.id if isinstance(part, ast.Name) else part.attr
        place = (part.lineno, part.col_offset)
        table = read_at if isinstance(part.ctx, ast.Load) else written_at
        table[name] = min(table.get(name, place), place)
    return any(
        # The value of an assignment is read before its target is bound.
        name in read_at and read_at[name][0] <= place[0]
        for name, place in written_at.items()
    )


def walk_all(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def run_expression(world: World, node: ast.Expr) -> Signal:
    if type(node.value) is ast.Constant and not world.frame.module.shown_rows:
        return None
    value = evaluate(world, node.value)
    frame = world.frame
    if frame.function is None and node.lineno in frame.module.shown_rows:
        world.emit(Kind.SHOWN, node.value, value=value)
    return None


def run_return(world: World, node: ast.Return) -> Signal:
    return Return(evaluate(world, node.value) if node.value is not None else NONE)


def run_definition(world: World, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Signal:
    function = world.frame.module.by_node.get(node)
    if function is not None:
        frame = world.frame
        closure = frame if frame.function is not None else None
        key = f"{node.name}@{frame.module.name}:{node.lineno}"
        made = Callable(key, function=function, frame=closure)
        frame.names[node.name] = made
        if world.engines:
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                    driven.decorate(call, evaluate(world, call.func.value), made)
    return None


def run_class(world: World, node: ast.ClassDef) -> Signal:
    found = world.frame.module.class_by_node.get(node)
    if found is not None:
        world.frame.names[node.name] = ClassValue(
            f"{world.frame.module.name}:{node.name}", cls=found
        )
    return None


def run_delete(world: World, node: ast.Delete) -> Signal:
    for target in node.targets:
        if isinstance(target, ast.Name):
            world.frame.names.pop(target.id, None)
    return None


def run_scope(world: World, node: ast.Global | ast.Nonlocal) -> Signal:
    world.frame.outer.update(node.names)
    return None


HANDLERS: dict[type[ast.stmt], Function_[[World, Any], Signal]] = {
    ast.Assign: run_assign,
    ast.AnnAssign: run_annotated,
    ast.AugAssign: run_augmented,
    ast.Expr: run_expression,
    ast.If: run_if,
    ast.For: run_for,
    ast.AsyncFor: run_for,
    ast.While: run_while,
    ast.With: run_with,
    ast.AsyncWith: run_with,
    ast.Try: run_try,
    ast.Match: run_match,
    ast.Return: run_return,
    ast.Continue: lambda world, node: CONTINUE,
    ast.Break: lambda world, node: BREAK,
    ast.Raise: lambda world, node: RAISE,
    ast.FunctionDef: run_definition,
    ast.AsyncFunctionDef: run_definition,
    ast.ClassDef: run_class,
    ast.Delete: run_delete,
    ast.Global: run_scope,
    ast.Nonlocal: run_scope,
}
if hasattr(ast, "TryStar"):
    HANDLERS[ast.TryStar] = run_try
