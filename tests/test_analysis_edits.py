"""Fixes as text edits: statements are put in, taken out, moved and wrapped; other bytes stay."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from oomlint.analysis import edits, modules, parsing, remedies
from oomlint.analysis.edits import NoFix
from oomlint.analysis.modules import Module
from oomlint.rule import Edit
from oomlint.source import Source


def module_of(text: str) -> Module:
    source = Source(Path("/nowhere/a.py"), text)
    return modules.build(source, parsing.parse(text), "a", False)


def at(module: Module, row: int) -> ast.stmt:
    """The outermost statement that begins in a row."""
    found = [n for n in ast.walk(module.tree) if isinstance(n, ast.stmt) and n.lineno == row]
    return found[0]


def apply(text: str, changes: Sequence[Edit]) -> str:
    for edit in reversed(changes):
        text = text[: edit.start] + edit.content + text[edit.end :]
    ast.parse(text)
    return text


INSERTED = [
    ("a\n", 1, "x\na\n", "a\nx\n"),
    ("a", 1, "x\na", "a\nx"),
    ("a\r\nb\r\n", 1, "x\r\na\r\nb\r\n", "a\r\nx\r\nb\r\n"),
    ("if a:\n    b\n", 2, "if a:\n    x\n    b\n", "if a:\n    b\n    x\n"),
    ("if a:\n\tb\n", 2, "if a:\n\tx\n\tb\n", "if a:\n\tb\n\tx\n"),
    ("a  # é\n", 1, "x\na  # é\n", "a  # é\nx\n"),
    ("a(\n  1,\n)\nb\n", 1, "x\na(\n  1,\n)\nb\n", "a(\n  1,\n)\nx\nb\n"),
    ("if a:\n  b\nc\n", 1, "x\nif a:\n  b\nc\n", "if a:\n  b\nx\nc\n"),
    ("@d\ndef f():\n  a\n", 2, "x\n@d\ndef f():\n  a\n", "@d\ndef f():\n  a\nx\n"),
    ("# c\na\n# d\n", 2, "# c\nx\na\n# d\n", "# c\na\nx\n# d\n"),
    ("a = '''\n'''\n", 1, "x\na = '''\n'''\n", "a = '''\n'''\nx\n"),
    ("for i in a:\n    b\nelse:\n    c\n", 1, "x\nfor i in a:\n    b\nelse:\n    c\n",
     "for i in a:\n    b\nelse:\n    c\nx\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "row", "before", "after"), INSERTED)
def test_insert(text: str, row: int, before: str, after: str) -> None:
    module = module_of(text)
    statement = at(module, row)
    assert apply(text, [edits.insert_before(module, statement, ["x"])]) == before
    assert apply(text, [edits.insert_after(module, statement, ["x"])]) == after


def test_insert_several_lines_with_their_own_indentation() -> None:
    text = "if a:\n    b\n"
    module = module_of(text)
    lines = ["if c:", "    x"]
    assert apply(text, [edits.insert_before(module, at(module, 2), lines)]) == (
        "if a:\n    if c:\n        x\n    b\n"
    )


SHARED_LINES = ["a; b\n", "if a: b\n", "while a: b; c\n"]


@pytest.mark.parametrize("text", SHARED_LINES)
def test_statements_that_share_a_line_are_left_alone(text: str) -> None:
    module = module_of(text)
    inner = [n for n in ast.walk(module.tree) if isinstance(n, ast.Expr)][-1]
    for attempt in (
        lambda: edits.insert_before(module, inner, ["x"]),
        lambda: edits.insert_after(module, inner, ["x"]),
        lambda: edits.delete(module, inner),
        lambda: edits.lines_of(module, inner),
        lambda: edits.wrap_in(module, [inner], "with x:"),
    ):
        with pytest.raises(NoFix):
            attempt()


DELETED = [
    ("a\nb\n", 1, "b\n"),
    ("a\nb", 2, "a\n"),
    ("a  # why\nb\n", 1, "b\n"),
    ("a(\n  1,\n)\nb\n", 1, "b\n"),
    ("a\r\nb\r\n", 1, "b\r\n"),
    ("if a:\n    b\n    c\n", 2, "if a:\n    c\n"),
    ("@d\ndef f(): pass\nb\n", 2, "b\n"),
]


@pytest.mark.parametrize(("text", "row", "left"), DELETED)
def test_delete(text: str, row: int, left: str) -> None:
    module = module_of(text)
    assert apply(text, [edits.delete(module, at(module, row))]) == left


@pytest.mark.parametrize(
    ("text", "row"),
    [
        ("if a:\n    b\n", 2),
        ("for a in b:\n    c\nelse:\n    d\n", 4),
        ("try:\n    a\nfinally:\n    b\n", 4),
        ("try:\n    a\nexcept E:\n    b\n", 4),
        ("def f():\n    a\n", 2),
    ],
)
def test_the_only_statement_of_a_block_is_not_deleted(text: str, row: int) -> None:
    module = module_of(text)
    with pytest.raises(NoFix):
        edits.delete(module, at(module, row))


MOVED = [
    ("a\nb\nc\n", 1, 3, True, "b\nc\na\n"),
    ("a\nb\nc\n", 3, 1, False, "c\na\nb\n"),
    ("a\nb(\n  1\n)\nc\n", 2, 1, False, "b(\n  1\n)\na\nc\n"),
    ("if a:\n    b\n    c\nd\n", 3, 4, True, "if a:\n    b\nd\nc\n"),
    ("a\nif b:\n    c\n    d\n", 1, 4, False, "if b:\n    c\n    a\n    d\n"),
    ("a  # why\nb\n", 1, 2, True, "b\na  # why\n"),
    ("a\r\nb\r\n", 1, 2, True, "b\r\na\r\n"),
    ("a\nb", 1, 2, True, "b\na"),
    ("if x:\n    a\nb\n", 1, 3, True, "b\nif x:\n    a\n"),
    ("a; b\nc\n", 1, 2, True, None),
    ("a('''\n''')\nb\n", 1, 3, True, None),
    ("if x:\n    a\nb\n", 2, 3, True, None),
]


@pytest.mark.parametrize(("text", "row", "goal", "behind", "expected"), MOVED)
def test_move(text: str, row: int, goal: int, behind: bool, expected: str | None) -> None:
    module = module_of(text)
    changes = remedies.move(module, at(module, row), at(module, goal), behind)
    if expected is None:
        assert changes is None
        return
    assert changes is not None
    assert apply(text, sorted(changes, key=lambda edit: edit.start)) == expected


def test_the_block_that_moves_along() -> None:
    module = module_of("if a:\n    if b:\n        c\nelse:\n    d\nif e:\n    f\n")
    assert remedies.lone_block(module, at(module, 3)).lineno == 2
    assert remedies.lone_block(module, at(module, 5)).lineno == 5
    assert remedies.lone_block(module, at(module, 7)).lineno == 6


WRAPPED = [
    ("a\n", (1, 1), "with x:\n    a\n"),
    ("a\nb\nc\n", (1, 2), "with x:\n    a\n    b\nc\n"),
    ("for i in a:\n  b\n", (1, 1), "with x:\n  for i in a:\n    b\n"),
    ("for i in a:\n\tb\n", (1, 1), "with x:\n\tfor i in a:\n\t\tb\n"),
    ("if a:\n    for i in b:\n        c\n\n        d\n", (2, 2),
     "if a:\n    with x:\n        for i in b:\n            c\n\n            d\n"),
    ("for i in a:\n    b\nelse:\n    c\n", (1, 1),
     "with x:\n    for i in a:\n        b\n    else:\n        c\n"),
    ("a('''\n  é\n''')\n", (1, 1), "with x:\n    a('''\n  é\n''')\n"),
    ("for i in a:\n    b  # é\n    # c\n    d\n", (1, 1),
     "with x:\n    for i in a:\n        b  # é\n        # c\n        d\n"),
    ("a(\n 1)\n", (1, 1), "with x:\n    a(\n     1)\n"),
    ("a\r\nb\r\n", (1, 2), "with x:\r\n    a\r\n    b\r\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "rows", "expected"), WRAPPED)
def test_wrap(text: str, rows: tuple[int, int], expected: str) -> None:
    module = module_of(text)
    statements = [at(module, row) for row in range(rows[0], rows[1] + 1) if row <= rows[1]]
    assert apply(text, edits.wrap_in(module, statements, "with x:")) == expected


DECORATED = [
    ("def f():\n    pass\n", "f", "@d()\ndef f():\n    pass\n"),
    ("@a\n@b\ndef f():\n    pass\n", "f", "@a\n@b\n@d()\ndef f():\n    pass\n"),
    ("async def f():\n    pass\n", "f", "@d()\nasync def f():\n    pass\n"),
    ("class C:\n\tdef f(self):\n\t\tpass\n", "f", "class C:\n\t@d()\n\tdef f(self):\n\t\tpass\n"),
    ("def f():\r\n    pass\r\n", "f", "@d()\r\ndef f():\r\n    pass\r\n"),
    ("# c\ndef f(): pass\n", "f", "# c\n@d()\ndef f(): pass\n"),
]


@pytest.mark.parametrize(("text", "name", "expected"), DECORATED)
def test_decorate(text: str, name: str, expected: str) -> None:
    module = module_of(text)
    function = next(f for f in module.all_functions if f.name == name)
    assert apply(text, [edits.decorate(module, function, "d()")]) == expected


DETACHED = [
    ("loss", "loss.detach()"),
    ("self.loss", "self.loss.detach()"),
    ("f(x)", "f(x).detach()"),
    ("a[0]", "a[0].detach()"),
    ("a + b", "(a + b).detach()"),
    ("-a", "(-a).detach()"),
    ("a if b else c", "(a if b else c).detach()"),
    ("(a + b)", "(a + b).detach()"),
    ("(a) + (b)", "((a) + (b)).detach()"),
    ("(a.b)(c)", "(a.b)(c).detach()"),
    ("é + b", "(é + b).detach()"),
    ("await a", "(await a).detach()"),
]


@pytest.mark.parametrize(("expression", "expected"), DETACHED)
def test_append_a_call(expression: str, expected: str) -> None:
    text = f"async def f():\n    x = {expression}\n"
    module = module_of(text)
    statement = at(module, 2)
    assert isinstance(statement, ast.Assign)
    changed = apply(text, edits.append_call(module, statement.value, ".detach()"))
    wanted = f"async def f():\n    x = {expected}\n"
    assert ast.dump(ast.parse(changed)) == ast.dump(ast.parse(wanted))


NAMES = [
    ("import torch\n", "torch.no_grad", 0),
    ("import torch as t\n", "t.no_grad", 0),
    ("from torch import no_grad\n", "no_grad", 0),
    ("from torch import no_grad as quiet\n", "quiet", 0),
    ("import torch.nn as nn\n", "torch.no_grad", 1),
    ("import torch.nn\n", "torch.no_grad", 0),
    ("from torch import nn\n", "torch.no_grad", 1),
    ("x = 1\n", "torch.no_grad", 1),
]


@pytest.mark.parametrize(("text", "name", "imports"), NAMES)
def test_the_name_that_the_file_uses(text: str, name: str, imports: int) -> None:
    found, changes = edits.name_in_file(module_of(text), "torch.no_grad")
    assert (found, len(changes)) == (name, imports)


IMPORTED = [
    ("x = 1\n", "import torch\n\nx = 1\n"),
    ("import os\nx = 1\n", "import torch\nimport os\nx = 1\n"),
    ('"""Doc."""\nx = 1\n', '"""Doc."""\n\nimport torch\nx = 1\n'),
    ("from __future__ import annotations\nx = 1\n",
     "from __future__ import annotations\nimport torch\nx = 1\n"),
    ("from __future__ import annotations\nimport os\n",
     "from __future__ import annotations\nimport torch\nimport os\n"),
    ("# -*- coding: utf-8 -*-\nimport os\n", "# -*- coding: utf-8 -*-\nimport torch\nimport os\n"),
    ("import os\r\n", "import torch\r\nimport os\r\n"),
    ("", "import torch\n"),
    ("# -*- coding: latin-1 -*-\nx = 1\n", "# -*- coding: latin-1 -*-\nimport torch\n\nx = 1\n"),
    ("#!/usr/bin/env python\nx = 1\n", "#!/usr/bin/env python\nimport torch\n\nx = 1\n"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), IMPORTED)
def test_an_import_that_a_fix_needs(text: str, expected: str) -> None:
    assert apply(text, [edits.add_import(module_of(text), "torch")]) == expected


UNITS = [
    ("if a:\n    b\n", "    "),
    ("if a:\n  b\n", "  "),
    ("if a:\n\tb\n", "\t"),
    ("class C:\n   def f(self):\n        if b:\n            c\n", "    "),
    ("a\n", "    "),
]


@pytest.mark.parametrize(("text", "unit"), UNITS)
def test_one_level_of_indentation(text: str, unit: str) -> None:
    module = module_of(text)
    deepest = max(
        (n for n in ast.walk(module.tree) if isinstance(n, ast.stmt)), key=lambda n: n.col_offset
    )
    assert edits.unit(module, deepest) == unit


def test_insertions_at_one_place_become_one_edit() -> None:
    found = edits.merged([Edit(5, 5, "b"), Edit(1, 2, ""), Edit(5, 5, "c"), Edit(0, 0, "a")])
    assert found == (Edit(0, 0, "a"), Edit(1, 2, ""), Edit(5, 5, "bc"))


def test_spans_are_code_points() -> None:
    module = module_of(
        dedent("""\
        'é😀'; a.b(
            'ü')
        """)
    )
    call = at(module, 1)
    statements = [n for n in ast.walk(module.tree) if isinstance(n, ast.Call)]
    assert module.segment(statements[0]) == "a.b(\n    'ü')"
    assert module.segment(call) == "'é😀'"


DROPPED = [
    ("f(a, b=1)\n", 1, "f(a)\n"),
    ("f(a, b=1, c=2)\n", 1, "f(a, c=2)\n"),
    ("f(b=1)\n", 0, "f()\n"),
    ("f(b=1,)\n", 0, "f()\n"),
    ("f(b=1, c=2)\n", 0, "f(c=2)\n"),
    ("f(\n    a,\n    b=1,\n)\n", 1, "f(\n    a,\n)\n"),
    ("f(*a, b=1, **c)\n", 1, "f(*a, **c)\n"),
]


@pytest.mark.parametrize(("text", "index", "expected"), DROPPED)
def test_an_argument_is_dropped_with_its_comma(text: str, index: int, expected: str) -> None:
    module = module_of(text)
    call = at(module, 1).value
    given = sorted([*call.args, *call.keywords], key=lambda n: n.col_offset + 100 * n.lineno)
    assert apply(text, [edits.drop_argument(module, call, given[index])]) == expected


@pytest.mark.parametrize("text", ["f((a), b=1)\n", "f(\n    a,  # why\n    b=1,\n)\n"])
def test_an_argument_is_not_dropped_across_parentheses_or_comments(text: str) -> None:
    module = module_of(text)
    call = at(module, 1).value
    with pytest.raises(NoFix):
        edits.drop_argument(module, call, call.keywords[0])


UNWRAPPED = [
    ("with a:\n    b\n", "b\n"),
    ("with a:\n\n    # c\n    b\n    d\n", "\n# c\nb\nd\n"),
    ("with a(\n    1\n):\n    b\n", "b\n"),
    ("with a:  # c\n    if b:\n        d\n", "if b:\n    d\n"),
    ("with a:\n\tb\n", "b\n"),
]


@pytest.mark.parametrize(("text", "expected"), UNWRAPPED)
def test_a_with_is_unwrapped(text: str, expected: str) -> None:
    module = module_of(text)
    assert apply(text, edits.unwrap(module, at(module, 1))) == expected


@pytest.mark.parametrize("text", ["with a: b\n", "with a:\n    b = '''\n    c'''\n"])
def test_a_with_on_one_line_or_around_a_long_string_stays(text: str) -> None:
    module = module_of(text)
    with pytest.raises(NoFix):
        edits.unwrap(module, at(module, 1))


ENTERED = [
    ("a\nb\nc\n", "with a:\n    b\n    c\n"),
    ("a  # why\n\nb\n", "with a:  # why\n\n    b\n"),
    ("a\nif b:\n\tc\n", "with a:\n\tif b:\n\t\tc\n"),
    ("a\n# b\nc = '''\nd'''\n", "with a:\n    # b\n    c = '''\nd'''\n"),
]


@pytest.mark.parametrize(("text", "expected"), ENTERED)
def test_a_statement_becomes_a_with_over_what_follows(text: str, expected: str) -> None:
    module = module_of(text)
    statement, *rest = module.tree.body
    assert apply(text, edits.enter(module, statement, rest, "with a:")) == expected
