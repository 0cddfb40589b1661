"""Windows of which the first is short, as its counter is off by one, or divided by another size."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import knowledge
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, anchor, make_fix
from oomlint.analysis.counting import Count, count_of, integer, mentions, twins
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.questions import Window
from oomlint.analysis.sites import bindings, own_nodes
from oomlint.rule import Edit, Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


Judgement = tuple[Node, str, Fix | None]


def shifted(model: Model, window: Window) -> Iterator[Judgement]:
    """The window's condition becomes true too early the first time."""
    count = count_of(window) if ask.is_accumulation(window) else None
    if count is None or count.shift not in (-1, 1):
        return
    node = count.test if count.module is model.module else anchor(model, window.step)
    if node is None:
        return
    size = written(count.size)
    first = "one micro-batch" if count.shift < 0 else f"`{size}` - 1 micro-batches"
    fix = renumber(model, count)
    if count.shift < 0 and skips_the_first(count):
        first, fix = f"`{size}` + 1 micro-batches", None
    yield (
        node,
        f"the first window has {first} instead of `{size}`: the counter starts at {count.start}",
        fix,
    )


def skips_the_first(count: Count) -> bool:
    """`i > 0 and i % n == 0`: what was true too early is true one window later."""
    condition = count.condition
    if not isinstance(condition, ast.BoolOp) or not isinstance(condition.op, ast.And):
        return False
    text = written(count.counter)
    return any(part is not count.test and mentions(part, text) for part in condition.values)


def renumber(model: Model, count: Count) -> Fix | None:
    """`i % n` becomes `(i + 1) % n`, and `(i + 1) % n` becomes `i % n`."""
    module, counter = model.module, written(count.counter)
    if count.module is not module or count.remainder != 0:
        return None
    if (count.shift, count.offset) not in ((-1, 0), (1, 1)):
        return None
    if min(node.lineno for node in twins(count)) < count.test.lineno:
        # What is asked before the backward may mean the start of a window.
        return None
    text = f"({counter} + 1)" if count.shift < 0 else counter
    changes = []
    for node in twins(count):
        modulo = node.left if isinstance(node, ast.Compare) else node
        if isinstance(modulo, ast.BinOp):
            start, _ = module.span(modulo)
            end = module.source.text.rindex("%", start, module.span(modulo.right)[0])
            changes.append(Edit(start, end, f"{text} "))
    title = f"Count micro-batches from one: `{text} % {written(count.size)}`"
    return make_fix(title, changes, Safety.UNSAFE)


def uneven(model: Model, window: Window) -> Iterator[Judgement]:
    """The loss is divided by another number than the one that the window counts to."""
    size, function = window.size, window.step.function
    if size is None or window.backward.function is not function or function is None:
        return
    if not ask.only_backward(window) or not ask.divided(window):
        return
    module = window.step.module
    if module is not model.module:
        return
    for divisor in divisors(function):
        if differ(module, function, divisor, size):
            message = (
                f"the loss is divided by `{written(divisor)}`, the window counts to "
                f"`{written(size)}`: the gradient at the step is no mean"
            )
            yield divisor, message, None


def divisors(function: Function) -> Iterator[ast.expr]:
    """What losses are divided by, where its name says that it is a number of micro-batches."""
    for node in own_nodes(function.node):
        if not isinstance(node, ast.BinOp | ast.AugAssign) or not isinstance(node.op, ast.Div):
            continue
        divided = node.left if isinstance(node, ast.BinOp) else node.target
        divisor = node.right if isinstance(node, ast.BinOp) else node.value
        is_name = isinstance(divisor, ast.Name | ast.Attribute)
        if is_name and knowledge.ACCUMULATION_NAME.search(written(divisor)):
            if is_loss(function.module, node, divided) and "len(" not in written(divided):
                yield divisor


def is_loss(module: Module, division: ast.AST, divided: ast.expr) -> bool:
    """Whether a loss is divided, by its name or that of what the quotient is assigned to."""
    parent = module.parents.get(division)
    target = written(parent.targets[0]) if isinstance(parent, ast.Assign) else ""
    return bool(knowledge.LOSS_NAME.search(written(divided)) or knowledge.LOSS_NAME.search(target))


def differ(module: Module, function: Function, one: ast.expr, other: ast.expr) -> bool:
    """Whether two sizes are certainly not meant to be equal: two numbers, or two options."""
    if written(one) == written(other):
        return False
    numbers = [number(module, function, node) for node in (one, other)]
    if None not in numbers:
        return numbers[0] != numbers[1]
    if isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute):
        named = knowledge.ACCUMULATION_NAME.search(other.attr)
        return bool(named) and written(one.value) == written(other.value) != "self"
    return False


def number(module: Module, function: Function, node: ast.expr) -> int | None:
    if isinstance(node, ast.Name):
        defaults = {p.arg: value for p, value in defaults_of(function)}
        if node.id in defaults:
            return integer(defaults[node.id])
        found = bindings(module, node.id, function)
        return integer(found[0]) if len(found) == 1 and found[0] is not None else None
    return integer(node)


def defaults_of(function: Function) -> Iterator[tuple[ast.arg, ast.expr]]:
    given = function.node.args
    positional = [*given.posonlyargs, *given.args]
    yield from zip(reversed(positional), reversed(given.defaults), strict=False)
    for parameter, value in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if value is not None:
            yield parameter, value
