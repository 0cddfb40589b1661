"""Large tensors that importing a file puts on the device."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator

from oomlint.analysis import cadence, copies, placement, sites
from oomlint.analysis.modules import Module, written
from oomlint.analysis.placement import Place

# Elements from which a tensor counts as large: one MiB of float32.
LARGE = 2**18

# Makers whose positional arguments are the sizes of what they make.
SIZED = frozenset("zeros ones empty rand randn".split())

# The sizes of these are in what they are given.
FILLED = frozenset("tensor as_tensor Tensor FloatTensor LongTensor hann_window".split())

STARTS = re.compile(r"(\w+\.)*(parse_args|main|run|train|fit|launch|app)")


def kept_values(body: list[ast.stmt]) -> Iterator[ast.expr]:
    """What names, class attributes and defaults hold as soon as a module is imported."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            yield statement.value
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            defaults = [*statement.args.defaults, *statement.args.kw_defaults]
            yield from (default for default in defaults if default is not None)
        elif isinstance(statement, ast.ClassDef | ast.With | ast.Try):
            yield from kept_values(statement.body)
        elif isinstance(statement, ast.If) and not is_guard(statement):
            yield from kept_values([*statement.body, *statement.orelse])


def is_guard(statement: ast.If) -> bool:
    return "__name__" in written(statement.test) or "TYPE_CHECKING" in written(statement.test)


def is_large_on_device(module: Module, value: ast.expr) -> bool:
    """Whether a value is a tensor that is made on the device, or moved there."""
    if not isinstance(value, ast.Call):
        return False
    moved = False
    current: ast.expr = value
    while isinstance(current, ast.Call):
        site = sites.site_of(module, current, None)
        if site.qualified.startswith("torch."):
            maker = site.qualified.removeprefix("torch.")
            if maker in ("tril", "triu") and current.args:
                # A mask out of a tensor that is made for it.
                current = current.args[0]
                continue
            there = placement.made_on(module, site) is Place.DEVICE
            loaded = maker == "load" and "cuda" in written(current)
            made = maker in copies.MAKERS or maker == "load"
            return made and (moved or there or loaded) and is_large(module, current, maker)
        place = placement.destination(module, site)
        if place is Place.HOST:
            return False
        moved = moved or place is Place.DEVICE
        if not isinstance(current.func, ast.Attribute):
            return False
        current = current.func.value
    return False


def is_large(module: Module, call: ast.Call, maker: str) -> bool:
    """Whether the sizes say so, or come from elsewhere: data is what is worth to be kept."""
    if maker in FILLED:
        data = call.args[0] if call.args else None
        return isinstance(data, ast.Name | ast.Attribute) or (
            isinstance(data, ast.Call) and not isinstance(data.func, ast.Name)
        )
    if maker in SIZED:
        sizes = row(call.args)
    elif maker == "full":
        sizes = row(call.args[:1])
    elif maker == "eye" and call.args:
        sizes = [call.args[0], call.args[1] if len(call.args) > 1 else call.args[0]]
    elif maker in ("arange", "linspace", "randperm") and call.args:
        sizes = [call.args[-1]]
    else:
        return maker in ("load", "from_numpy")
    numbers = [number(module, size) for size in sizes]
    return bool(numbers) and (None in numbers or math.prod(n or 0 for n in numbers) >= LARGE)


def row(arguments: list[ast.expr]) -> list[ast.expr]:
    """Sizes that are given one by one, or as one row."""
    first = arguments[0] if len(arguments) == 1 else None
    return first.elts if isinstance(first, ast.Tuple | ast.List) else arguments


def number(module: Module, node: ast.expr, depth: int = 0) -> int | None:
    """A size, where the module says it."""
    if isinstance(node, ast.Constant):
        return int(node.value) if isinstance(node.value, int | float) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        one, other = number(module, node.left), number(module, node.right)
        return one * other if one is not None and other is not None else None
    if isinstance(node, ast.Name) and depth < sites.MAX_ALIASES:
        values = module.globals.get(node.id, [])
        return number(module, values[0], depth + 1) if len(values) == 1 else None
    return None


def is_script(module: Module) -> bool:
    """Whether the file is run from top to bottom: what it holds is held for its own sake."""
    body = module.tree.body
    if any(isinstance(s, ast.If) and is_guard(s) and "__main__" in written(s.test) for s in body):
        return False
    for statement in body:
        if isinstance(statement, ast.For | ast.While | ast.With):
            return True
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Call) and STARTS.fullmatch(written(value.func)):
            return True
        if isinstance(statement, ast.Expr) and isinstance(value, ast.Call):
            site = sites.site_of(module, value, None)
            if site.method in ("print", "show", "backward") or cadence.is_update(site):
                return True
    return not (module.functions or module.classes)
