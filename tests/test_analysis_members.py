"""A class whose methods are parsed one by one is the class that is parsed whole."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import indent

import pytest

from oomlint.analysis import members, modules, outline, parsing
from oomlint.analysis.modules import Class
from oomlint.source import Source

HEAD = "from other import Base\n\n\nclass Trainer(Base):\n"
TAIL = "\n    def last(self):\n" + "        self.count += 1\n" * members.LEAST_LINES

SHAPES = {
    "plain": "def fit(self, data):\n    self.loss = loss\n    loss.backward()",
    "one line": "def fit(self): return self.loss.backward()",
    "note behind the colon": "def fit(self):  # all of it\n    loss.backward()",
    "signature over lines": (
        "def fit(\n    self,\n    size: dict[str, int] = {'a': 1},\n) -> int:\n    loss.backward()"
    ),
    "decorators": "@a.b\n@wraps(\n    other,\n)\nasync def fit(self):\n    await self.backward()",
    "text in the column of methods": (
        'def fit(self):\n    """Says:\n\ndef no(self):\n    """\n    x()'
    ),
    "property and setter": (
        "@property\ndef lr(self):\n    return 1\n\n@lr.setter\ndef lr(self, to):\n    self.to = to"
    ),
    "functions inside": (
        "def fit(self):\n    def closure():\n        loss.backward()\n    return closure"
    ),
    "under a condition": (
        "if torch:\n    def fit(self):\n        loss.backward()\nelse:\n    fit = None"
    ),
    "constants": "size: int = 3\nname = 'x'\n\ndef fit(self):\n    self.a, self.b = self.c = 1, 2",
}


def whole(text: str) -> Class:
    source = Source(Path("/nowhere/trainer.py"), text)
    return modules.build(source, parsing.parse(text), "trainer", False).classes["Trainer"]


def sketched(text: str) -> Class:
    found = outline.sketch(Source(Path("/nowhere/trainer.py"), text)).class_("Trainer")
    assert found is not None
    return found


def told(cls: Class) -> dict[str, object]:
    return {
        "methods": [
            (
                method.qualname,
                method.words,
                [ast.dump(part, include_attributes=True) for part in method.decorators],
                ast.dump(method.node, include_attributes=True),
            )
            for method in cls.methods.values()
        ],
        "constants": {name: ast.dump(value) for name, value in cls.constants.items()},
        "assigned": {
            name: [(ast.unparse(value), method.name) for value, method in cls.assigned.get(name)]
            for name in ("loss", "a", "b", "c", "to", "count")
        },
        "tree": [ast.dump(part) for part in ast.iter_child_nodes(cls.node)],
        "rows": (cls.node.lineno, cls.node.end_lineno),
    }


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sketch_tells_what_the_whole_tells(shape: str) -> None:
    text = HEAD + indent(SHAPES[shape], "    ") + "\n" + TAIL
    assert isinstance(sketched(text).node, members.SketchedClass)
    assert told(sketched(text)) == told(whole(text))


def test_lines_that_deceive_are_parsed_whole() -> None:
    text = HEAD + '    def fit(self):\n        """Says\nnothing = 1\n        """\n' + TAIL
    assert not isinstance(sketched(text).node, members.SketchedClass)
    assert told(sketched(text)) == told(whole(text))
