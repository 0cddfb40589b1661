"""Trees of edited texts: made out of the tree before, they are those of a fresh parse."""

from __future__ import annotations

import ast
import random
import sys
from pathlib import Path

import pytest

from oomlint.analysis.parsing import SyntaxProblem, parse
from oomlint.analysis.reparsing import LastTree, reused

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import editor

TEXT = '''\
"""A module."""
import torch; import math

@decorated
@twice(
    1)
def one(x):
    return """
# no comment
"""

if one:
    a = 1
    # inside

b = [
    1,
]

class C:
    def f(self): pass
x = 1; y = 2
z = \\
    3
'''
# What is typed where, before the n-th row: much of it reaches further than its row.
PIECES = (
    *(
        "\n",
        "# c\n",
        '"""\n',
        "else:\n    pass\n",
        "@again\n",
        "    q = 1\n",
        "q = 1\n",
        "(\n",
        ")\n",
    ),
    *(
        "\\\n",
        "x = \\\n",
        "if q:\n",
        "def g(): pass\n",
        "; r = 3\n",
        "'é😀'\n",
        "\r",
        "\r\n",
        "\f\n",
        "\t",
    ),
    *(
        "try:\n",
        "except E:\n    pass\n",
        "elif b:\n    pass\n",
        "async ",
        "return\n",
        "lambda: (\n",
    ),
)


def dumped(tree: ast.Module) -> str:
    return ast.dump(tree, include_attributes=True)


def outcome(make: object, text: str) -> str:
    assert callable(make)
    try:
        return dumped(make(text))
    except SyntaxProblem as problem:
        return f"{problem.message} {problem.row} {problem.column}"


@pytest.mark.parametrize("piece", PIECES)
def test_a_piece_before_each_row_gives_the_tree_of_a_fresh_parse(piece: str) -> None:
    rows = TEXT.splitlines(keepends=True)
    last = LastTree()
    for row in range(len(rows) + 1):
        for text in (TEXT, "".join([*rows[:row], piece, *rows[row:]])):
            assert outcome(last.tree_of, text) == outcome(parse, text)


@pytest.mark.parametrize(("text", "edits"), [(TEXT, 300), (editor.training_file(320), 40)])
def test_random_edits_give_the_tree_of_a_fresh_parse(text: str, edits: int) -> None:
    draw = random.Random(3)
    last, good = LastTree(), text
    for _ in range(edits):
        start = draw.randrange(len(text) + 1)
        end = min(len(text), start + draw.choice((0, 0, 1, 4, 80)))
        text = text[:start] + draw.choice((*PIECES, "a", " ", "")) + text[end:]
        seen = outcome(last.tree_of, text)
        assert seen == outcome(parse, text)
        if not seen.startswith("Module(") or draw.random() < 0.1:
            text = good
    assert outcome(last.tree_of, good) == outcome(parse, good)


def test_what_is_far_from_the_change_is_not_parsed_again() -> None:
    text = editor.training_file()
    tree = parse(text)
    before = list(tree.body)
    changed = text.replace(
        "total, correct, count = 0.0, 0, 0", "total, correct, count = 0, 0, 0", 1
    )
    after = reused(tree, text, changed)
    assert after is not None
    assert len(before) - sum(node in before for node in after.body) <= 2
