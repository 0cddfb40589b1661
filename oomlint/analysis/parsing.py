"""Text to syntax tree: `ast` for speed, libcst where the text is newer than this Python."""

from __future__ import annotations

import ast
import re
import warnings
from typing import TypeGuard

from oomlint.source import MAX_NESTING

OPENING = frozenset("([{")
CLOSING = frozenset(")]}")
# Strings and comments hide brackets; an unterminated string simply ends at its line.
TOKEN = re.compile(
    r"#[^\r\n]*|'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\"|'(?:\\.|[^\\'\r\n])*'"
    r"|\"(?:\\.|[^\\\"\r\n])*\"|[()\[\]{}]",
    re.DOTALL,
)


class SyntaxProblem(Exception):
    """The text is no Python; row and column are 1-based code points."""

    def __init__(self, message: str, row: int, column: int) -> None:
        super().__init__(message)
        self.message, self.row, self.column = message, row, column


def too_deep(text: str) -> tuple[int, int] | None:
    """Where brackets nest deeper than any Python accepts: (row, column), else None."""
    if text.count("(") + text.count("[") + text.count("{") <= MAX_NESTING:
        return None
    depth = 0
    for match in TOKEN.finditer(text):
        token = match.group()
        if token in OPENING:
            depth += 1
            if depth > MAX_NESTING:
                before = text[: match.start()]
                return before.count("\n") + 1, match.start() - before.rfind("\n")
        elif token in CLOSING:
            depth = max(0, depth - 1)
    return None


def parse(text: str) -> ast.Module:
    """The tree of a whole file. Raises SyntaxProblem."""
    try:
        return parse_here(text)
    except SyntaxError as error:
        # CPython says so itself; libcst would crash on it.
        deep = too_deep(text)
        if deep:
            raise SyntaxProblem(f"brackets nest deeper than {MAX_NESTING} levels", *deep) from None
        newer = parse_newer(text)
        if newer is not None:
            return newer
        raise problem_of(error) from None
    except (RecursionError, MemoryError):
        raise SyntaxProblem("the code nests too deeply to be analysed", 1, 1) from None
    except ValueError as error:
        raise SyntaxProblem(str(error), 1, 1) from None


def without_heads(tree: ast.Module) -> ast.Module:
    """The tree of a Markdown text whose indented blocks stand in the module like all others."""
    body: list[ast.stmt] = []
    for statement in tree.body:
        body += statement.body if is_head(statement) else [statement]
    return ast.Module(body, type_ignores=[])


def is_head(statement: ast.stmt) -> TypeGuard[ast.If]:
    """Whether it is the `if 1:` that stands for the fence of an indented block."""
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Constant):
        return False
    return statement.test.value == 1 and not statement.orelse and not statement.col_offset


def parse_here(text: str) -> ast.Module:
    with warnings.catch_warnings():
        # Invalid escapes in the user's strings are not ours to print.
        warnings.simplefilter("ignore")
        return ast.parse(text)


def problem_of(error: SyntaxError) -> SyntaxProblem:
    message = error.msg or "invalid syntax"
    return SyntaxProblem(message, max(error.lineno or 1, 1), max(error.offset or 1, 1))


def parse_newer(text: str) -> ast.Module | None:
    """The tree of a text that only a newer Python accepts, its new constructs blanked in place."""
    blanked = None
    try:
        from oomlint.analysis.newer import blank_newer_syntax

        blanked = blank_newer_syntax(text)
        return parse_here(blanked) if blanked is not None else None
    except (SyntaxError, RecursionError, ValueError):
        return None
