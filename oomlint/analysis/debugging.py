"""What says that slow code is on purpose: a test, a debug flag around it, a name, a handler."""

from __future__ import annotations

import ast
import re

from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import SCOPES

TEST_FILE = re.compile(r"(^|_)tests?(_|$)|^conftest$")
# Conditions under which every ordinary run comes; any other is taken for a switch.
ORDINARY = re.compile(
    r"__name__|is_available\(|\brank\b|_rank\b|is_main|is_master|is_first"
    r"|(do|is)_train|training|\btrain\b|[\"']train[\"']|cuda|gpu|\bseed\b"
)
# Functions that are named after the search for a fault.
SEARCH = re.compile(r"debug|anomal|nans?(?![a-z])|diagnos|trace|profil|sanity|check|inspect", re.I)


def is_test(module: Module, node: ast.AST) -> bool:
    """Whether a node is in a test: slow and exact is what tests are meant to be."""
    if TEST_FILE.search(module.path.stem):
        return True
    return any(
        isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and re.match(r"test(_|$)|Test", parent.name)
        for parent in module.enclosing(node)
    )


def on_purpose(module: Module, node: ast.AST) -> bool:
    """Whether a switch, a handler or the name of a function asks for what stands here."""
    child = node
    for parent in module.enclosing(node):
        if isinstance(parent, ast.If | ast.IfExp | ast.While) and child is not parent.test:
            if is_switch(parent.test):
                return True
        if isinstance(parent, ast.ExceptHandler | ast.BoolOp):
            return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            if SEARCH.search(parent.name):
                return True
        if isinstance(child, ast.stmt) and not isinstance(parent, ast.Module):
            if left_before(parent, child):
                return True
        if isinstance(parent, SCOPES) and isinstance(parent, ast.Lambda):
            return True
        child = parent
    return is_test(module, node)


def is_switch(test: ast.expr) -> bool:
    """Whether a condition is no part of an ordinary run, or says that it is about a fault."""
    text = written(test)
    return bool(SEARCH.search(text)) or not ORDINARY.search(text)


def left_before(parent: ast.AST, child: ast.stmt) -> bool:
    """Whether an `if not debug: return` stands above a statement in its block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            return any(
                isinstance(part, ast.If)
                and isinstance(part.body[-1], ast.Return)
                and is_switch(part.test)
                for part in block[: block.index(child)]
            )
    return False
