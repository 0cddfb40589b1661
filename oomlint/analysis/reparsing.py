"""The tree of a text that was changed a little: only statements around the change are parsed."""

from __future__ import annotations

import ast
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from oomlint.analysis import parsing
from oomlint.analysis.nodes import walk
from oomlint.source import starts_of_lines


@dataclass(frozen=True, slots=True)
class Change:
    """How many rows two texts have in common at their starts and, behind those, at their ends."""

    before: int
    after: int
    first: int
    last: int

    @property
    def moved(self) -> int:
        return self.after - self.before


@dataclass(slots=True)
class LastTree:
    """The last text and its tree, whose nodes the next one's takes over.

    Trees share their nodes: when one is asked for, the one before must not be used any more.
    """

    text: str = ""
    tree: ast.Module | None = None

    def tree_of(self, text: str) -> ast.Module:
        """The tree of a whole file, equal to that of `parsing.parse`. Raises SyntaxProblem."""
        before, self.tree = self.tree, None
        tree = reused(before, self.text, text) if before is not None else None
        self.text, self.tree = text, tree or parsing.parse(text)
        return self.tree


def reused(before: ast.Module, old: str, new: str) -> ast.Module | None:
    """The tree of `new` out of nodes of that of `old`; None where a change may reach further.

    Statements in front of the change and behind it stay what they were if those between them are
    Python by themselves.
    """
    starts = starts_of_lines(new)
    change = change_between(old, new, starts)
    statements = before.body
    head, tail = around(statements, change)
    if tail < head or tail - head == len(statements):
        return None
    first = first_row(statements[head]) if head else 1
    end = len(new)
    if tail < len(statements):
        end = starts[first_row(statements[tail]) + change.moved - 1]
    try:
        between = parsing.parse_here(new[starts[first - 1] : end]).body
    except (SyntaxError, RecursionError, MemoryError, ValueError):
        return None
    move(between, first - 1)
    move(statements[tail:], change.moved)
    return ast.Module([*statements[:head], *between, *statements[tail:]], type_ignores=[])


def around(statements: list[ast.stmt], change: Change) -> tuple[int, int]:
    """The first statement that may differ, and the first one behind that cannot."""
    # What ends right in front of the change may go on in it.
    head = max(0, bisect_right(statements, change.first, key=last_row) - 1)
    while head and share_a_row(statements, head):
        head -= 1
    tail = bisect_left(statements, change.before - change.last + 1, key=first_row)
    while 0 < tail < len(statements) and share_a_row(statements, tail):
        tail += 1
    return head, tail


def share_a_row(statements: list[ast.stmt], index: int) -> bool:
    return first_row(statements[index]) <= last_row(statements[index - 1])


def first_row(statement: ast.stmt) -> int:
    """The row where a statement starts, its decorators included."""
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(item.lineno for item in decorators)])


def last_row(statement: ast.stmt) -> int:
    return statement.end_lineno or statement.lineno


def move(statements: list[ast.stmt], rows: int) -> None:
    if rows:
        for statement in statements:
            for node in walk(statement):
                place = node.__dict__
                if "lineno" in place:
                    place["lineno"] += rows
                    place["end_lineno"] += rows


def change_between(old: str, new: str, starts: tuple[int, ...]) -> Change:
    shorter = min(len(old), len(new))
    front = longest(shorter, lambda size: old[:size] == new[:size])
    back = longest(shorter - front, lambda size: old[len(old) - size :] == new[len(new) - size :])
    rows = ((starts_of_lines(old), len(old)), (starts, len(new)))
    first = min(bisect_right(found, front) - 1 for found, _ in rows)
    last = min(len(found) - bisect_left(found, size - back) for found, size in rows)
    return Change(len(rows[0][0]), len(starts), first, last)


def longest(most: int, fits: Callable[[int], bool]) -> int:
    """The largest size up to `most` that fits, where each smaller one does, too."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        least, most = (middle, most) if fits(middle) else (least, middle - 1)
    return least
