"""What outlives an iteration: running totals, containers and attributes that hold on to tensors."""

from __future__ import annotations

import ast

from oomlint.analysis import knowledge
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.state import Kind, World
from oomlint.analysis.values import Container, Marks, Number, Unknown, Value, may_have_graph


def crosses(born: Marks, now: Marks) -> bool:
    """Whether a thing made at `born` is still there in a later iteration of a loop under way."""
    return any(mark not in born for mark in now)


def leaves(expression: ast.expr) -> list[ast.expr]:
    """The operands of an expression that could be detached one by one."""
    if isinstance(expression, ast.BinOp):
        return [*leaves(expression.left), *leaves(expression.right)]
    if isinstance(expression, ast.UnaryOp):
        return leaves(expression.operand)
    if isinstance(expression, ast.List | ast.Tuple):
        return [leaf for part in expression.elts for leaf in leaves(part)]
    if isinstance(expression, ast.Dict):
        return [leaf for part in expression.values for leaf in leaves(part)]
    if isinstance(expression, ast.IfExp):
        return [*leaves(expression.body), *leaves(expression.orelse)]
    if isinstance(expression, ast.Call) and joins(expression):
        return leaves(expression.args[0])
    return [] if isinstance(expression, ast.Constant) else [expression]


def joins(call: ast.Call) -> bool:
    """`torch.cat((total, output))`: what was there before with something put behind it."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return name in JOINING and bool(call.args) and isinstance(call.args[0], ast.List | ast.Tuple)


JOINING = frozenset({"cat", "concat", "concatenate", "hstack", "vstack", "stack"})


def graph_leaves(world: World, expression: ast.expr) -> list[tuple[ast.expr, Value | None]]:
    """The operands with what they are now; calls are not evaluated a second time."""
    found: list[tuple[ast.expr, Value | None]] = []
    for leaf in leaves(expression):
        pure = not any(isinstance(part, ast.Call | ast.NamedExpr) for part in ast.walk(leaf))
        if pure:
            found.append((leaf, evaluate(world, leaf)))
            continue
        if isinstance(leaf, ast.Call) and isinstance(leaf.func, ast.Name):
            if leaf.func.id in knowledge.NUMBER_CALLS:
                found.append((leaf, Number(leaf.func.id)))
                continue
        inner = leaf
        while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            inner = inner.func.value
        simple = isinstance(inner, ast.Name | ast.Attribute | ast.Subscript) and not any(
            isinstance(part, ast.Call) for part in ast.walk(inner)
        )
        found.append((leaf, evaluate(world, inner) if simple else None))
    return found


def keep_in_container(world: World, node: ast.Call, receiver: Value, value: Value) -> None:
    """`xs.append(value)` and its relatives."""
    if isinstance(receiver, Container):
        # Containers stay small: one value of each iteration tells the story.
        if len(receiver.items) < 8:
            receiver.items.append(value)
        if receiver.bounded or not crosses(receiver.born, world.marks):
            return
        born = receiver.born
    elif isinstance(receiver, Unknown):
        born = ()
        if not world.marks:
            return
    else:
        return
    if may_have_graph(value):
        leaf = graph_leaves(world, node.args[-1]) if node.args else []
        world.emit(Kind.KEEP, node, receiver, value, how="container", born=born, leaves=leaf)


def keep_in_total(
    world: World,
    node: ast.stmt,
    place: str,
    old: Value | None,
    value: Value,
    born: Marks,
    total: Value,
) -> None:
    """`total += value` or a moving average: the old value lives on in the new one."""
    if crosses(born, world.marks) and may_have_graph(value):
        expression = getattr(node, "value", None)
        leaf = graph_leaves(world, expression) if isinstance(expression, ast.expr) else []
        world.emit(
            Kind.KEEP, node, total, value, how="total", place=place, old=old, born=born, leaves=leaf
        )
