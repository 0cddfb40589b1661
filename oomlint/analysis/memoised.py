"""Functions that answer from a cache: what they make is made once, not at every call."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import sites
from oomlint.analysis.modules import Function, Module, written

CACHE = re.compile(r"(?<!empty_)(?<!clear_)cache|memoi[sz]e", re.IGNORECASE)
# How deep decorators may be made of each other.
MAX_DEPTH = 3


def is_memoised(function: Function) -> bool:
    """Whether a decorator keeps a function's results: by its name, or by what it is made of."""
    return any(keeps_results(function.module, d, function) for d in function.decorators)


def keeps_results(
    module: Module, decorator: ast.expr, function: Function | None, depth: int = 0
) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = sites.qualified_name(module, called, function and function.parent)
    if CACHE.search(written(called)) or CACHE.search(name):
        return True
    maker = module.function(written(called))
    if maker is None or depth >= MAX_DEPTH:
        return False
    return any(keeps_results(module, used, maker, depth + 1) for used in wrapping(maker))


def wrapping(maker: Function) -> Iterator[ast.expr]:
    """What a decorator of the file calls, and what decorates the functions that it returns."""
    for node in ast.walk(maker.node):
        if isinstance(node, ast.Call):
            yield node.func
        elif isinstance(node, ast.FunctionDef) and node is not maker.node:
            yield from node.decorator_list
