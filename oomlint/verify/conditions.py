"""What must hold for a row of a function to be reached, as far as its parameters decide it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from oomlint.verify.targets import Function
from oomlint.verify.uses import dotted

# What a name is to be: one of these, or the constant that it is compared with.
ABSENT, PRESENT = "is None", "is not None"
Wanted = bool | int | float | str | None


def wanted(functions: Iterable[Function], rows: Iterable[int]) -> dict[str, Wanted]:
    """By dotted name what the tests around the rows ask for; the first row's word counts."""
    found: dict[str, Wanted] = {}
    functions = tuple(functions)
    for row in rows:
        for function in functions:
            if function.lineno <= row <= (function.end_lineno or function.lineno):
                for test, holds in around(function.body, row):
                    for name, value in asked(test, holds):
                        found.setdefault(name, value)
    return found


def around(body: list[ast.stmt], row: int) -> Iterator[tuple[ast.expr, bool]]:
    """The tests that decide whether a row of a block is reached, and how they must come out."""
    for statement in body:
        if statement.lineno <= row <= (statement.end_lineno or statement.lineno):
            if isinstance(statement, ast.If) and row > last_row(statement.test):
                yield statement.test, within(statement.body, row)
            for inner in blocks(statement):
                if within(inner, row):
                    yield from around(inner, row)
            return
        if isinstance(statement, ast.If):
            yield from passed(statement)


def passed(statement: ast.If) -> Iterator[tuple[ast.expr, bool]]:
    """How the tests of an earlier `if` must come out for the rows behind it."""
    if leaves(statement.body):
        yield statement.test, False
        for inner in statement.orelse[:1]:
            if isinstance(inner, ast.If):
                yield from passed(inner)
    elif ends_badly(statement.orelse):
        yield statement.test, True


def ends_badly(orelse: list[ast.stmt]) -> bool:
    """Whether none but the tests before an `else` lets the rows behind be reached."""
    match orelse:
        case []:
            return False
        case [ast.If(body=body, orelse=rest)]:
            return ends_badly(rest) or (bool(rest) and leaves(body) and leaves(rest))
        case _:
            return leaves(orelse)


def blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        inner = getattr(statement, field, None)
        if isinstance(inner, list):
            yield inner
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def within(body: list[ast.stmt], row: int) -> bool:
    return bool(body) and body[0].lineno <= row <= (body[-1].end_lineno or body[-1].lineno)


def last_row(node: ast.expr) -> int:
    return node.end_lineno or node.lineno


def leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def asked(test: ast.expr, holds: bool) -> Iterator[tuple[str, Wanted]]:
    """What single names must be for a test to come out so."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from asked(operand, not holds)
        case ast.BoolOp(op=op, values=values):
            # Of an `or` that holds one part is enough, as of an `and` that does not.
            every = isinstance(op, ast.And) == holds
            for value in values if every else values[:1]:
                yield from asked(value, holds)
        case ast.Compare(left=left, ops=[op], comparators=[ast.Constant(value=value)]):
            name = dotted(left)
            if name:
                yield from compared(name, op, value, holds)
        case ast.Call(func=ast.Name("hasattr" | "isinstance" | "callable")):
            return
        case _ if name := dotted(test):
            yield name, holds


def compared(name: str, op: ast.cmpop, value: object, holds: bool) -> Iterator[tuple[str, Wanted]]:
    if value is None and isinstance(op, ast.Is | ast.Eq | ast.IsNot | ast.NotEq):
        yield name, ABSENT if isinstance(op, ast.Is | ast.Eq) == holds else PRESENT
    elif isinstance(value, bool | int | float | str):
        equal = isinstance(op, ast.Eq | ast.Is) and holds
        equal |= isinstance(op, ast.NotEq | ast.IsNot) and not holds
        if equal:
            yield name, value
        elif isinstance(op, ast.Gt) and holds and isinstance(value, int | float):
            yield name, value + 1


def tested_for_none(functions: Iterable[Function]) -> set[str]:
    """Names that a function compares with None: it works without them."""
    return {
        dotted(node.left)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.Is | ast.IsNot | ast.Eq | ast.NotEq)
        and isinstance(node.comparators[0], ast.Constant)
        and node.comparators[0].value is None
    }
