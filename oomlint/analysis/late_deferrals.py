"""Contexts that put the average of gradients off, entered behind the forward that asks for them."""

from __future__ import annotations

import ast

from oomlint.analysis import derivation, edits, synchronisation
from oomlint.analysis.answers import make_fix
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.synchronisation import BACKWARD_ONLY, FSDP, Deferral
from oomlint.rule import Edit, Fix, Safety


def set_too_late(module: Module, site: Site, loss: ast.expr) -> ast.stmt | None:
    """The statement between forward and backward that sets the flag which the forward reads."""
    statement = module.statement_of(site.node)
    body = getattr(module.parents[statement], "body", None)
    if not isinstance(body, list) or statement not in body or derivation.computes(loss):
        return None
    before = body[: body.index(statement)]
    places = [i for i, s in enumerate(before) if isinstance(s, ast.Assign) and sets_flag(s)]
    if not places:
        return None
    names = derivation.roots_of(loss)
    behind = ast.Module(before[places[-1] + 1 :], [])
    if derivation.is_computed_in(loss, behind):
        return None
    computed = any(
        names & derivation.written_targets(target)
        for earlier in before[: places[0]]
        for target, _ in derivation.bound(earlier)
    )
    return before[places[-1]] if computed else None


def sets_flag(statement: ast.Assign) -> bool:
    target = statement.targets[0]
    return isinstance(target, ast.Attribute) and target.attr == "require_backward_grad_sync"


def name_of(deferral: Deferral) -> str:
    for part in ast.walk(deferral.context):
        if isinstance(part, ast.Attribute) and part.attr in ("no_backward_sync", "accumulate"):
            return part.attr
    return "no_sync"


def too_late(module: Module, site: Site, loss: ast.expr) -> Deferral | None:
    """The outermost such context around a backward, if its loss is computed before."""
    around = synchronisation.deferrals_around(module, site.node, site.function)
    if not around or any(decides_in_backward(module, d, site.function) for d in around):
        return None
    deferral = around[-1]
    if derivation.computes(loss) or derivation.is_computed_in(loss, deferral.block):
        return None
    if is_deferred_elsewhere(module, loss, site, deferral):
        return None
    return deferral


def decides_in_backward(module: Module, deferral: Deferral, function: Function | None) -> bool:
    if deferral.model is None:
        return False
    if BACKWARD_ONLY.search(written(deferral.context) + " " + written(deferral.model)):
        return True
    return synchronisation.wrapped(module, deferral.model, function, FSDP) is not None


def is_deferred_elsewhere(module: Module, loss: ast.expr, site: Site, known: Deferral) -> bool:
    """Whether the forward may stand in another such context: of this function, or of a caller."""
    function = site.function
    body: ast.AST = function.node if function is not None else module.tree
    names = derivation.roots_of(loss)
    for part in ast.walk(body):
        if any(names & derivation.written_targets(target) for target, _ in derivation.bound(part)):
            around = synchronisation.deferrals_around(module, part, function)
            if any(other.block is not known.block for other in around):
                return True
    return function is not None and any(
        synchronisation.deferrals_around(module, call.node, call.function)
        for call in synchronisation.calls_of(module, function)
    )


def remedy(module: Module, site: Site, deferral: Deferral) -> Fix | None:
    """The context begins before the forward, where both stand in one block."""
    block, model = deferral.block, deferral.model
    if model is None or len(block.items) != 1 or block.items[0].optional_vars is not None:
        return None
    around = module.parents[block]
    body = next(
        (b for n in ("body", "orelse") if block in (b := getattr(around, n, None) or [])), None
    )
    if body is None:
        return None
    before = body[: body.index(block)]
    first = next((s for s in before if runs(s, written(model))), None)
    if first is None:
        return None
    between = before[before.index(first) :]
    names = {
        written(n) for n in ast.walk(deferral.context) if isinstance(n, ast.Name | ast.Attribute)
    }
    for statement in between:
        for part in ast.walk(statement):
            if any(
                names & derivation.written_targets(target) for target, _ in derivation.bound(part)
            ):
                return None
    try:
        changed = earlier(module, block, between)
    except edits.NoFix:
        return None
    return make_fix(f"Enter `{name_of(deferral)}` before the forward", changed, Safety.UNSAFE)


def runs(statement: ast.stmt, model: str) -> bool:
    return any(
        isinstance(part, ast.Call) and written(part.func) == model for part in ast.walk(statement)
    )


def earlier(
    module: Module, block: ast.With | ast.AsyncWith, between: list[ast.stmt]
) -> tuple[Edit, ...]:
    """The header of a block moves over the statements before it."""
    header = block.items[-1].context_expr
    last = header.end_lineno or header.lineno
    inner = block.body[0]
    unit = edits.unit(module, block)
    outer = edits.indentation(module, block.lineno)
    if inner.lineno <= last or edits.indentation(module, inner.lineno) != outer + unit:
        raise edits.NoFix
    for statement in between:
        edits.stands_alone(module, edits.last_statement(statement))
    starts = module.source.line_starts
    rows = range(block.lineno, last + 1)
    text = "".join(module.source.line(row).rstrip("\r\n") + module.source.newline for row in rows)
    if not module.source.line(last).split("#")[0].rstrip().endswith(":"):
        raise edits.NoFix
    place = starts[edits.first_row(between[0]) - 1]
    return (
        Edit(place, place, text),
        *edits.deepened(module, edits.first_row(between[0]), between, unit),
        Edit(starts[block.lineno - 1], edits.after_line(module, last), ""),
    )
