"""What must hold for a line to be reached, and which names a file leaves to others."""

from __future__ import annotations

import ast

import pytest

from oomlint.verify.conditions import ABSENT, PRESENT, wanted
from oomlint.verify.free_names import free_names

REACHED = {
    "if a:\n    HERE": {"a": True},
    "if not a.b:\n    HERE": {"a.b": False},
    "if a:\n    pass\nelse:\n    HERE": {"a": False},
    "if a and not b['c']:\n    HERE": {"a": True, "b.c": False},
    "if a or b:\n    HERE": {"a": True},
    "if not (a or b):\n    HERE": {"a": False, "b": False},
    "if a is not None:\n    HERE": {"a": PRESENT},
    "if a is not None:\n    pass\nelse:\n    HERE": {"a": ABSENT},
    "if a == 'x':\n    pass\nelif a == 'y':\n    HERE": {"a": "y"},
    "if a:\n    return\nHERE": {"a": False},
    "if a == 1:\n    pass\nelif a == 2:\n    pass\nelse:\n    raise ValueError\nHERE": {"a": 1},
    "for x in y:\n    with z:\n        if x:\n            continue\n        HERE": {"x": False},
    "if len(a) > 1:\n    HERE": {},
    "if a > 1:\n    HERE": {"a": 2},
}


@pytest.mark.parametrize("body", REACHED)
def test_what_a_line_asks_for(body: str) -> None:
    text = "def f(a, b):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    row = next(i for i, line in enumerate(text.splitlines(), 1) if "HERE" in line)
    assert wanted((function,), (row,)) == REACHED[body]


FILE = """\
import os, torch.nn as nn
from x import thing as other
LIMIT = 3
try:
    import fast
except ImportError:
    fast = None
class Net: pass
def helper(model): return [model(n) for n in range(LIMIT)]
def train(epoch, loader=other):
    global best
    total = 0
    for step, batch in enumerate(loader):
        loss = helper(model) + (lambda v: v + args.lr)(step)
        best = max(best, loss)
        total += loss
    return os, nn, Net, fast, print
if __name__ == "__main__":
    args = model = None
"""


def test_names_that_only_a_main_part_defines() -> None:
    tree = ast.parse(FILE)
    functions = tuple(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert free_names(tree, functions) == ("model", "args", "best")
    assert free_names(ast.parse("from x import *\n" + FILE), functions) == ()
