"""Gradient accumulation windows: a backward on every micro-batch, a step on some."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import knowledge
from oomlint.analysis.modules import written
from oomlint.analysis.order import same_function, steps
from oomlint.analysis.ownership import same
from oomlint.analysis.state import Event, Guard, Kind, Loop, World, once
from oomlint.analysis.values import Value

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class Window:
    """A loop that backpropagates every iteration and steps only in some: gradient accumulation."""

    world: World
    backward: Event
    step: Event
    loop: Loop
    # The condition of the step, or None where the micro-batches have a loop of their own.
    guard: Guard | None
    size: ast.expr | None

    @property
    def optimizer(self) -> Value | None:
        return self.step.subject


WINDOW_KEY = re.compile(r"%|accum|sync_gradients|boundary", re.IGNORECASE)


def is_window(guard: Guard) -> bool:
    """Whether a condition looks at the position in an accumulation window."""
    text = written(guard.test)
    if re.search(r"nan|inf\b|finite", text):
        return False
    return bool(WINDOW_KEY.search(text) or "%" in guard.key)


def same_test(one: Guard, other: Guard) -> bool:
    return one.test is other.test or written(one.test) == written(other.test)


@once
def windows(world: World) -> tuple[Window, ...]:
    """The accumulation windows of a world, each loop once."""
    if not world.of(Kind.BACKWARD):
        return ()
    found: dict[tuple[int, int, int], Window] = {}
    for step in steps(world):
        if step.detail.get("stepper") or step.detail.get("two_step"):
            continue
        for window in (guarded_window(world, step), nested_window(world, step)):
            if window is not None:
                nodes = (window.loop.node, window.backward.node, window.step.node)
                found.setdefault((id(nodes[0]), id(nodes[1]), id(nodes[2])), window)
    return tuple(found.values())


@once
def counted_windows(world: World) -> tuple[Window, ...]:
    """The windows that the script counts itself, those whose backward Accelerate makes included."""
    found = {id(window.step.node): window for window in windows(world) if window.guard is not None}
    for step in steps(world):
        window = guarded_window(world, step, "accelerator")
        if window is not None and "accumulate" not in window.backward.contexts:
            found.setdefault(id(step.node), window)
    return tuple(found.values())


def guarded_window(world: World, step: Event, wrapper: str = "") -> Window | None:
    """`loss.backward()` in every iteration, the step under `if (i + 1) % n == 0`."""
    if not step.loops or not step.guards:
        return None
    guard = next((g for g in reversed(step.guards) if is_window(g) and g.truth), None)
    guard = guard or next((g for g in reversed(step.guards) if is_window(g)), None)
    if guard is None:
        return None
    for loop in reversed(step.loops):
        # The loop over the batches, not one over optimizers inside it.
        if any(
            e.index < step.index and any(m.serial == loop.serial for m in e.loops)
            for e in world.of(Kind.BACKWARD)
        ):
            return window_in(world, step, loop, guard, wrapper)
    return None


def window_in(world: World, step: Event, loop: Loop, guard: Guard, wrapper: str) -> Window | None:
    for event in world.of(Kind.BACKWARD):
        if event.index > step.index:
            break
        if event.detail.get("wrapper", "") != wrapper:
            continue
        inside = any(mark.serial == loop.serial for mark in event.loops)
        if not inside or any(same_test(guard, other) for other in event.guards):
            continue
        earlier = next(m for m in event.loops if m.serial == loop.serial)
        if earlier.iteration < loop.iteration and no_step_between(world, event, step):
            return Window(world, event, step, loop, guard, modulus(guard.test, step))
    return None


def no_step_between(world: World, first: Event, last: Event) -> bool:
    return not any(
        first.index < e.index < last.index and same(e.subject, last.subject) for e in steps(world)
    )


def modulus(test: ast.expr, step: Event) -> ast.expr | None:
    """The `n` of `(i + 1) % n == 0`, or the right side of a counter comparison."""
    for node in ast.walk(test):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
            return node.right
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            if isinstance(node.ops[0], ast.GtE | ast.Gt | ast.Eq):
                right = node.comparators[0]
                if knowledge.ACCUMULATION_NAME.search(written(right)):
                    return right
    name = test.id if isinstance(test, ast.Name) else None
    if name is not None and step.function is not None:
        for node in ast.walk(step.function.node):
            if isinstance(node, ast.Assign) and any(
                isinstance(goal, ast.Name) and goal.id == name for goal in node.targets
            ):
                for part in ast.walk(node.value):
                    if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
                        return part.right
    return None


def nested_window(world: World, step: Event) -> Window | None:
    """A loop over micro-batches that backpropagates, and the step behind it."""
    earlier = max((e.index for e in steps(world) if e.index < step.index), default=-1)
    found = [
        event
        for event in world.of(Kind.BACKWARD)
        if earlier < event.index < step.index and not event.detail.get("wrapper")
    ]
    if len(found) < 2:
        return None
    first, last = found[0], found[-1]
    if last.node is not first.node or len(last.loops) != len(step.loops) + 1:
        return None
    if [m.serial for m in last.loops[:-1]] != [m.serial for m in step.loops]:
        return None
    loop = last.loops[-1]
    return Window(world, first, step, loop, None, loop_count(loop))


def loop_count(loop: Loop) -> ast.expr | None:
    """The `n` of `for _ in range(n)`, or the batches that are looped over."""
    node = loop.node
    if not isinstance(node, ast.For):
        return None
    iterable = node.iter
    while isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Name):
        if iterable.func.id == "range" and len(iterable.args) == 1:
            return iterable.args[0]
        if iterable.func.id in ("tqdm", "trange", "enumerate") and iterable.args:
            iterable = iterable.args[0]
            continue
        break
    return None


def windowed(model: Model, event: Event) -> bool:
    """Whether an event happens on every micro-batch while the step waits for the window's end."""
    return any(
        same_function(other, event)
        and (any(is_window(guard) for guard in other.guards) or is_outside(other, event))
        for world in model.worlds
        for other in steps(world)
    )


def is_outside(step: Event, event: Event) -> bool:
    """Whether a step stands behind the loop that an event is in."""
    outer = [loop.node for loop in step.loops]
    return (
        len(outer) < len(event.loops) and [loop.node for loop in event.loops][: len(outer)] == outer
    )
