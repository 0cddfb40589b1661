"""Contexts that put the average off for the last micro-batch instead of the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import edits, knowledge, sites
from oomlint.analysis.answers import make_fix
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.synchronisation import Deferral
from oomlint.rule import Edit, Fix, Safety

Condition = tuple[ast.expr, bool]


def chosen_by(module: Module, deferral: Deferral) -> Condition | None:
    """The condition under which the block puts the average off."""
    if deferral.test is not None:
        return deferral.test, deferral.truth
    around = sites.conditions_around(module, deferral.block)
    return around[0] if around else None


def normal(
    module: Module, test: ast.expr, truth: bool, function: Function | None, depth: int = 0
) -> tuple[str, bool]:
    """A condition as the text of a positive one with its truth."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return normal(module, test.operand, not truth, function, depth)
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq):
        text = f"{written(test.left)} == {written(test.comparators[0])}"
        return text, not truth
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
        return f"{written(test)} == 0", not truth
    if isinstance(test, ast.Name) and depth < sites.MAX_ALIASES:
        values = sites.bindings(module, test.id, function)
        if len(values) == 1 and values[0] is not None:
            return normal(module, values[0], truth, function, depth + 1)
    return written(test), truth


def steps_with(module: Module, site: Site, condition: Condition) -> Site | None:
    """The optimizer's step behind a backward that happens under the same condition."""
    wanted = normal(module, *condition, site.function)
    for other in steps_behind(module, site):
        for test, truth in sites.conditions_around(module, other.node):
            # `if due or last:` steps whenever it is due.
            either = truth and isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or)
            parts = test.values if either else [test]  # type: ignore[attr-defined]
            if wanted in [normal(module, part, truth, site.function) for part in parts]:
                return other
    return None


def enters_once(module: Module, site: Site, condition: Condition) -> Site | None:
    """The step of a window behind a backward that one micro-batch of it runs without an average.

    `i % n == 0` where the step asks for `(i + 1) % n == 0`: with `n` of one it is every one.
    """
    text, truth = normal(module, *condition, site.function)
    size = divisor(text)
    if not truth or size is None:
        return None
    for other in steps_behind(module, site):
        for test, arm in sites.conditions_around(module, other.node):
            parts = test.values if isinstance(test, ast.BoolOp) else [test]
            found = [normal(module, part, arm, site.function) for part in parts]
            if any(is_due and divisor(due) == size for due, is_due in found):
                return other
    return None


def steps_behind(module: Module, site: Site) -> Iterator[Site]:
    """The optimizer's steps in the function of a backward that do not stand above it."""
    for other in sites.called(module, "step"):
        if other.function is site.function and other.node.lineno >= site.node.lineno:
            if steps(other):
                yield other


def divisor(text: str) -> str | None:
    """The `n` of `... % n == 0`."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.Compare) or not isinstance(tree.ops[0], ast.Eq):
        return None
    left, right = tree.left, tree.comparators[0]
    zero = isinstance(right, ast.Constant) and right.value == 0
    if not zero or not isinstance(left, ast.BinOp) or not isinstance(left.op, ast.Mod):
        return None
    return written(left.right)


def steps(site: Site) -> bool:
    named = knowledge.role_of_name(written(site.receiver)) if site.receiver is not None else None
    return named in (Role.OPTIMIZER, Role.SCALER)


def is_last_of_loop(module: Module, site: Site, condition: Condition) -> bool:
    """`k == n - 1` in `for k in range(n)`: the step stands behind the loop."""
    text, truth = normal(module, *condition, site.function)
    if not truth:
        return False
    for loop in sites.loops_around(module, site.node)[:1]:
        if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call):
            continue
        counter, count = counted(loop.iter, loop.target)
        if counter and text in (f"{counter} == {count} - 1", f"{counter} + 1 == {count}"):
            return True
    return False


def counted(made: ast.Call, target: ast.expr) -> tuple[str, str]:
    if written(made.func) == "range" and len(made.args) == 1:
        return written(target), written(made.args[0])
    if written(made.func) == "enumerate" and len(made.args) == 1:
        if isinstance(target, ast.Tuple):
            return written(target.elts[0]), f"len({written(made.args[0])})"
    return "", ""


def remedy(module: Module, deferral: Deferral, step: Site | None) -> Fix | None:
    """The two contexts change places, or the test that chooses between the blocks is negated."""
    choice = deferral.choice
    title = "Enter `no_sync` for all but the last micro-batch"
    if choice is not None:
        swapped = [
            edits.replace(module, choice.body, module.segment(choice.orelse)),
            edits.replace(module, choice.orelse, module.segment(choice.body)),
        ]
        return make_fix(title, swapped, Safety.UNSAFE)
    block = module.parents.get(deferral.block)
    if deferral.test is not None or not isinstance(block, ast.If):
        return None
    if step is not None and block in module.enclosing(step.node):
        return None
    return make_fix(title, [negated(module, block.test)], Safety.UNSAFE)


def negated(module: Module, test: ast.expr) -> Edit:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return edits.replace(module, test, module.segment(test.operand))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        signs = {ast.Eq: "!=", ast.NotEq: "=="}
        sign = signs.get(type(test.ops[0]))
        if sign is not None:
            left, right = module.segment(test.left), module.segment(test.comparators[0])
            return edits.replace(module, test, f"{left} {sign} {right}")
    simple = isinstance(test, ast.Name | ast.Attribute | ast.Call)
    text = module.segment(test)
    return edits.replace(module, test, f"not {text}" if simple else f"not ({text})")
