"""How the condition of a window counts: from where, up to what, over which loop."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import bindings, class_of, is_self_attribute, loops_around, own_nodes
from oomlint.analysis.state import Kind
from oomlint.analysis.windows import Window

# Calls that go through what they are given as it is.
PASSING = frozenset("tqdm trange track progress list iter prefetch auto_tqdm progress_bar".split())


@dataclass(frozen=True, slots=True)
class Count:
    """`(counter + offset) % size == remainder`; `start` is the counter's first value at the test.

    `remainder` is 0, or -1 for `size - 1`.
    """

    module: Module
    # The comparison, or the `%` itself where its truth is asked.
    test: ast.expr
    modulo: ast.BinOp
    counter: ast.expr
    offset: int
    start: int
    remainder: int
    # Everything that the condition asks, `test` among it.
    condition: ast.expr
    # What the loop goes through, where the counter is that of `enumerate`.
    loader: ast.expr | None

    @property
    def size(self) -> ast.expr:
        return self.modulo.right

    @property
    def shift(self) -> int:
        """Micro-batches by which the first window is too short; -1 for all but one of them.

        It is 0 where the condition becomes true with the last micro-batch of a full window.
        """
        return self.start + self.offset - (1 if self.remainder == 0 else 0)


def count_of(window: Window) -> Count | None:
    """How a window's condition counts; None where that cannot be read."""
    guard = window.guard
    if guard is None or not steps_behind_backward(window):
        return None
    module = guard.module
    condition = assigned_test(module, guard.test, module.function_of(guard.test))
    found = equality(condition, guard.truth)
    if found is None:
        return None
    test, modulo, remainder = found
    counter, offset = shifted(modulo.left)
    if counter is None:
        return None
    start, loader = first_value(module, window, counter, modulo)
    if start is None:
        return None
    return Count(module, test, modulo, counter, offset, start, remainder, condition, loader)


def steps_behind_backward(window: Window) -> bool:
    """Whether the step uses the backward of its own iteration, not only those before it."""
    for event in reversed(window.world.of(Kind.BACKWARD)):
        if event.index < window.step.index:
            marks = {(mark.serial, mark.iteration) for mark in event.loops}
            return (window.loop.serial, window.loop.iteration) in marks
    return False


def assigned_test(module: Module, test: ast.expr, function: Function | None) -> ast.expr:
    """`should_step = (i + 1) % n == 0` stands for itself where it is asked."""
    if isinstance(test, ast.Name):
        found = bindings(module, test.id, function)
        if len(found) == 1 and found[0] is not None:
            return found[0]
    return test


def equality(test: ast.expr, truth: bool) -> tuple[ast.expr, ast.BinOp, int] | None:
    """The one part of a condition that says at which counts there is a step."""
    found = list(equalities(test, truth))
    return found[0] if len(found) == 1 else None


def equalities(test: ast.expr, truth: bool) -> Iterator[tuple[ast.expr, ast.BinOp, int]]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from equalities(value, truth)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from equalities(test.operand, not truth)
    elif is_modulo(test) and isinstance(test, ast.BinOp) and not truth:
        yield test, test, 0
    elif isinstance(test, ast.Compare) and len(test.ops) == 1 and is_modulo(test.left):
        same = isinstance(test.ops[0], ast.Eq)
        remainder = remainder_of(test.left, test.comparators[0])
        if isinstance(test.ops[0], ast.Gt) and remainder != 0:
            return
        if remainder is not None and isinstance(test.ops[0], ast.Eq | ast.NotEq | ast.Gt):
            if same is truth and isinstance(test.left, ast.BinOp):
                yield test, test.left, remainder


def is_modulo(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)


def remainder_of(modulo: ast.expr, compared: ast.expr) -> int | None:
    if isinstance(compared, ast.Constant) and compared.value == 0:
        return 0
    size = written(modulo.right) if isinstance(modulo, ast.BinOp) else ""
    return -1 if written(compared) in (f"{size} - 1", f"({size}) - 1") else None


def shifted(node: ast.expr) -> tuple[ast.expr | None, int]:
    """`i + 1` is the counter `i` and 1."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return node, 0
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        sign = 1 if isinstance(node.op, ast.Add) else -1
        left, right = node.left, node.right
        if isinstance(left, ast.Constant) and sign == 1:
            left, right = right, left
        if isinstance(right, ast.Constant) and isinstance(right.value, int):
            if isinstance(left, ast.Name | ast.Attribute | ast.Subscript):
                return left, sign * right.value
    return None, 0


Start = tuple[int | None, ast.expr | None]


def first_value(module: Module, window: Window, counter: ast.expr, at: ast.expr) -> Start:
    """What a counter is at the test on the first micro-batch, and what `enumerate` goes through."""
    function, loop = module.function_of(at), window.loop.node
    inside = window.loop.module is module and module.function_of(loop) is function
    if isinstance(counter, ast.Name) and isinstance(loop, ast.For) and binds(loop, counter.id):
        return looped(module, loop, counter.id) if inside else (None, None)
    if isinstance(counter, ast.Name):
        values = bindings(module, counter.id, function)
        holder: ast.AST = function.node if function is not None else module.tree
        return counted(window, counter, values, holder, at), None
    if isinstance(counter, ast.Attribute) and is_self_attribute(counter, function):
        owner = class_of(function)
        if owner is not None:
            values = [value for value, _ in owner.assigned.get(counter.attr, ())]
            return counted(window, counter, list(values), owner.node, at), None
    return None, None


def binds(loop: ast.For, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(loop.target))


def looped(module: Module, loop: ast.For, name: str) -> Start:
    """The first value of a loop's own counter: `enumerate(loader, 1)`, `range(n)`."""
    iterable = passed(loop.iter)
    if isinstance(iterable, ast.Name):
        found = bindings(module, iterable.id, module.function_of(loop))
        if len(found) == 1 and found[0] is not None:
            iterable = passed(found[0])
    if not isinstance(iterable, ast.Call) or not isinstance(iterable.func, ast.Name):
        return None, None
    arguments = iterable.args
    if iterable.func.id in ("range", "trange") and isinstance(loop.target, ast.Name):
        if len(arguments) == 1:
            return 0, None
        return (integer(arguments[0]) if len(arguments) == 2 else None), None
    if iterable.func.id == "enumerate" and arguments and isinstance(loop.target, ast.Tuple):
        first = loop.target.elts[0]
        if not (isinstance(first, ast.Name) and first.id == name):
            return None, None
        given = [k.value for k in iterable.keywords if k.arg == "start"] or arguments[1:2]
        start = integer(given[0]) if given else 0
        return start, passed(arguments[0])
    return None, None


def passed(iterable: ast.expr) -> ast.expr:
    """What a progress bar goes through."""
    while isinstance(iterable, ast.Call) and iterable.args:
        called = iterable.func
        name = called.attr if isinstance(called, ast.Attribute) else written(called)
        if name not in PASSING:
            break
        iterable = iterable.args[0]
    return iterable


def integer(node: ast.expr) -> int | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def counted(
    window: Window,
    counter: ast.expr,
    values: list[ast.expr | None],
    holder: ast.AST,
    at: ast.expr,
) -> int | None:
    """A counter that is set to one number and counted up by one, at one place of the test's loop.

    It is one further at the test where it is counted before it.
    """
    text = written(counter)
    plain = [value for value in values if value is not None and not mentions(value, text)]
    starts = {integer(value) for value in plain}
    increments = [node for node in ast.walk(holder) if increases(node, text)]
    if len(increments) != 1 or len(starts) != 1:
        return None
    start, increment = starts.pop(), increments[0]
    asked = seen_beside(window, increment, at)
    if start is None or asked is None:
        return None
    return start + (increment.lineno < asked.lineno)


def seen_beside(window: Window, increment: ast.stmt, at: ast.expr) -> ast.expr | ast.stmt | None:
    """Where a counter is asked, as seen from where it is counted: the test, or a call on the way.

    None where it is not counted once in every iteration in which it is asked.
    """
    calls = [(call.module, call.node) for call in window.step.calls]
    for module, node in reversed([*calls, (window.step.module, at)]):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        if module.function_of(increment) is not module.function_of(node):
            continue
        if increment not in module.parents:
            continue
        same_loop = loops_around(module, increment)[:1] == loops_around(module, node)[:1]
        return node if same_loop and not is_conditional(module, increment) else None
    return None


def is_conditional(module: Module, node: ast.stmt) -> bool:
    for parent in module.enclosing(node):
        if isinstance(parent, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
            return False
        if isinstance(parent, ast.If | ast.Try | ast.Match):
            return True
    return False


def increases(node: ast.AST, text: str) -> TypeGuard[ast.Assign | ast.AugAssign]:
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return written(node.target) == text and integer(node.value) == 1
    if isinstance(node, ast.Assign) and written(node.targets[0]) == text:
        return written(node.value) in (f"{text} + 1", f"1 + {text}")
    return False


def mentions(value: ast.expr, text: str) -> bool:
    names = (node for node in ast.walk(value) if isinstance(node, ast.Name | ast.Attribute))
    return any(written(node) == text for node in names)


def twins(count: Count) -> list[ast.expr]:
    """Every place of the function, or of the script, that asks what the window's test asks."""
    function = count.module.function_of(count.test)
    text = written(count.test)
    return [
        node
        for node in own_nodes(function.node if function is not None else count.module.tree)
        if isinstance(node, ast.Compare | ast.BinOp) and written(node) == text
    ]
