"""Decides whether a text is Python, of the running version or a newer one that libcst knows."""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from pathlib import Path

from oomlint.source import MAX_NESTING, Source, from_bytes

BRACKETS = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''"
    r"|\"(?:\\.|[^\\\"\n])*\"|'(?:\\.|[^\\'\n])*'|\#[^\n]*|([(\[{])|([)\]}])",
    re.DOTALL,
)


class NoPython(Exception):
    """The text cannot be parsed; row and column are 1-based."""

    def __init__(self, message: str, row: int, column: int) -> None:
        super().__init__(message)
        self.message, self.row, self.column = message, row, column


def check_bytes(path: Path, data: bytes) -> None:
    """Raises NoPython or Unreadable for a file that does not compile; cheap for one that does.

    Building the symbol table parses in C without making objects of the tree, a third cheaper
    than `ast.parse`.
    """
    if compiles(data):
        return
    check_source(from_bytes(path, data))
    # It decodes and parses as a newer Python, or only the bytes were refused.


def check_source(source: Source) -> None:
    """Raises NoPython where both the running Python and libcst refuse the text."""
    depth, row, column = deepest(source)
    if depth > MAX_NESTING:
        raise NoPython(f"more than {MAX_NESTING} nested brackets", row, column)
    if compiles(source.text):
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source.text)
    except SyntaxError as error:
        if not is_newer_python(source.text):
            row = min(error.lineno or 1, len(source.line_starts))
            raise NoPython(error.msg, row, max(error.offset or 1, 1)) from None
    except (RecursionError, MemoryError):
        raise NoPython("an expression is nested too deeply to be parsed", 1, 1) from None
    except ValueError as error:
        raise NoPython(str(error), 1, 1) from None
    # ast accepts what only the symbol table refuses (a stray `nonlocal`): the model can be built.


def compiles(text: str | bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symtable.symtable(text, "<source>", "exec")  # type: ignore[arg-type] # bytes work
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def is_newer_python(text: str) -> bool:
    import libcst

    try:
        libcst.parse_module(text)
    except Exception:
        return False
    return True


def deepest(source: Source) -> tuple[int, int, int]:
    """The greatest depth of open brackets outside strings, and where it is first exceeded."""
    depth = most = where = 0
    for match in BRACKETS.finditer(source.text):
        if match[1]:
            depth += 1
            if depth > most:
                most = depth
                where = match.start() if most <= MAX_NESTING + 1 else where
        elif match[2]:
            depth = max(depth - 1, 0)
    return most, *source.position(where)
