"""Generator functions that train: what a loop does with each value happens where it is yielded."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from dataclasses import dataclass, field

from oomlint.analysis.binding import bind
from oomlint.analysis.dispatch import BREAK, Return, Signal, run_block, run_body
from oomlint.analysis.following import MAX_DEPTH, bind_arguments, decorated_mode
from oomlint.analysis.modules import Function, written
from oomlint.analysis.state import Call, Frame, Kind, Raised, World
from oomlint.analysis.values import (
    Arguments,
    Callable,
    Container,
    Keywords,
    Unknown,
    Value,
    may_have_graph,
)

TAKING_ALL = ("list", "tuple", "sorted")


@dataclass(eq=False, slots=True)
class Generated(Unknown):
    """What a call of a generator function gives: its body runs when somebody asks for values."""

    target: Callable | None = None
    given: Arguments = field(default_factory=list)
    given_named: Keywords = field(default_factory=dict)
    node: ast.Call | None = None


def is_followed(world: World, function: Function) -> bool:
    """Whether a generator of the checked file trains by itself: others only hand out data."""
    return (
        function.is_generator
        and function.module is world.subject
        and "backward" in function.code
        and len(world.calls) < MAX_DEPTH
        and not any(frame.function is function for frame in world.frames)
    )


def start(target: Callable, arguments: Arguments, keywords: Keywords, node: ast.Call) -> Generated:
    return Generated(
        f"{target.key}()@{node.lineno}",
        target=target,
        given=arguments,
        given_named=keywords,
        node=node,
    )


def drive(world: World, generated: Generated, consume: Function_[[Value], bool]) -> None:
    """Runs the generator's body; `consume` gets each value and says whether it wants more."""
    target, node = generated.target, generated.node
    function = target.function if target is not None else None
    if target is None or function is None or node is None or not is_followed(world, function):
        return
    frame = Frame(function.module, function, parent=target.frame, this=target.this)
    bind_arguments(world, frame, function, target.this, generated.given, generated.given_named)
    asking = (list(world.frames), list(world.calls), list(world.guards))
    depth, grad, contexts = len(world.loops), world.grad, list(world.contexts)
    finished = False

    def hand_over(value: Value) -> None:
        nonlocal finished
        if finished:
            return
        inside = (world.frames[:], world.calls[:], world.guards[:], world.contexts[:], world.grad)
        world.frames[:], world.calls[:], world.guards[:] = asking
        world.contexts[:], world.grad = contexts, grad
        try:
            finished = not consume(value)
        finally:
            world.frames[:], world.calls[:], world.guards[:], world.contexts[:] = inside[:4]
            world.grad = inside[4]

    frame.consumer = hand_over
    mode = decorated_mode(world, function)
    if mode is not None:
        world.grad = mode if isinstance(mode, bool) else None
    this = world.frame.this if world.frames else None
    given = tuple(generated.given)
    world.visited.add(function)
    world.calls.append(Call(node, world.frame.module, function, this, target.this, given))
    world.enter(frame)
    try:
        run_body(world, function.node.body)
    except Raised:
        if world.catching:
            raise
    finally:
        world.frames[:], world.calls[:], world.guards[:] = asking
        del world.loops[depth:]
        world.contexts[:], world.grad = contexts, grad


def run_over(world: World, node: ast.For | ast.AsyncFor, generated: Generated) -> Signal:
    """`for loss in self.steps(): ...`: the body of the loop runs at every `yield`."""
    world.serial += 1
    serial = world.serial
    signal: Signal = None
    iteration = 0

    def consume(value: Value) -> bool:
        nonlocal signal, iteration
        iteration += 1
        depth = len(world.loops)
        world.enter_loop(node, serial, iteration)
        bind(world, node.target, value)
        signal = run_block(world, node.body)
        del world.loops[depth:]
        return not (signal == BREAK or isinstance(signal, Return))

    drive(world, generated, consume)
    if isinstance(signal, Return):
        return signal
    return run_block(world, node.orelse) if signal != BREAK else None


def collect(world: World, node: ast.expr, generated: Generated) -> Container:
    """`list(self.steps())`: every value that is yielded, in one container."""
    key = f"list@{node.lineno}:{node.col_offset}:{world.marks}"
    found = Container(key, born=world.marks, kind="list")

    def consume(value: Value) -> bool:
        found.items.append(value)
        if may_have_graph(value):
            place = collected_in(world, node)
            world.emit(Kind.KEEP, node, found, value, how="container", place=place, born=found.born)
        return True

    drive(world, generated, consume)
    return found


def collected_in(world: World, node: ast.expr) -> str:
    parent = world.frame.module.parents.get(node)
    return written(parent.targets[0]) if isinstance(parent, ast.Assign) else "[...]"
