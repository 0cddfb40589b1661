"""What a window does with its losses: divides them, adds several, counts on across epochs."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import knowledge
from oomlint.analysis.modules import written
from oomlint.analysis.order import steps
from oomlint.analysis.reductions import is_divided_by
from oomlint.analysis.state import Kind
from oomlint.analysis.windows import Window, same_test


def is_accumulation(window: Window) -> bool:
    """Whether the window is gradient accumulation and not a schedule of another kind.

    A critic ratio or a delayed actor also steps under `% n`; accumulation divides by the same
    name, says so in the name, or loops over micro-batches and steps behind the loop.
    """
    text = written(window.guard.test) if window.guard is not None else ""
    size = written(window.size) if window.size is not None else ""
    # `if last: ...` in a helper: what it was given says what it looks at.
    given = window.guard.key if window.guard is not None else ""
    named = bool(knowledge.ACCUMULATION_NAME.search(f"{text} {size} {given}"))
    if window.guard is None:
        node = window.loop.node
        head = written(node.target) + written(node.iter) if isinstance(node, ast.For) else ""
        cut = knowledge.ACCUMULATION_NAME.search(head) or CHUNKED.search(head)
        return named or bool(cut) or is_shared_out(window)
    if not named and "sync_gradients" not in text:
        return divides_elsewhere(window)
    others = [
        e
        for e in steps(window.world)
        if any(m.serial == window.loop.serial for m in e.loops)
        and not any(same_test(window.guard, guard) for guard in e.guards)
    ]
    return not others


def is_shared_out(window: Window) -> bool:
    """Whether the loss is divided by how many the loop goes through: `loss / len(parts)`."""
    node, function = window.loop.node, window.step.function
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Name) or function is None:
        return False
    count = f"len({node.iter.id})"
    counts = {count}
    for part in ast.walk(function.node):
        if isinstance(part, ast.Assign) and written(part.value) == count:
            counts.update(written(goal) for goal in part.targets)
    return any(
        isinstance(part, ast.BinOp)
        and isinstance(part.op, ast.Div)
        and written(part.right) in counts
        and not is_number(part.left)
        and part.lineno <= window.backward.node.lineno
        for part in ast.walk(node)
    )


# A batch that is cut into parts: each is a micro-batch, whatever its name.
CHUNKED = re.compile(r"\.(chunk|tensor_split)\(|\btorch\.split\(|\.split\([\w.]+[,)]")


def divided(window: Window) -> bool:
    value = window.backward.value
    size = written(window.size).rsplit(".", 1)[-1] if window.size is not None else ""
    return value is not None and is_divided_by(value, size, window.guard is not None)


def divides_elsewhere(window: Window) -> bool:
    """Whether the code divides anything by the window's size: a rate, a weight, a total."""
    if window.size is None or window.step.function is None:
        return False
    size = written(window.size)
    owner = window.step.function.owner
    holders: list[ast.AST] = [window.step.function.node if owner is None else owner.node]
    for holder in holders:
        for node in ast.walk(holder):
            if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div):
                divisor = node.right if isinstance(node, ast.BinOp) else node.value
                divided = node.left if isinstance(node, ast.BinOp) else node.target
                if size in written(divisor) and not is_number(divided) and not is_count(divided):
                    return True
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if (
                    node.func.attr in ("div", "div_")
                    and node.args
                    and size in written(node.args[0])
                ):
                    return True
    return False


def is_number(expression: ast.expr) -> bool:
    """Whether an expression only reports: it has left the graph."""
    return bool(re.search(r"\.(item|detach|tolist)\(|float\(", written(expression)))


# `len(loader) // n`, `num_samples / (batch_size * n)`: how many steps there are.
COUNT = re.compile(
    r"\blen\(|(^|[._])(num|n|total|max)_|(steps?|iters?|iterations|epochs?|samples|examples|batches"
    r"|batch_?size)$",
    re.IGNORECASE,
)


def is_count(expression: ast.expr) -> bool:
    """Whether an expression counts samples, batches or steps."""
    return bool(COUNT.search(written(expression)))


def only_backward(window: Window) -> bool:
    """Whether the window's loop has one backward: several that are meant to add are not judged."""
    nodes = {
        id(event.node)
        for event in window.world.of(Kind.BACKWARD)
        if any(m.serial == window.loop.serial for m in event.loops)
    }
    return len(nodes) == 1


def carries_over(window: Window) -> bool:
    """Whether the window's counter goes on across the loops around its own (a global step)."""
    guard = window.guard
    function = guard.module.function_of(guard.test) if guard is not None else None
    if guard is None or function is None or len(window.backward.loops) < 2:
        return False
    inner, outer = window.backward.loops[-1].node, window.backward.loops[-2].node
    names = {written(n) for n in ast.walk(guard.test) if isinstance(n, ast.Name | ast.Attribute)}
    outer_targets = targets_of(outer)
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign) and any(written(t) in names for t in node.targets):
            used = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
            if used & outer_targets and inner is not outer:
                return True
        if isinstance(node, ast.AugAssign) and written(node.target) in names:
            return not is_reset_inside(outer, inner, written(node.target))
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
        and any(written(target) == name for target in node.targets)
        for node in ast.walk(outer)
    )
