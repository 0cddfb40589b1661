"""Decides whether a text is Python, as cheaply as the running interpreter allows."""

from __future__ import annotations

import symtable
import warnings

from oomlint.analysis.parsing import SyntaxProblem, parse


def compiles(text: str | bytes) -> bool:
    """Whether the running Python accepts a text.

    The symbol table is built in C from a tree that never becomes objects: a third cheaper than
    `ast.parse`.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symtable.symtable(text, "<source>", "exec")  # type: ignore[arg-type] # bytes work
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def is_python(text: str) -> bool:
    try:
        require_python(text)
    except SyntaxProblem:
        return False
    return True


def require_python(text: str) -> None:
    """Raises SyntaxProblem for a text that neither the running Python nor a newer one accepts."""
    if not compiles(text):
        # What only the symbol table refuses (a stray `nonlocal`) has a tree, and can be analysed.
        parse(text)
