"""OOM205: micro-batches at the end of an epoch that fill no window and are erased."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.counting import (
    Count,
    assigned_test,
    count_of,
    increases,
    integer,
    passed,
    twins,
)
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.order import steps
from oomlint.analysis.questions import Window
from oomlint.analysis.schedules import by_progress
from oomlint.analysis.sites import bindings
from oomlint.analysis.state import Event, Kind
from oomlint.analysis.windows import counted_windows
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity


class DroppedLastWindow(Rule):
    """
    ## What it does
    Checks for accumulation windows that start anew in every epoch, without a step for the
    micro-batches that are left at the end, while the next epoch begins with `zero_grad()`.

    ## Why is this bad?
    Where the number of batches is no multiple of the window, the last ones of every epoch are
    computed and thrown away: their gradients never reach the parameters. With fewer batches than
    one window nothing is ever trained.

    Where gradients are zeroed behind the step only, the rest is carried into the next epoch's first
    window, and nothing is reported.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion, optimizer, epochs, accumulation_steps=4):
        for epoch in range(epochs):
            optimizer.zero_grad()
            for i, (inputs, targets) in enumerate(loader):
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, optimizer, epochs, accumulation_steps=4):
        for epoch in range(epochs):
            optimizer.zero_grad()
            for i, (inputs, targets) in enumerate(loader):
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0 or i + 1 == len(loader):
                    optimizer.step()
                    optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: there is one more step an epoch, made with fewer micro-batches than the others.

    ## Measured
    With six batches and windows of four, the step after the first epoch's sees four of the six
    backward passes since the one before it; after the fix every step sees all of them.

    ## References
    - [PyTorch: gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "OOM205"
    name = "dropped-last-window"
    severity = Severity.WARNING
    tokens = (("backward(",), ("step(",), ("zero_grad",))
    claims = (Claim.GRADIENT_WHOLE,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for window in counted_windows(world):
                erasure = erased_between_epochs(window)
                if erasure is None or not ask.is_accumulation(window):
                    continue
                if is_handled(model, window) or not starts_anew(window):
                    continue
                count = count_of(window)
                node = place(model, window, count)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    "the micro-batches behind the last full window of an epoch are lost: "
                    "no step uses them and the next epoch erases them"
                )
                path = [
                    (erasure, "every epoch begins with erased gradients"),
                    (window.backward, "backward of every micro-batch"),
                    (window.step, "step for full windows only"),
                ]
                fix = step_at_the_end(model, count) if count is not None else None
                yield finding(model, self, node, message, fix, path)


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


def step_at_the_end(model: Model, count: Count) -> Fix | None:
    """`... or i + 1 == len(loader)` behind every test of the window's end."""
    module, loader = model.module, count.loader
    if count.module is not module or not isinstance(loader, ast.Name | ast.Attribute):
        return None
    if count.start not in (0, 1):
        return None
    number = written(count.counter) + (" + 1" if count.start == 0 else "")
    places = twins(count)
    if not all(stands_free(module, node) for node in places):
        return None
    changes = []
    for node in places:
        positive = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq)
        negated = isinstance(module.parents[node], ast.UnaryOp)
        word, sign = ("or", "==") if positive or negated else ("and", "!=")
        _, end = module.span(node)
        text = f" {word} {number} {sign} len({written(loader)})"
        changes.append(Edit(end, end, text))
    title = f"Step for the last micro-batches, too: `{number} == len({written(loader)})`"
    return make_fix(title, changes, Safety.UNSAFE)


def stands_free(module: Module, node: ast.expr) -> bool:
    """Whether `or ...` may follow a test: it is all of a condition, an argument or a value."""
    parent = module.parents[node]
    if isinstance(parent, ast.UnaryOp):
        return isinstance(node, ast.BinOp) and isinstance(module.parents[parent], ast.If)
    return isinstance(parent, ast.If | ast.Assign | ast.keyword)
