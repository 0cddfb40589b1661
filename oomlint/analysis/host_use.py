"""What happens after a loop to what it collected: whether all of it goes to the host."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from oomlint.analysis import sites
from oomlint.analysis.modules import Function, Module, written

# Methods and functions after which an output is as large as before, and where it was.
NEUTRAL = frozenset(
    "detach float half bfloat16 double softmax log_softmax sigmoid tanh squeeze view reshape"
    " flatten contiguous clone permute transpose unsqueeze normalize relu exp log chunk".split()
)

HOST = frozenset({"cpu", "numpy", "tolist"})
HOST_MODULES = re.compile(r"(numpy|sklearn|pandas|scipy|json|pickle|csv)\.|torch\.save$")


def host_use(module: Module, function: Function | None, last: int, place: str) -> ast.expr | None:
    """The first expression after a row that takes what was collected to the host."""
    scope: ast.AST = function.node if function is not None else module.tree
    tainted = {place.split("[")[0]}
    kinds = (ast.Assign, ast.Call, ast.For, ast.ListComp, ast.DictComp, ast.GeneratorExp)
    later = [node for node in ast.walk(scope) if isinstance(node, kinds) and node.lineno > last]
    for node in sorted(later, key=lambda part: (part.lineno, part.col_offset)):
        held = read_by(node)
        if any(uses(held, name) for name in tainted):
            if is_whole(held, tainted):
                tainted |= {written(goal) for goal in flat(targets_of(node))}
            found = [
                part
                for part in ast.walk(held)
                if isinstance(part, ast.Call) and goes_to_host(module, function, part, tainted)
            ]
            if found:
                return next((part for part in found if is_direct(part, place)), found[0])
    return None


WHOLE = NEUTRAL | frozenset(
    "cat concat stack vstack hstack argmax zip enumerate tqdm list tuple items values".split()
)


def is_whole(node: ast.expr, tainted: Collection[str]) -> bool:
    """Whether an expression still holds everything that was collected: no mean, no part of it."""
    if isinstance(node, ast.Name | ast.Attribute):
        return written(node) in tainted
    if isinstance(node, ast.Subscript | ast.Starred):
        return is_whole(node.value, tainted)
    if isinstance(node, ast.Tuple | ast.List):
        return any(is_whole(part, tainted) for part in node.elts)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return is_whole(node.generators[0].iter, tainted)
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else written(node.func)
    if name not in WHOLE:
        return False
    receiver = isinstance(node.func, ast.Attribute) and is_whole(node.func.value, tainted)
    return receiver or any(is_whole(part, tainted) for part in node.args)


def read_by(node: ast.expr | ast.stmt) -> ast.expr:
    if isinstance(node, ast.Assign):
        return node.value
    if isinstance(node, ast.For):
        return node.iter
    if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        return node.generators[0].iter
    assert isinstance(node, ast.expr)
    return node


def targets_of(node: ast.expr | ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.For):
        return [node.target]
    return (
        [node.generators[0].target]
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp)
        else []
    )


def goes_to_host(
    module: Module, function: Function | None, call: ast.Call, tainted: set[str]
) -> bool:
    if isinstance(call.func, ast.Attribute):
        to_cpu = call.func.attr == "to" and bool(call.args) and "cpu" in written(call.args[0])
        if call.func.attr in HOST or to_cpu:
            return is_whole(call.func.value, tainted)
    qualified = sites.qualified_name(module, call.func, function)
    given = any(is_whole(part, tainted) for part in call.args)
    return given and bool(HOST_MODULES.match(qualified))


def is_direct(taken: ast.expr, place: str) -> bool:
    """`torch.cat(xs).softmax(-1).cpu()`: everything moves at once, and with nothing else."""
    node = taken
    moves = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if not moves or node.func.attr not in ("cpu", "numpy", "tolist"):  # type: ignore[attr-defined]
        return False
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        joined = node.func.attr in ("cat", "concat", "stack", "vstack", "hstack")
        if joined and node.args:
            return written(node.args[0]) == place
        if node.func.attr not in NEUTRAL | HOST | {"argmax"}:
            return False
        node = node.func.value
    return False


def used_once(module: Module, function: Function | None, last: int, place: str) -> bool:
    """Whether nothing else after a row reads what was collected."""
    scope: ast.AST = function.node if function is not None else module.tree
    found = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name | ast.Attribute)
        and node.lineno > last
        and written(node) == place
    ]
    return len(found) == 1


def flat(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from flat(target.elts)
        else:
            yield target


def uses(node: ast.AST, place: str) -> bool:
    return any(
        isinstance(part, ast.Name | ast.Attribute) and written(part) == place
        for part in ast.walk(node)
    )
