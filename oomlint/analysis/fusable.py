"""Which written-out attentions a fused one replaces: many queries and positions, few axes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import derivation, sites
from oomlint.analysis.modules import Function, Module, written

# One position of all: a class token, the last token.
ONE_POSITION = re.compile(r"\[:, (0?:1|-1:|0)(, [^\]]*)?\]")
# The last axis falls apart: what is left has no features to sum over.
SCALARS = re.compile(r"\.unbind\((dim=)?-1\)")
REARRANGED = re.compile(r"->([^'\"]+)['\"]")
AXIS = re.compile(r"\([^)]*\)|\S+")
MAX_AXES = 4
TEST_NAME = re.compile(r"_*test_")


def is_fusable(module: Module, product: ast.expr, total: ast.expr, function: Function) -> bool:
    """Whether an attention of many positions is computed, in a shape that kernels take."""
    query, values = factors(product)[0], factors(total)[-1]
    if is_tested(function) or is_parameter(module, query, function):
        return False
    texts = [written(value) for value in values_of_names(query, function)]
    if any(SCALARS.search(text) or is_one_position(text) for text in texts):
        return False
    if any(axes(text) > MAX_AXES for text in texts):
        return False
    weights = (written(value) for value in values_of_names(values, function))
    return not any("softmax" in text for text in weights)


def is_one_position(text: str) -> bool:
    """`x[:, 0:1]`, where the others are not taken beside it."""
    return bool(ONE_POSITION.search(text)) and ", 1:" not in text


def factors(node: ast.expr) -> list[ast.expr]:
    """The two tensors that a product or an einsum is of."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    assert isinstance(node, ast.Call)
    if len(node.args) == 1 and isinstance(node.func, ast.Attribute):
        return [node.func.value, node.args[0]]
    return node.args[-2:]


def is_tested(function: Function) -> bool:
    """Whether a test writes the formula out, as the reference of what it tests."""
    scope: Function | None = function
    while scope is not None:
        if TEST_NAME.match(scope.name):
            return True
        scope = scope.parent
    return False


def is_parameter(module: Module, query: ast.expr, function: Function) -> bool:
    """Whether the queries are a few learned ones: the scores grow with the length alone."""
    return any(
        isinstance(value, ast.Call)
        and sites.qualified_name(module, value.func, where).endswith("nn.Parameter")
        for value, where in sites.values_of(module, query, function)
    )


def values_of_names(node: ast.expr, function: Function) -> Iterator[ast.expr]:
    """What the names of an expression are bound to, also several at once."""
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    for statement in sites.own_nodes(function.node):
        if isinstance(statement, ast.stmt):
            for target, value in derivation.bound(statement):
                if value is not None and names & derivation.written_targets(target):
                    yield value


def axes(text: str) -> int:
    """How many axes `rearrange(x, 'b n (h d) -> b h n d')` leaves."""
    return max((len(AXIS.findall(pattern)) for pattern in REARRANGED.findall(text)), default=0)
