"""From which statements of one piece of text a loss comes: what it names, where that is bound."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis.modules import written

# Calls that only rescale or reduce a loss that is there already.
RESCALING = frozenset(
    "scale scale_loss mean sum div div_ mul mul_ float len max min to squeeze view item".split()
)


def computes(node: ast.AST) -> bool:
    """Whether a forward may hide in an expression: any call that does more than rescale."""
    for part in ast.walk(node):
        if isinstance(part, ast.Await | ast.Yield | ast.Lambda):
            return True
        if isinstance(part, ast.Call):
            name = written(part.func).rsplit(".", 1)[-1]
            if name not in RESCALING:
                return True
    return False


def is_computed_in(loss: ast.expr, block: ast.AST) -> bool:
    """Whether what a loss is made of is computed inside of a block; what is unknown is."""
    pending, seen, found = roots_of(loss), set(), False
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        for part in ast.walk(block):
            for target, value in bound(part):
                if name not in written_targets(target):
                    continue
                if value is None or computes(value):
                    return True
                pending |= roots_of(value)
        found = True
    return not found


def roots_of(node: ast.AST) -> set[str]:
    """The names and attributes that an expression reads, without what calls are made on."""
    callers = {
        part.func.value
        for part in ast.walk(node)
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.args
    }
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name | ast.Attribute) and part not in callers:
            found.add(written(part))
    return found


def bound(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield node.target, None
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def written_targets(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in written_targets(part)}
    if isinstance(target, ast.Subscript | ast.Starred):
        return written_targets(target.value)
    return {written(target)}
