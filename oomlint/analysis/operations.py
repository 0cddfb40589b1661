"""Operations: what an operator makes of the values of its operands."""

from __future__ import annotations

import ast

from oomlint.analysis import knowledge
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.state import World
from oomlint.analysis.values import Constant, Container, Number, Tensor, Value, shortened


def is_plain(value: Value) -> bool:
    return isinstance(value, (Number, Constant))


def evaluate_binary(world: World, node: ast.BinOp) -> Value:
    left, right = evaluate(world, node.left), evaluate(world, node.right)
    return binary(world, node.op, left, right, node.right)


def binary(
    world: World, operator: ast.operator, left: Value, right: Value, right_node: ast.expr
) -> Value:
    sign = SIGNS.get(type(operator), "?")
    key = shortened(f"({left.key}{sign}{right.key})")
    if is_plain(left) and is_plain(right):
        return Number(key)
    if isinstance(left, Container) and isinstance(right, Container) and sign == "+":
        both = Container(key, items=[*left.items, *right.items], born=world.marks)
        both.parents = (left, right)
        return both
    divided = sign in ("/", "//")
    if sign == "*":
        divided = any(
            "/" in side.key or is_accumulation(side.key)
            for side in (left, right)
            if not isinstance(side, Tensor)
        )
    # A mean times the number of samples is a sum.
    counted = sign == "*" and any(
        knowledge.SAMPLE_COUNT.search(side.key) for side in (left, right) if is_plain_or_name(side)
    )
    return Tensor(
        key,
        parents=(left, right),
        graph=None if world.grad is not False else False,
        divided=divided,
        reduction="sum" if counted else "",
        made_by=sign,
    )


def is_plain_or_name(value: Value) -> bool:
    return not isinstance(value, Tensor) or value.opaque


def is_accumulation(key: str) -> bool:
    return bool(knowledge.ACCUMULATION_NAME.search(key))


SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}


def evaluate_unary(world: World, node: ast.UnaryOp) -> Value:
    value = evaluate(world, node.operand)
    if isinstance(node.op, ast.Not):
        return Number(f"not {value.key}")
    if isinstance(value, Constant) and isinstance(node.op, ast.USub):
        if isinstance(value.value, (int, float)):
            return Constant(f"-{value.key}", value=-value.value)
    if is_plain(value):
        return Number(f"-{value.key}")
    return Tensor(f"-{value.key}", parents=(value,), made_by="neg")


def evaluate_compare(world: World, node: ast.Compare) -> Value:
    left = evaluate(world, node.left)
    parts = [left.key]
    for operator, comparator in zip(node.ops, node.comparators, strict=True):
        parts.append(type(operator).__name__ + ":" + evaluate(world, comparator).key)
    return Number(shortened("cmp(" + " ".join(parts) + ")"))
