"""What rules ask of the worlds: is there a way from one event to another that avoids a third."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import knowledge
from oomlint.analysis.state import Event, Guard, Kind, Loop, World
from oomlint.analysis.values import (
    Constant,
    Container,
    Instance,
    Sequence,
    Tensor,
    Thing,
    Unknown,
    Value,
    ancestors,
    is_divided,
    options,
    terms,
)

if TYPE_CHECKING:
    from oomlint.analysis import Model

STEPS = frozenset({Kind.STEP, Kind.SCALER_STEP})
Test = Callable[[Event], bool]


def before(world: World, event: Event, stop: Test) -> Iterator[Event]:
    """Events before one, latest first, up to and without the first that `stop` is true of."""
    for index in range(event.index - 1, -1, -1):
        candidate = world.events[index]
        if stop(candidate):
            return
        yield candidate


def after(world: World, event: Event, stop: Test) -> Iterator[Event]:
    """Events after one, up to and without the first that `stop` is true of."""
    for candidate in world.events[event.index + 1 :]:
        if stop(candidate):
            return
        yield candidate


def way(world: World, start: Event, goal: Test, avoiding: Test) -> Event | None:
    """The first event after `start` that `goal` is true of, with nothing to avoid on the way."""
    for candidate in world.events[start.index + 1 :]:
        if goal(candidate):
            return candidate
        if avoiding(candidate):
            return None
    return None


def first_after(world: World, event: Event, wanted: Test) -> Event | None:
    return next((e for e in world.events[event.index + 1 :] if wanted(e)), None)


def last_before(world: World, event: Event, wanted: Test) -> Event | None:
    for index in range(event.index - 1, -1, -1):
        if wanted(world.events[index]):
            return world.events[index]
    return None


def depth(event: Event) -> int:
    """How many loops an event is in."""
    return len(event.loops)


def key_of(value: Value | None) -> str:
    return value.key if value is not None else ""


def same(first: Value | None, second: Value | None) -> bool:
    return first is not None and second is not None and first.key == second.key


def models_of(value: Value | None) -> frozenset[str]:
    """Keys of the models that an optimizer, a model or a parameter list stands for."""
    if value is None:
        return frozenset()
    found: set[str] = set()
    for option in options(value):
        if isinstance(option, Thing) and option.role is knowledge.Role.OPTIMIZER:
            found |= option.models
        elif isinstance(option, Sequence) and option.kind == "parameters":
            found.add(option.parts[0].key)
    return frozenset(found)


def is_optimizer(value: Value | None) -> bool:
    if value is None:
        return False
    role = getattr(value, "role", None)
    return role is knowledge.Role.OPTIMIZER


def concerns(event: Event, optimizer: Value | None) -> bool:
    """Whether a zero_grad may clear the gradients that this optimizer steps on."""
    subject = event.subject
    if subject is None or optimizer is None or same(subject, optimizer):
        return True
    if is_optimizer(subject):
        # Two optimizers share parameters only where their models say so.
        mine, other = models_of(subject), models_of(optimizer)
        return bool(mine & other)
    if isinstance(subject, Instance) and not subject.is_module:
        return True
    if isinstance(subject, Unknown) and subject.role is None:
        return True
    models = models_of(optimizer)
    return not models or any(related(subject.key, key) for key in models)


def related(one: str, other: str) -> bool:
    """Whether one object is the other, or a part of it."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".")


def opaque_between(world: World, first: Event, last: Event, value: Value | None) -> bool:
    """Whether a call that cannot be followed gets the object between two events."""
    for event in world.events[first.index + 1 : last.index]:
        if event.kind is Kind.OPAQUE_CALL and may_touch(event, value):
            return True
    return False


def may_touch(event: Event, value: Value | None) -> bool:
    if value is None or not isinstance(event.value, Container):
        return False
    models = models_of(value)
    for held in event.value.items:
        if held.key == value.key or held.key in models:
            return True
        if value.key.startswith(held.key + "."):
            return True
        if isinstance(held, Instance) and any(v.key == value.key for v in held.attributes.values()):
            return True
    return False


def is_lasting(value: Value | None) -> bool:
    """Whether a key stands for the same object in every iteration (not one of several)."""
    return value is not None and "[*]" not in value.key


# gradients


def fed(world: World) -> set[int]:
    """Identities of every value from which a gradient was taken, and what these came from."""
    found: set[int] = set()
    for event in world.events:
        if event.kind in (Kind.BACKWARD, Kind.GRADIENT_TAKEN) and event.value is not None:
            found |= ancestors(event.value).keys()
    return found


# windows


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
    text = ast.unparse(guard.test)
    if re.search(r"nan|inf\b|finite", text):
        return False
    return bool(WINDOW_KEY.search(text) or "%" in guard.key)


def same_test(one: Guard, other: Guard) -> bool:
    return one.test is other.test or ast.unparse(one.test) == ast.unparse(other.test)


def windows(world: World) -> Iterator[Window]:
    """The accumulation windows of a world, each loop once."""
    seen: set[tuple[int, int, int]] = set()
    for step in world.events:
        if step.kind not in STEPS or step.detail.get("stepper") or step.detail.get("two_step"):
            continue
        for window in (guarded_window(world, step), nested_window(world, step)):
            if window is None:
                continue
            identity = (id(window.loop.node), id(window.backward.node), id(window.step.node))
            if identity not in seen:
                seen.add(identity)
                yield window


def guarded_window(world: World, step: Event) -> Window | None:
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
            e.kind is Kind.BACKWARD and any(m.serial == loop.serial for m in e.loops)
            for e in world.events[: step.index]
        ):
            return window_in(world, step, loop, guard)
    return None


def window_in(world: World, step: Event, loop: Loop, guard: Guard) -> Window | None:
    for event in world.events[: step.index]:
        if event.kind is not Kind.BACKWARD or event.detail.get("wrapper"):
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
        e.kind in STEPS and same(e.subject, last.subject)
        for e in world.events[first.index + 1 : last.index]
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
                if knowledge.ACCUMULATION_NAME.search(ast.unparse(right)):
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
    found: list[Event] = []
    for event in before(world, step, lambda e: e.kind in STEPS):
        if event.kind is Kind.BACKWARD and not event.detail.get("wrapper"):
            found.append(event)
    if len(found) < 2:
        return None
    last, first = found[0], found[-1]
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


def divided(window: Window) -> bool:
    value = window.backward.value
    return value is not None and is_divided(value)


def gradients_touched(world: World) -> bool:
    return any(event.kind is Kind.GRADIENT_TOUCHED for event in world.events)


AMP = re.compile(r"scaler|amp\b|_amp|amp_|fp16|half|precision|autocast|dtype|bf16", re.IGNORECASE)


def amp_tests(event: Event) -> frozenset[str]:
    """The conditions of an event that are about mixed precision."""
    texts = [ast.unparse(guard.test) for guard in event.guards]
    return frozenset(text for text in texts if AMP.search(text))


def disagree(*events: Event) -> bool:
    """Whether events stand under different mixed-precision conditions that may never meet."""
    found = [tests for tests in map(amp_tests, events) if tests]
    return any(one != other for one in found for other in found)


def same_function(one: Event, other: Event) -> bool:
    return one.function is other.function and one.module is other.module


def text_of(value: Value | None) -> str:
    return str(value.value) if isinstance(value, Constant) else key_of(value)


def windowed(model: Model, event: Event) -> bool:
    """Whether an event happens on every micro-batch while the step waits for the window's end."""
    return any(
        other.kind in STEPS
        and same_function(other, event)
        and (any(is_window(guard) for guard in other.guards) or is_outside(other, event))
        for world in model.worlds
        for other in world.events
    )


def is_outside(step: Event, event: Event) -> bool:
    """Whether a step stands behind the loop that an event is in."""
    outer = [loop.node for loop in step.loops]
    return (
        len(outer) < len(event.loops) and [loop.node for loop in event.loops][: len(outer)] == outer
    )


def steps_elsewhere(model: Model, event: Event) -> bool:
    """Whether another world steps and updates after the same event."""
    for world in model.worlds:
        for other in world.events:
            if other.node is event.node:
                found = way(
                    world,
                    other,
                    lambda e: e.kind is Kind.SCALER_UPDATE,
                    lambda e: e.kind is Kind.UNSCALE and e.node is event.node,
                )
                if found is not None:
                    return True
    return False


def clip_before(world: World, start: Event, step: Event) -> Event | None:
    """A clip between two events that stands under the same conditions as the step."""
    guards = {ast.unparse(guard.test) for guard in step.guards}
    for event in world.events[start.index + 1 : step.index]:
        if event.kind is Kind.CLIP and same_function(event, step):
            if guards <= {ast.unparse(guard.test) for guard in event.guards}:
                return event
    return None


def is_accumulation(window: Window) -> bool:
    """Whether the window is gradient accumulation and not a schedule of another kind.

    A critic ratio or a delayed actor also steps under `% n`; accumulation divides by the same
    name, says so in the name, or loops over micro-batches and steps behind the loop.
    """
    text = ast.unparse(window.guard.test) if window.guard is not None else ""
    size = ast.unparse(window.size) if window.size is not None else ""
    named = bool(knowledge.ACCUMULATION_NAME.search(f"{text} {size}"))
    if window.guard is None:
        node = window.loop.node
        head = (
            ast.unparse(node.target) + ast.unparse(node.iter) if isinstance(node, ast.For) else ""
        )
        return named or bool(knowledge.ACCUMULATION_NAME.search(head))
    if not named and "sync_gradients" not in text:
        return divides_elsewhere(window)
    others = [
        e
        for e in window.world.events
        if e.kind in STEPS
        and any(m.serial == window.loop.serial for m in e.loops)
        and not any(same_test(window.guard, guard) for guard in e.guards)
    ]
    return not others


def divides_elsewhere(window: Window) -> bool:
    """Whether the code divides anything by the window's size: a rate, a weight, a total."""
    if window.size is None or window.step.function is None:
        return False
    size = ast.unparse(window.size)
    owner = window.step.function.owner
    holders: list[ast.AST] = [window.step.function.node if owner is None else owner.node]
    for holder in holders:
        for node in ast.walk(holder):
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
                divisor = node.right if isinstance(node, ast.BinOp) else node.value
                divided = node.left if isinstance(node, ast.BinOp) else node.target
                if size in ast.unparse(divisor) and not is_number(divided):
                    return True
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (
                    node.func.attr in ("div", "div_")
                    and node.args
                    and size in ast.unparse(node.args[0])
                ):
                    return True
    return False


def is_opaque(value: Value) -> bool:
    """Whether a loss is the bare result of a call that is neither a model nor a criterion."""
    return any(isinstance(t, Tensor) and t.opaque and not t.barrier for t in terms(value))


def is_number(expression: ast.expr) -> bool:
    """Whether an expression only reports: it has left the graph."""
    return bool(re.search(r"\.(item|detach|tolist)\(|float\(", ast.unparse(expression)))


def only_backward(window: Window) -> bool:
    """Whether the window's loop has one backward: several that are meant to add are not judged."""
    nodes = {
        id(event.node)
        for event in window.world.events
        if event.kind is Kind.BACKWARD and any(m.serial == window.loop.serial for m in event.loops)
    }
    return len(nodes) == 1


def carries_over(window: Window) -> bool:
    """Whether the window's counter goes on across the loops around its own (a global step)."""
    guard = window.guard
    function = guard.module.function_of(guard.test) if guard is not None else None
    if guard is None or function is None or len(window.backward.loops) < 2:
        return False
    inner, outer = window.backward.loops[-1].node, window.backward.loops[-2].node
    names = {
        ast.unparse(n) for n in ast.walk(guard.test) if isinstance(n, ast.Name | ast.Attribute)
    }
    outer_targets = targets_of(outer)
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign) and any(ast.unparse(t) in names for t in node.targets):
            used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            if used & outer_targets and inner is not outer:
                return True
        if isinstance(node, ast.AugAssign) and ast.unparse(node.target) in names:
            return not is_reset_inside(outer, inner, ast.unparse(node.target))
    return False


def targets_of(loop: ast.AST) -> set[str]:
    target = getattr(loop, "target", None)
    return (
        {n.id for n in ast.walk(target) if isinstance(n, ast.Name)} if target is not None else set()
    )


def is_reset_inside(outer: ast.AST, inner: ast.AST, name: str) -> bool:
    skipped = {id(node) for node in ast.walk(inner)}
    return any(
        isinstance(node, ast.Assign)
        and id(node) not in skipped
        and any(ast.unparse(target) == name for target in node.targets)
        for node in ast.walk(outer)
    )
