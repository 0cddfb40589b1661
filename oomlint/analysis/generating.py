"""Own loops that generate token by token with gradients on, though only the tokens leave them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import callers, decoding, hooks, sites
from oomlint.analysis.debugging import is_test
from oomlint.analysis.modules import Function, Module, written

if TYPE_CHECKING:
    from oomlint.analysis import Model

# Who says one of these may want the gradient of what was chosen.
WANTED = frozenset(
    "autograd backward requires_grad_ requires_grad enable_grad set_grad_enabled log_prob"
    " gumbel_softmax rsample straight_through".split()
)
# The choice of a token in torch's own words: a loop that only says `sample` may choose anything.
CHOICES = ("argmax(", "multinomial(", "topk(", "torch.max(")
# What returns scores beside the places where they were.
RANKING = frozenset({"topk", "max", "sort"})


@dataclass(frozen=True, slots=True)
class Generation:
    """A forward in a generating loop, and the choice behind which no gradient is left."""

    forward: ast.Call
    growth: ast.expr | ast.stmt
    function: Function


def generations(model: Model) -> Iterator[Generation]:
    module = model.module
    if not any(choice in module.source.text for choice in CHOICES):
        return
    seen: set[Function] = set()
    for found in decoding.decodings(module):
        function = module.function_of(found.forward)
        if function is None or function in seen or function.words & WANTED:
            continue
        if is_test(module, found.forward) or scores_escape(module, function, found):
            continue
        if callers.is_off(model.project, module, found.forward, 3):
            continue
        if callers.any_without_grad(model.project, function):
            continue
        seen.add(function)
        yield Generation(found.forward, found.growth, function)


def scores_escape(module: Module, function: Function, found: decoding.Decoding) -> bool:
    """Whether what the network returned leaves the loop otherwise than as a chosen token."""
    live = {written(found.forward)}
    nodes = list(sites.own_nodes(function.node))
    assigns = [node for node in nodes if isinstance(node, ast.Assign | ast.AugAssign)]
    for _ in assigns:
        before = len(live)
        for node in assigns:
            if carries(node.value, live):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                live.update(n for t in targets for n in names_of(scores_in(t, node.value)))
        if len(live) == before:
            break
    if found.sequence in live:
        return True
    return any(
        carries(value, live) for node in nodes for value in leaving(node) if value is not None
    )


def scores_in(target: ast.expr, value: ast.expr) -> ast.expr:
    """Of `scores, chosen = logits.topk(1)` only the scores have a gradient."""
    called = written(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    is_pair = isinstance(target, ast.Tuple) and len(target.elts) == 2
    return target.elts[0] if is_pair and called in RANKING else target  # type: ignore[attr-defined]


def names_of(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from names_of(part)
    elif isinstance(target, ast.Subscript):
        yield from names_of(target.value)
    else:
        yield written(target)


def leaving(node: ast.AST) -> list[ast.expr | None]:
    """What a node hands to whoever is outside: a result, an entry of a list, an attribute."""
    if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
        return [node.value]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in hooks.STORING:
            return list(node.args)
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Attribute) for t in node.targets):
        return [node.value]
    return []


def carries(node: ast.expr, live: set[str]) -> bool:
    """Whether an expression has a live name in it that no choice of a token stands above."""
    if isinstance(node, ast.Call):
        if written(node) in live:
            return True
        called = written(node.func).rpartition(".")[2]
        if decoding.CHOOSING.search(called) and called not in RANKING:
            return False
        if called in ("item", "tolist", "detach", "numpy"):
            return False
    if isinstance(node, ast.Name | ast.Attribute) and written(node) in live:
        return True
    parts = ast.iter_child_nodes(node)
    return any(carries(part, live) for part in parts if isinstance(part, ast.expr))
