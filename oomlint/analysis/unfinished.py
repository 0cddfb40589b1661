"""Micro-batches behind an epoch's last full window: which are erased, and who thinks of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor
from oomlint.analysis.counting import (
    Count,
    assigned_test,
    increases,
    integer,
    passed,
)
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.order import steps
from oomlint.analysis.questions import Window
from oomlint.analysis.schedules import by_progress
from oomlint.analysis.sites import bindings
from oomlint.analysis.state import Event, Kind

if TYPE_CHECKING:
    from oomlint.analysis import Model


def place(model: Model, window: Window, count: Count | None) -> ast.expr | ast.stmt | None:
    if count is not None and count.module is model.module:
        return count.test
    if window.guard is not None and window.guard.module is model.module:
        return window.guard.test
    return anchor(model, window.step)


def erased_between_epochs(window: Window) -> Event | None:
    """A zeroing before the window's loop that is done again for every run of that loop."""
    if window.guard is None or ask.carries_over(window):
        return None
    outer: list[int] = []
    for mark in window.step.loops:
        if mark.serial == window.loop.serial:
            break
        outer.append(mark.serial)
    for zero in window.world.of(Kind.ZERO_GRAD):
        around = [mark.serial for mark in zero.loops]
        if zero.index > window.backward.index or zero.subject is None:
            continue
        if around != outer[: len(around)] or not ask.concerns(zero, window.optimizer):
            continue
        if (around or is_one_epoch(zero, window)) and not by_progress(zero, window.backward):
            return zero
    return None


def is_one_epoch(zero: Event, window: Window) -> bool:
    """Whether a function that is called elsewhere is one epoch, as its name or a parameter says."""
    function = window.step.function
    if function is None or zero.function is not function or zero.calls:
        return False
    arguments = function.node.args
    names = [p.arg for p in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return "epoch" in function.name.lower() or any(n in ("epoch", "cur_epoch") for n in names)


def starts_anew(window: Window) -> bool:
    """Whether what the window counts begins again with the epoch: nothing that is only added to."""
    guard = window.guard
    if guard is None:
        return False
    module, size = guard.module, written(window.size) if window.size is not None else ""
    function = module.function_of(guard.test)
    condition = assigned_test(module, guard.test, function)
    holders = {function, window.loop.module.function_of(window.loop.node)}
    places = [module.tree if holder is None else holder.node for holder in holders]
    assignments = [*module.index.by_kind[ast.AugAssign], *module.index.by_kind[ast.Assign]]
    for node in ast.walk(condition):
        text = written(node) if isinstance(node, ast.Name | ast.Attribute) else size
        if text in size or not any(increases(part, text) for part in assignments):
            continue
        if not any(sets(part, text) for place in places for part in ast.walk(place)):
            return False
    return True


def sets(node: ast.AST, text: str) -> bool:
    """Whether a statement gives a counter a number."""
    is_number = isinstance(node, ast.Assign) and integer(node.value) is not None
    return is_number and any(written(goal) == text for goal in node.targets)  # type: ignore


LAST = re.compile(
    r"last|len\(|final|_end\b|n_batches|num_batches|total|remain|length", re.IGNORECASE
)


def is_handled(model: Model, window: Window) -> bool:
    """Whether the code thinks of the rest: in the condition, behind the loop, by its length."""
    guard, loop, size = window.guard, window.loop.node, window.size
    function = window.step.function
    if guard is None or not isinstance(loop, ast.For) or size is None:
        return True
    condition = assigned_test(guard.module, guard.test, function)
    if LAST.search(written(condition)) or any(isinstance(n, ast.Or) for n in ast.walk(condition)):
        return True
    goes_through = " ".join(sources(guard.module, loop.iter, function))
    if written(size) in goes_through or re.search(r"islice|cycle|infinite", goes_through):
        return True
    if re.match(r"t?range\(", written(passed(loop.iter))) and "len(" not in goes_through:
        return True
    return counts_the_rest(window) or skips_the_rest(window) or steps_behind(model, window)


def sources(module: Module, iterable: ast.expr, function: Function | None) -> Iterator[str]:
    """What a loop goes through, and what the names in it were made from."""
    yield written(iterable)
    for node in ast.walk(iterable):
        if isinstance(node, ast.Name):
            for value in bindings(module, node.id, function):
                if value is not None:
                    yield written(value)


def counts_the_rest(window: Window) -> bool:
    """Whether another remainder of the window's size is taken: of the number of batches."""
    function, module = window.step.function, window.step.module
    size = written(window.size) if window.size is not None else ""
    lefts = {
        written(node.left)
        for node in ast.walk(function.node if function is not None else module.tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)
        if written(node.right) == size
    }
    if any(re.search(r"len\(|batches|total|steps_per|num_", left) for left in lefts):
        return True
    text = function.code if function is not None else module.source.text
    return bool(re.search(rf"//\s*{re.escape(size)}\s*\)?\s*\*\s*{re.escape(size)}", text))


def skips_the_rest(window: Window) -> bool:
    """`step = i // n`, and the loop leaves or goes on when the epoch's steps are done."""
    size = written(window.size) if window.size is not None else ""
    body = list(getattr(window.loop.node, "body", []))
    whole = [
        node
        for part in body
        for node in ast.walk(part)
        if isinstance(node, ast.BinOp)
        if isinstance(node.op, ast.FloorDiv) and written(node.right) == size
    ]
    named = {
        written(goal)
        for part in body
        if isinstance(part, ast.Assign) and any(node is part.value for node in whole)
        for goal in part.targets
    }
    texts = named | {written(node) for node in whole}
    return any(
        isinstance(part, ast.If)
        and isinstance(part.body[-1], ast.Continue | ast.Break)
        and isinstance(part.test, ast.Compare)
        and isinstance(part.test.ops[0], ast.Gt | ast.GtE | ast.Eq)
        and written(part.test.left) in texts
        for part in body
    )


def steps_behind(model: Model, window: Window) -> bool:
    """Whether the optimizer steps once more when the loop is over."""
    end = getattr(window.loop.node, "end_lineno", 0)
    return any(
        step.node is not window.step.node
        and not any(mark.node is window.loop.node for mark in step.loops)
        and (step.module is not window.loop.module or step.node.lineno > end)
        and ask.same(step.subject, window.optimizer)
        for world in model.worlds
        if world.root is window.world.root
        for step in steps(world)
    )
