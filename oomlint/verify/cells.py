"""Keeps what the cells of a script show, as IPython would that runs them one by one."""

from __future__ import annotations

import ast
import re

MARKER = re.compile(r"^#\s?%%", re.MULTILINE)


def keep_shown(tree: ast.Module, text: str) -> None:
    """Puts the value of each cell's last expression into `Out`, by the number of the cell.

    A cell begins at a line `# %%`; a semicolon behind the expression says not to show it.
    """
    starts = [text.count("\n", 0, match.start()) + 1 for match in MARKER.finditer(text)]
    last: dict[int, ast.stmt] = {}
    for statement in tree.body:
        cell = sum(row <= statement.lineno for row in starts)
        if cell:
            last[cell] = statement
    lines = text.splitlines()
    for cell, statement in last.items():
        if isinstance(statement, ast.Expr) and not is_hushed(statement, lines):
            value = statement.value
            statement.value = ast.copy_location(kept(cell, value), value)
            ast.fix_missing_locations(statement)


def is_hushed(statement: ast.Expr, lines: list[str]) -> bool:
    row, column = statement.end_lineno or 0, statement.end_col_offset or 0
    return lines[row - 1].encode()[column:].strip().startswith(b";")


def kept(cell: int, value: ast.expr) -> ast.expr:
    """`globals().setdefault("Out", {}).__setitem__(cell, value)`"""
    call = ast.parse(f'globals().setdefault("Out", {{}}).__setitem__({cell}, 0)', mode="eval").body
    assert isinstance(call, ast.Call)
    call.args[1] = value
    return call
