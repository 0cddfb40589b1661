"""Where a file sets variables of its own environment, and what runs before that."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.nodes import walk
from oomlint.analysis.sites import Site


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable that is set: `node` is the expression to point at, `value` what it gets."""

    statement: ast.stmt
    node: ast.expr
    name: str
    value: ast.expr | None
    function: Function | None
    only_if_unset: bool = False


def settings(module: Module) -> Iterator[Setting]:
    """Every variable with a literal name that the file sets, in source order."""
    for node in walk(module.tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Subscript) and is_environment(module, target.value):
                name = text_of(target.slice)
                if name:
                    yield Setting(node, target, name, node.value, module.function_of(node))
        elif isinstance(node, ast.Call):
            yield from set_by_call(module, node)


# What the calls are called that set variables; a plain name may be another one.
SETTERS = frozenset(("setdefault", "putenv", "update"))


def set_by_call(module: Module, node: ast.Call) -> Iterator[Setting]:
    if isinstance(node.func, ast.Attribute) and node.func.attr not in SETTERS:
        return
    function = module.function_of(node)
    statement = module.statement_of(node)
    qualified = sites.qualified_name(module, node.func, function)
    if qualified in ("os.environ.setdefault", "os.putenv") and len(node.args) == 2:
        name = text_of(node.args[0])
        if name:
            unset = qualified.endswith("setdefault")
            yield Setting(statement, node, name, node.args[1], function, unset)
    if qualified == "os.environ.update":
        for argument in node.args:
            if isinstance(argument, ast.Dict):
                for key, value in zip(argument.keys, argument.values, strict=True):
                    if key is not None and text_of(key):
                        yield Setting(statement, key, text_of(key), value, function)
        for keyword in node.keywords:
            if keyword.arg:
                yield Setting(statement, node, keyword.arg, keyword.value, function)


def is_environment(module: Module, node: ast.expr) -> bool:
    return sites.qualified_name(module, node, module.function_of(node)) == "os.environ"


def text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


# Methods that certainly put tensors on the device.
FACTORY = re.compile(
    r"torch\.(zeros|ones|empty|full|rand|randn|randint|arange|linspace|eye|tensor|as_tensor|ones_like"
    r"|zeros_like|empty_like|rand_like|randn_like)"
)
# Calls that initialise CUDA, and its allocator with it.
INITIALISES = re.compile(
    r"torch\.cuda\.(init|current_device|get_device_(name|properties|capability)|synchronize"
    r"|mem_get_info|current_stream|default_stream|Stream|Event)"
)
CUDA = re.compile(r"['\"]cuda(:\d+)?['\"]|f['\"]cuda:\{")


def first_use(module: Module, setting: Setting) -> Site | None:
    """The first call that certainly uses the device before a variable is set.

    Above it in its own function, or, for a function, at the top of the module.
    """
    row = setting.statement.lineno
    for site in sites.sites(module):
        same = site.function is setting.function and site.node.lineno < row
        imported = (
            setting.function is not None
            and site.function is None
            and is_before_call(module, setting, site)
        )
        if not same and not imported:
            continue
        if is_reached(module, site, setting) and uses_device(module, site, 0):
            return site
    return None


def is_before_call(module: Module, setting: Setting, site: Site) -> bool:
    """Whether a statement of the module runs before the function that sets the variable does."""
    assert setting.function is not None
    if guarded(module, site.node):
        return False
    calls = [
        c.node.lineno for c in cadence.calls_of(module, setting.function) if c.function is None
    ]
    return all(site.node.lineno < row for row in calls)


def is_reached(module: Module, site: Site, setting: Setting) -> bool:
    """Whether a call runs whenever the setting does: no branch of its own around it."""
    around = {id(test) for test, _ in sites.conditions_around(module, setting.statement)}
    tests = [test for test, _ in sites.conditions_around(module, site.node)]
    return all(id(test) in around or cadence.of_device(test) for test in tests) and not in_handler(
        module, site.node
    )


def in_handler(module: Module, node: ast.AST) -> bool:
    for parent in module.enclosing(node):
        if isinstance(parent, ast.ExceptHandler | ast.Lambda):
            return True
        if isinstance(parent, sites.SCOPES):
            return isinstance(parent, ast.ClassDef)
    return False


def guarded(module: Module, node: ast.AST) -> bool:
    return any("__name__" in written(test) for test, _ in sites.conditions_around(module, node))


def uses_device(module: Module, site: Site, depth: int) -> bool:
    """Whether a call certainly initialises the device, itself or in a function of this file."""
    if INITIALISES.fullmatch(site.qualified):
        return True
    if site.method == "cuda" and site.receiver is not None and not site.qualified:
        return True
    if site.method == "to" and site.receiver is not None:
        given = site.argument(0, "device")
        return given is not None and names_cuda(module, given, site.function)
    if FACTORY.fullmatch(site.qualified):
        given = site.argument(-1, "device")
        return given is not None and names_cuda(module, given, site.function)
    called = cadence.local_function(module, site)
    if called is None or depth >= 2:
        return False
    inside = cadence.own_sites(module, called.node.body, called)
    return any(
        cadence.is_unconditional(module, other.node) and uses_device(module, other, depth + 1)
        for other in inside
    )


def names_cuda(module: Module, node: ast.expr, function: Function | None) -> bool:
    """Whether an expression, or what its name was assigned, is a CUDA device."""
    texts = [
        written(node),
        *(written(value) for value, _ in sites.values_of(module, node, function)),
    ]
    return any(CUDA.search(text) for text in texts)
