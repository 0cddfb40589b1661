"""Copies from the host to the device that bring the same tensor again in every iteration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, knowledge, placement, sites
from oomlint.analysis.cadence import Loop
from oomlint.analysis.memoised import is_memoised
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site

# What makes a tensor on the host where it is given no device.
MAKERS = frozenset(
    "tensor as_tensor from_numpy zeros ones full empty arange linspace logspace eye rand randn"
    " randint randperm tril_indices triu_indices hann_window hamming_window stack cat Tensor"
    " FloatTensor DoubleTensor LongTensor HalfTensor IntTensor BoolTensor".split()
)
DEFAULT_DEVICE = re.compile(r"\bset_default_(device|tensor_type)\(")
LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.expr_context, ast.unaryop)
# Names of what moves once and for all.
NO_TENSOR = re.compile(
    r"model|net(work)?$|module|encoder|decoder|criterion|loss|metric|layer|optim|teacher|student"
    r"|batch|data|sample|transform|augment|input|image|target|label|crit\b|tokens?$|noise$",
    re.IGNORECASE,
)

# Functions that are read for one forward.
MAX_FUNCTIONS = 20
MOVES_SELF = re.compile(r"\w\.\w+\.(to|cuda)\(")


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor that does not change and is moved in every pass through a loop."""

    site: Site
    loop: Loop


@dataclass(frozen=True, slots=True)
class Attribute:
    """A tensor that a constructor keeps on the host and that every forward moves."""

    site: Site
    owner: Class
    made: ast.expr
    constructor: Function


def moves(module: Module) -> Iterator[Site]:
    for site in sites.called(module, "to", "cuda"):
        receiver = site.receiver
        if isinstance(receiver, ast.Call) or (
            isinstance(receiver, ast.Name | ast.Attribute)
            and not NO_TENSOR.search(written(receiver))
        ):
            if placement.destination(module, site) in (Place.DEVICE, Place.OPEN):
                yield site


def has_default_device(module: Module) -> bool:
    return DEFAULT_DEVICE.search(module.source.text) is not None


def in_loops(module: Module) -> Iterator[Copy]:
    for site in moves(module):
        receiver = site.receiver
        if receiver is None or not may_stay(module, receiver, site.function):
            continue
        around = sites.loops_around(module, site.node)
        if not around or not cadence.is_unconditional(module, site.node):
            continue
        loop = around[0]
        if is_fixed(loop, site.node) and cadence.is_step_loop(module, loop, site.function):
            yield Copy(site, loop)


def may_stay(module: Module, node: ast.expr, function: Function | None) -> bool:
    """Whether an expression is a tensor that this function has on the host."""
    if isinstance(node, ast.Call):
        return is_literal(module, node, function)
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    values = sites.values_of(module, node, function)
    if values:
        return all(is_host_tensor(module, value, where) for value, where in values)
    is_parameter = isinstance(node, ast.Name) and function is not None
    if not is_parameter or written(node) not in parameters(function):
        return False
    return knowledge.role_of_name(written(node)) is None


def parameters(function: Function | None) -> list[str]:
    if function is None:
        return []
    arguments = function.node.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [a.arg for a in given if a.arg not in ("self", "cls")]


def is_literal(module: Module, node: ast.Call, function: Function | None) -> bool:
    """`torch.tensor([0.2, 0.8])`: the same numbers whenever it runs; scalars are not worth it."""
    root = maker(node)
    if not is_host_tensor(module, node, function) or not root.args:
        return False
    return isinstance(root.args[0], ast.List | ast.Tuple) and all(
        isinstance(part, LITERAL) for part in ast.walk(root.args[0])
    )


def is_host_tensor(module: Module, node: ast.expr, function: Function | None) -> bool:
    """Whether a function of torch made it, and nothing moved it since."""
    if not isinstance(node, ast.Call):
        return False
    current: ast.expr = node
    while isinstance(current, ast.Call):
        site = sites.site_of(module, current, function)
        if site.qualified.startswith("torch."):
            given = [k.arg for k in current.keywords]
            name = site.qualified.removeprefix("torch.")
            is_open = None in given or "device" in given
            if name in ("tril", "triu") and current.args:
                # A mask out of a tensor that is made for it.
                current = current.args[0]
                continue
            return name in MAKERS and not is_open and not holds_device(module, current)
        if site.method in ("cuda", "to", "type", "type_as", "share_memory_"):
            if placement.destination(module, site) is not None or site.method == "type_as":
                return False
        if not isinstance(current.func, ast.Attribute):
            return False
        current = current.func.value
    return False


def holds_device(module: Module, call: ast.Call) -> bool:
    """Whether what is stacked or copied may lie on the device already."""
    if not written(call.func).endswith(("stack", "cat", "as_tensor")):
        return False
    return "device" in written(call) or "cuda" in written(call)


def maker(node: ast.Call) -> ast.Call:
    """The call at the root of a chain of methods."""
    current: ast.expr = node
    found = node
    while True:
        if isinstance(current, ast.Call):
            found = current
            current = current.func
        elif isinstance(current, ast.Attribute):
            current = current.value
        else:
            return found


def is_fixed(loop: Loop, node: ast.Call) -> bool:
    """Whether nothing that a move depends on changes inside of a loop."""
    parts = [node.func, *node.args, *(k.value for k in node.keywords)]
    # Every batch is on the same device.
    fixed = [p for p in parts if not (isinstance(p, ast.Attribute) and p.attr == "device")]
    return not any(depends_on(part, changed(loop)) for part in fixed)


def depends_on(node: ast.AST, names: set[str]) -> bool:
    parts = (p for p in ast.walk(node) if isinstance(p, ast.Name | ast.Attribute))
    return any(written(part) in names for part in parts)


def changed(loop: ast.AST) -> set[str]:
    """Names and attributes that are bound or written to in place inside of a loop."""
    found: set[str] = set()
    for part in ast.walk(loop):
        context = getattr(part, "ctx", None)
        if isinstance(context, ast.Store | ast.Del) and not isinstance(part, ast.Tuple | ast.List):
            target = part
            while isinstance(target, ast.Subscript):
                target = target.value
            found.add(written(target))
        elif isinstance(part, ast.AugAssign):
            found.add(written(part.target))
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            if part.func.attr.endswith("_") and not part.func.attr.endswith("__"):
                found.add(written(part.func.value))
    return found


def in_forwards(module: Module) -> Iterator[Attribute]:
    """Attributes of modules that their `forward`, or what it calls, moves."""
    reached: dict[Function, Class] = {}
    for cls in module.class_by_node.values():
        if "forward" in cls.methods and MOVES_SELF.search(code(cls)):
            for function in run_in_every(module, cls.methods["forward"]):
                reached.setdefault(function, cls)
    if not reached:
        return
    for site in moves(module):
        owner = reached.get(site.function) if site.function is not None else None
        if owner is None or not isinstance(site.receiver, ast.Attribute):
            continue
        if not sites.is_self_attribute(site.receiver, site.function):
            continue
        values = owner.assigned.get(site.receiver.attr)
        if len(values) == 1 and values[0][1].name == "__init__":
            made, constructor = values[0]
            if is_host_tensor(module, made, constructor):
                yield Attribute(site, owner, made, constructor)


def run_in_every(module: Module, forward: Function) -> list[Function]:
    """A forward and what it calls, without what only a memoised function calls."""
    found = [] if is_memoised(forward) else [forward]
    for function in found:
        for site in sites.found_in(module, function.node, function):
            called = cadence.local_function(module, site)
            if called is None or called in found or len(found) >= MAX_FUNCTIONS:
                continue
            if not is_memoised(called):
                found.append(called)
    return found


def code(cls: Class) -> str:
    return "".join(method.code for method in cls.methods.values())


def is_module(module: Module, cls: Class) -> bool:
    """Whether a class is a torch module by the names of its bases in this file."""
    for base in cls.node.bases:
        if knowledge.MODULE_BASE.fullmatch(module.qualified(written(base))):
            return True
        inner = module.classes.get(written(base))
        if inner is not None and inner is not cls and is_module(module, inner):
            return True
    return False
