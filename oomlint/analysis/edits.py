"""Fixes as text edits: inserting, moving and wrapping statements so that every other byte stays."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

from oomlint.analysis.modules import Function, Module
from oomlint.rule import Edit

Part = ast.expr | ast.keyword


class NoFix(Exception):
    """The text around a statement does not allow a clean edit (several statements on one line)."""


def indentation(module: Module, row: int) -> str:
    line = module.source.line(row)
    return line[: len(line) - len(line.lstrip(" \t\f"))]


def unit(module: Module, node: ast.stmt | ast.expr) -> str:
    """One level of indentation as the file writes it around a node, else in its first block."""
    for parent in (node, *module.enclosing(node), *module.tree.body):
        body = getattr(parent, "body", None)
        if isinstance(parent, ast.stmt) and isinstance(body, list) and body:
            outer = indentation(module, parent.lineno)
            inner = indentation(module, body[0].lineno)
            if (
                inner.startswith(outer)
                and len(inner) > len(outer)
                and body[0].lineno > parent.lineno
            ):
                return inner[len(outer) :]
    return "\t" if indentation(module, node.lineno).startswith("\t") else "    "


def first_row(statement: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def stands_alone(module: Module, statement: ast.stmt) -> None:
    """Raises NoFix where the statement shares a line with another one."""
    source = module.source
    start, end = module.span(statement)
    line_start = source.line_starts[statement.lineno - 1]
    before = source.text[line_start:start]
    row = statement.end_lineno or statement.lineno
    tail = source.line(row)[end - source.line_starts[row - 1] :].strip()
    if before.strip() or (tail and not tail.startswith("#")):
        raise NoFix


def after_line(module: Module, row: int) -> int:
    """The offset behind a row and its newline."""
    starts = module.source.line_starts
    return starts[row] if row < len(starts) else len(module.source.text)


def insert_before(module: Module, statement: ast.stmt, lines: Sequence[str]) -> Edit:
    stands_alone(module, statement)
    offset = module.source.line_starts[first_row(statement) - 1]
    indent = indentation(module, statement.lineno)
    return Edit(offset, offset, block(module, indent, lines))


def insert_after(module: Module, statement: ast.stmt, lines: Sequence[str]) -> Edit:
    last = last_statement(statement)
    stands_alone(module, last)
    row = statement.end_lineno or statement.lineno
    offset = after_line(module, row)
    indent = indentation(module, statement.lineno)
    text = block(module, indent, lines)
    if offset == len(module.source.text) and not module.source.text.endswith(("\n", "\r")):
        text = module.source.newline + text.removesuffix(module.source.newline)
    return Edit(offset, offset, text)


def last_statement(statement: ast.stmt) -> ast.stmt:
    while True:
        inner = None
        for name in ("finalbody", "orelse", "handlers", "body"):
            body = getattr(statement, name, None)
            if body:
                last = body[-1]
                inner = last.body[-1] if isinstance(last, ast.ExceptHandler) else last
                break
        if not isinstance(inner, ast.stmt):
            return statement
        statement = inner


def block(module: Module, indent: str, lines: Sequence[str]) -> str:
    return "".join(f"{indent}{line}{module.source.newline}" for line in lines)


def delete(module: Module, statement: ast.stmt) -> Edit:
    """Removes a statement with its lines; a body that would be empty is refused."""
    stands_alone(module, statement)
    parent = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        body = getattr(parent, name, None)
        if isinstance(body, list) and statement in body and len(body) == 1:
            raise NoFix
    start = module.source.line_starts[first_row(statement) - 1]
    return Edit(start, after_line(module, statement.end_lineno or statement.lineno), "")


def lines_of(module: Module, statement: ast.stmt) -> list[str]:
    """The lines of a statement without its own indentation, for putting it elsewhere."""
    stands_alone(module, statement)
    indent = indentation(module, statement.lineno)
    rows = range(first_row(statement), (statement.end_lineno or statement.lineno) + 1)
    inside = string_rows(statement)
    found = []
    for row in rows:
        line = module.source.line(row)
        if row in inside:
            raise NoFix
        found.append(line.removeprefix(indent))
    return found


def string_rows(node: ast.AST) -> set[int]:
    """Rows that begin inside a string that spans lines; their first column is part of the text."""
    rows: set[int] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr) or (
            isinstance(part, ast.Constant) and isinstance(part.value, str | bytes)
        ):
            rows.update(range(part.lineno + 1, (part.end_lineno or part.lineno) + 1))
    return rows


def wrap_in(module: Module, statements: Sequence[ast.stmt], header: str) -> tuple[Edit, ...]:
    """Puts consecutive statements under a `with` header, one level deeper."""
    first, last = statements[0], statements[-1]
    stands_alone(module, first)
    stands_alone(module, last_statement(last))
    indent = indentation(module, first.lineno)
    step = unit(module, first)
    start = module.source.line_starts[first_row(first) - 1]
    edits = [Edit(start, start, f"{indent}{header}{module.source.newline}")]
    edits += deepened(module, first_row(first), statements, step)
    return merged(edits)


def enter(
    module: Module, statement: ast.stmt, statements: Sequence[ast.stmt], header: str
) -> tuple[Edit, ...]:
    """Writes a `with` header over a statement and puts those behind it one level deeper."""
    stands_alone(module, statement)
    stands_alone(module, last_statement(statements[-1]))
    row = (statement.end_lineno or statement.lineno) + 1
    deeper = deepened(module, row, statements, unit(module, statements[0]))
    return merged([replace(module, statement, header), *deeper])


def deepened(module: Module, row: int, statements: Sequence[ast.stmt], step: str) -> Iterator[Edit]:
    """Indents the rows from one on to the end of the statements, strings left as they are."""
    skipped: set[int] = set()
    for statement in statements:
        skipped |= string_rows(statement)
    last = statements[-1]
    for number in range(row, (last.end_lineno or last.lineno) + 1):
        if number in skipped or not module.source.line(number).strip():
            continue
        offset = module.source.line_starts[number - 1]
        yield Edit(offset, offset, step)


def unwrap(module: Module, node: ast.With) -> tuple[Edit, ...]:
    """Takes the header of a `with` away and puts its body one level out."""
    last = last_statement(node)
    stands_alone(module, last)
    first = node.body[0]
    if first_row(first) == node.lineno or string_rows(node):
        raise NoFix
    outer = indentation(module, node.lineno)
    start = module.source.line_starts[node.lineno - 1]
    if module.source.text[start : module.span(node)[0]].strip():
        raise NoFix
    header = node.items[-1].context_expr
    row = (header.end_lineno or header.lineno) + 1
    inner = indentation(module, first.lineno)
    if not inner.startswith(outer):
        raise NoFix
    edits = [Edit(start, after_line(module, row - 1), "")]
    for number in range(row, (last.end_lineno or last.lineno) + 1):
        line = module.source.line(number)
        offset = module.source.line_starts[number - 1]
        if line.startswith(inner):
            edits.append(Edit(offset + len(outer), offset + len(inner), ""))
        elif line.strip() and not line.lstrip().startswith("#"):
            raise NoFix
    return merged(edits)


def outdent(module: Module, statements: Sequence[ast.stmt]) -> list[Edit]:
    """Puts the last statements of a block behind it, with the comments right above them."""
    block = module.parents[statements[0]]
    if not isinstance(block, ast.stmt):
        raise NoFix
    outer, inner = (indentation(module, node.lineno) for node in (block, statements[0]))
    if len(inner) <= len(outer) or not inner.startswith(outer):
        raise NoFix
    for statement in statements:
        stands_alone(module, last_statement(statement))
        if string_rows(statement):
            raise NoFix
    row = first_row(statements[0])
    while module.source.line(row - 1).lstrip().startswith("#"):
        row -= 1
    edits = []
    for number in range(row, (statements[-1].end_lineno or row) + 1):
        if module.source.line(number).startswith(inner):
            offset = module.source.line_starts[number - 1]
            edits.append(Edit(offset + len(outer), offset + len(inner), ""))
        elif module.source.line(number).strip():
            raise NoFix
    return edits


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """Insertions at the same place become one edit; ascending order."""
    found: list[Edit] = []
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if found and found[-1].start == found[-1].end == edit.start == edit.end:
            found[-1] = Edit(edit.start, edit.end, found[-1].content + edit.content)
        else:
            found.append(edit)
    return tuple(found)


def decorate(module: Module, function: Function, text: str) -> Edit:
    """Adds a decorator directly above `def`, below `@staticmethod` and its like."""
    node = function.node
    offset = module.source.line_starts[node.lineno - 1]
    start, _ = module.span(node)
    if module.source.text[offset:start].strip():
        raise NoFix
    indent = indentation(module, node.lineno)
    return Edit(offset, offset, f"{indent}@{text}{module.source.newline}")


def append_call(module: Module, expression: ast.expr, call: str) -> tuple[Edit, ...]:
    """`x` becomes `x.detach()`, `a + b` becomes `(a + b).detach()`."""
    start, end = module.span(expression)
    if isinstance(expression, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
        return (Edit(end, end, call),)
    return (Edit(start, start, "("), Edit(end, end, f"){call}"))


def replace(module: Module, node: ast.expr | ast.stmt, content: str) -> Edit:
    start, end = module.span(node)
    return Edit(start, end, content)


def name_in_file(module: Module, qualified: str) -> tuple[str, tuple[Edit, ...]]:
    """How the file writes a name of torch, and the import that this needs where there is none."""
    if qualified in module.aliases:
        return module.aliases[qualified], ()
    parts = qualified.split(".")
    for length in range(len(parts) - 1, 0, -1):
        prefix = ".".join(parts[:length])
        if prefix in module.aliases:
            return ".".join([module.aliases[prefix], *parts[length:]]), ()
    if parts[0] in module.imports.values() and parts[0] in module.imports:
        return qualified, ()
    return qualified, (add_import(module, parts[0]),)


def add_import(module: Module, name: str) -> Edit:
    """`import name` before the first import, or behind the docstring."""
    body = module.tree.body
    future = [n for n in body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]
    imports = [n for n in body if isinstance(n, ast.Import | ast.ImportFrom) and n not in future]
    if imports:
        return insert_before(module, imports[0], [f"import {name}"])
    if future:
        return insert_after(module, future[-1], [f"import {name}"])
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        return insert_after(module, body[0], ["", f"import {name}"])
    if body:
        return insert_before(module, body[0], [f"import {name}", ""])
    return Edit(0, 0, f"import {name}{module.source.newline}")


def add_keyword(module: Module, call: ast.Call, text: str) -> Edit:
    """Adds `name=value` behind the last argument of a call."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    end = module.span(call)[1]
    if not given:
        if module.source.text[module.span(call.func)[1] : end].strip() != "()":
            raise NoFix
        return Edit(end - 1, end - 1, text)
    last = max(given, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    place = module.source.offset(last.end_lineno or 0, last.end_col_offset or 0)
    if module.source.text[place:].lstrip()[:1] not in (",", ")"):
        raise NoFix
    # A parenthesis behind the last argument must be the call's own.
    if module.source.text[place : end - 1].strip(", \t\r\n"):
        raise NoFix
    return Edit(place, place, f", {text}")


def drop_argument(module: Module, call: ast.Call, argument: ast.expr | ast.keyword) -> Edit:
    """Takes one argument out of a call with the comma that it needed."""
    given: list[Part] = [*call.args, *call.keywords]
    given.sort(key=lambda n: (n.lineno, n.col_offset))
    spans = [span(module, node, node) for node in given]
    return drop(module, spans, given.index(argument))


def drop_item(module: Module, block: ast.With, item: ast.withitem) -> Edit:
    """Takes one context out of a `with` that has others."""
    spans = [span(module, i.context_expr, i.optional_vars or i.context_expr) for i in block.items]
    return drop(module, spans, block.items.index(item))


def span(module: Module, first: Part, last: Part) -> tuple[int, int]:
    return (
        module.source.offset(first.lineno, first.col_offset),
        module.source.offset(last.end_lineno or last.lineno, last.end_col_offset or 0),
    )


def drop(module: Module, spans: Sequence[tuple[int, int]], index: int) -> Edit:
    """Takes one of several parts out of a row of them; comments between them are refused."""
    text = module.source.text
    start, end = spans[index]
    if index + 1 < len(spans):
        end = spans[index + 1][0]
    elif index:
        start = spans[index - 1][1]
    elif text[end:].startswith(","):
        end += 1
    between = text[start : spans[index][0]] + text[spans[index][1] : end]
    if re.search(r"[#()]", between):
        raise NoFix
    return Edit(start, end, "")
