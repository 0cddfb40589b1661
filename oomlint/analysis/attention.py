"""Attention written out: scores of queries and keys, a softmax over the keys, a sum of values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import derivation, sites
from oomlint.analysis.fusable import MAX_AXES, is_fusable
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.nodes import walk
from oomlint.analysis.sites import Site

PRODUCTS = frozenset({"torch.matmul", "torch.bmm"})
SOFTMAX = frozenset({"torch.softmax", "torch.nn.functional.softmax"})
# What leaves the scores scores: masks, casts, a scale in place.
KEEPING = frozenset(
    "masked_fill masked_fill_ float to type_as contiguous mul div mul_ div_".split()
)
# Scores with these are more than a fused attention takes without a loss.
MORE = re.compile(
    r"bias|rel|alibi|temperature|logit_scale|pos|gate|talking|head_mask", re.IGNORECASE
)
TRANSPOSING = re.compile(r"\.(transpose|permute|mT|swapaxes)\b|\.T\b")
PAIRS = re.compile(r"^(\w+),(\w+)->(\w+)$")
MAX_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention of a function: the product of queries and keys, the softmax, the sum."""

    product: ast.expr
    softmax: ast.Call
    total: ast.expr


def attentions(module: Module) -> Iterator[Attention]:
    # A layer is called by any name.
    layers = "Softmax" in module.source.text
    for site in sites.sites(module) if layers else sites.named(module, "softmax"):
        if site.function is None or not is_softmax(module, site):
            continue
        scores = site.node.args[0] if takes_scores(site) else site.receiver
        if scores is None:
            continue
        product = product_of(module, scores, site.function)
        if product is None or are_read_elsewhere(module, scores, site):
            continue
        total = only_use(module, site)
        if total is not None and is_fusable(module, product, total, site.function):
            yield Attention(product, site.node, total)


def takes_scores(site: Site) -> bool:
    return bool(site.node.args) and (site.method != "softmax" or bool(site.qualified))


def is_softmax(module: Module, site: Site) -> bool:
    """Whether a call is a softmax over the last dimension."""
    if site.method == "softmax" or site.receiver is None:
        if site.qualified in SOFTMAX or (site.method == "softmax" and not site.qualified):
            position = 1 if site.qualified else 0
            return is_last_dimension(site.argument(position, "dim"))
    if len(site.node.args) != 1:
        return False
    made = [v for v, _ in sites.values_of(module, site.node.func, site.function)]
    if isinstance(site.node.func, ast.Call):
        made = [site.node.func]
    return bool(made) and all(is_softmax_module(module, value, site.function) for value in made)


def is_softmax_module(module: Module, value: ast.expr, function: Function | None) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if sites.qualified_name(module, value.func, function) != "torch.nn.Softmax":
        return False
    given = [*value.args, *(k.value for k in value.keywords if k.arg == "dim")]
    return bool(given) and is_last_dimension(given[0])


def is_last_dimension(node: ast.expr | None) -> bool:
    return node is not None and written(node) in ("-1", "3")


def product_of(
    module: Module, node: ast.expr, function: Function, depth: int = 0
) -> ast.expr | None:
    """The product of queries and keys that scores are, masks and scales aside."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.MatMult):
            return node if is_of_keys(module, node.right, function) else None
        if isinstance(node.op, ast.Mult | ast.Div | ast.Add):
            for side, other in ((node.left, node.right), (node.right, node.left)):
                found = product_of(module, side, function, depth + 1)
                if found is not None:
                    return None if adds_more(module, other, function) else found
        return None
    if isinstance(node, ast.Call):
        return product_of_call(module, node, function, depth)
    if not isinstance(node, ast.Name):
        return None
    found = None
    for value in sites.bound_names(function).get(node.id, []):
        if value is None:
            continue
        if node.id in {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}:
            before = value.lineno <= node.lineno
            if MORE.search(written(value)) or (before and mixes(module, value, node.id, function)):
                return None
            continue  # rescaled or masked
        inner = product_of(module, value, function, depth + 1)
        if inner is None or found is not None:
            return None
        found = inner
    return found


def mixes(module: Module, node: ast.expr, name: str, function: Function) -> bool:
    """Whether scores are multiplied as matrices, as between talking heads."""
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult):
            return True
        if isinstance(part, ast.Call) and name in map(written, part.args):
            qualified = sites.qualified_name(module, part.func, function)
            if qualified in PRODUCTS or qualified.endswith("einsum"):
                return True
    return False


def product_of_call(
    module: Module, node: ast.Call, function: Function, depth: int
) -> ast.expr | None:
    qualified = sites.qualified_name(module, node.func, function)
    if qualified in PRODUCTS and len(node.args) == 2:
        return node if is_of_keys(module, node.args[1], function) else None
    if qualified.endswith("einsum") and len(node.args) == 3:
        return node if sums_over_features(node.args[0]) else None
    if isinstance(node.func, ast.Attribute):
        if node.func.attr in ("matmul", "bmm") and len(node.args) == 1 and not qualified:
            return node if is_of_keys(module, node.args[0], function) else None
        if node.func.attr in KEEPING and not any(adds_more(module, a, function) for a in node.args):
            return product_of(module, node.func.value, function, depth + 1)
    return None


def is_of_keys(module: Module, node: ast.expr, function: Function) -> bool:
    """Whether the right factor is transposed: here, or where its name is bound."""
    if TRANSPOSING.search(written(node)):
        return True
    values = sites.bound_names(function).get(node.id, []) if isinstance(node, ast.Name) else []
    last = values[-1] if values else None
    return last is not None and is_swapped(last)


def is_swapped(node: ast.expr) -> bool:
    """`k.transpose(-2, -1)` and the like: the last two dimensions change places."""
    text = written(node)
    return bool(re.search(r"transpose\((-1, -2|-2, -1|2, 3|3, 2)\)|\.mT$|0, 2, 3, 1\)", text))


def axes_of(pattern: ast.expr) -> tuple[str, str, str] | None:
    """The letters of an einsum of two tensors: of the first, the second and the result."""
    if not isinstance(pattern, ast.Constant) or not isinstance(pattern.value, str):
        return None
    found = PAIRS.match(re.sub(r"\s|\.", "", pattern.value))
    return (found[1], found[2], found[3]) if found else None


def sums_over_features(pattern: ast.expr) -> bool:
    """`bhid,bhjd->bhij`."""
    axes = axes_of(pattern)
    if axes is None:
        return False
    query, key, scores = axes
    if len(query) != len(key) or len(scores) != len(query) or not 3 <= len(query) <= MAX_AXES:
        return False
    shared = (set(query) & set(key)) - set(scores)
    return (
        len(shared) == 1 and scores[-2] in query and scores[-1] in key and scores[-1] not in query
    )


def adds_more(module: Module, node: ast.expr, function: Function) -> bool:
    """Whether a scale or a summand is learned or a bias of positions."""
    if MORE.search(written(node)):
        return True
    for value, where in sites.values_of(module, node, function):
        if MORE.search(written(value)):
            return True
        if isinstance(value, ast.Call):
            made = sites.qualified_name(module, value.func, where)
            if made in ("torch.nn.Parameter", "torch.nn.parameter.Parameter"):
                return True
    return False


SHAPE = frozenset("size shape dtype device ndim dim".split())


def are_read_elsewhere(module: Module, scores: ast.expr, site: Site) -> bool:
    """Whether the scores are also returned, kept, or more than masked and scaled."""
    names = {part.id for part in ast.walk(scores) if isinstance(part, ast.Name)}
    own = module.statement_of(site.node)
    assert site.function is not None
    products = {
        name
        for name in names
        for value in sites.bound_names(site.function).get(name, [])
        if value is not None and product_of(module, value, site.function) is not None
    }
    for part in walk(site.function.node):
        if not isinstance(part, ast.Name) or part.id not in products:
            continue
        statement = module.statement_of(part)
        if isinstance(statement, ast.AugAssign) and written(statement.target) == part.id:
            if MORE.search(written(statement.value)):
                return True
            continue
        if not isinstance(part.ctx, ast.Load) or statement is own:
            continue
        parent = module.parents[part]
        if isinstance(parent, ast.Attribute) and parent.attr in SHAPE:
            continue
        if isinstance(parent, ast.Attribute) and parent.attr.endswith("_"):
            continue  # masked or scaled in place
        if part.id not in {n for t, _ in derivation.bound(statement) for n in targets(t)}:
            return part.lineno < own.lineno or not is_weights(own, part.id)
    return False


def targets(node: ast.expr) -> set[str]:
    return derivation.written_targets(node)


def is_weights(statement: ast.stmt, name: str) -> bool:
    """Whether the softmax is bound to the name of its scores: later reads are of the weights."""
    return any(name in targets(target) for target, _ in derivation.bound(statement))


def only_use(module: Module, site: Site) -> ast.expr | None:
    """The sum of the values, where the weights are used for nothing else but dropout and casts."""
    function, node = site.function, site.node
    assert function is not None
    names: set[str] = set()
    parts: list[ast.expr] = [node]
    for _ in range(MAX_DEPTH):
        part = parts[-1]
        parent = module.parents[part]
        if isinstance(parent, ast.Attribute):
            call = module.parents[parent]
            if parent.attr in ("to", "type_as", "contiguous") and isinstance(call, ast.Call):
                parts.append(call)
                continue
            if parent.attr in ("matmul", "bmm") and isinstance(call, ast.Call) and call.args:
                return call
            return None
        if isinstance(parent, ast.Call):
            if is_total(module, parent, part, function):
                return parent
            if not is_dropout(parent) or parent.args[:1] != [part]:
                return None
            parts.append(parent)
            continue
        if isinstance(parent, ast.BinOp):
            return parent if isinstance(parent.op, ast.MatMult) and parent.left is part else None
        if not isinstance(parent, ast.Assign) or len(parent.targets) != 1:
            return None
        target = parent.targets[0]
        if not isinstance(target, ast.Name):
            return None
        names.add(target.id)
        following = next_use(function, target.id, parent)
        if following is None:
            return None
        parts.append(following)
    return None


def next_use(function: Function, name: str, statement: ast.Assign) -> ast.expr | None:
    """The one place that reads a name behind a statement; what is bound again counts from there."""
    reads = [
        part
        for part in walk(function.node)
        if type(part) is ast.Name
        and part.id == name
        and isinstance(part.ctx, ast.Load)
        and part.lineno > (statement.end_lineno or statement.lineno)
    ]
    rebound = sorted(
        part.lineno
        for part in walk(function.node)
        if isinstance(part, ast.stmt)
        for target, _ in derivation.bound(part)
        if name in derivation.written_targets(target)
        and part.lineno > (statement.end_lineno or statement.lineno)
    )
    reads.sort(key=lambda part: (part.lineno, part.col_offset))
    if rebound:
        reads = [part for part in reads if part.lineno <= rebound[0]]
    return reads[0] if len(reads) == 1 else None


def is_total(module: Module, call: ast.Call, weights: ast.expr, function: Function) -> bool:
    qualified = sites.qualified_name(module, call.func, function)
    if qualified in PRODUCTS:
        return len(call.args) == 2 and call.args[0] is weights
    if qualified.endswith("einsum") and len(call.args) == 3 and call.args[1] is weights:
        return sums_over_keys(call.args[0])
    return False


def sums_over_keys(pattern: ast.expr) -> bool:
    """`bhij,bhjd->bhid`: the last axis of the weights is that of the values' positions."""
    axes = axes_of(pattern)
    if axes is None:
        return False
    weights, values, total = axes
    return weights[-1] in values and weights[-1] not in total


def is_dropout(call: ast.Call) -> bool:
    return "drop" in written(call.func).rsplit(".", 1)[-1].lower()
