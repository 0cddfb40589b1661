"""Text to tree: positions that stay true, syntax newer than this Python, and what is no Python."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent, indent

import pytest
from stories import findings, model_of

from oomlint.analysis import SyntaxProblem, outline, parsing
from oomlint.analysis.newer import blank_newer_syntax

# Each text has its one fault in a line of its own that ends with this comment.
HERE = "# here"


def training(top: str = "", early: str = "", late: str = "") -> str:
    """A training step with a misplaced clip; the parts stand above, before and behind it."""
    return f"""\
import torch
{dedent(top)}
def train(model, loader, criterion):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for inputs, targets in loader:
        optimizer.zero_grad()
{indent(dedent(early), "        ")}
        loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  {HERE}
        scaler.step(optimizer)
        scaler.update()
{indent(dedent(late), "        ")}
"""


def place(text: str) -> tuple[int, int]:
    """Row and column of the code in the marked line."""
    row = next(i for i, line in enumerate(text.splitlines(), 1) if HERE in line)
    line = text.splitlines()[row - 1]
    return row, len(line) - len(line.lstrip()) + 1


def found(text: str, folder: Path) -> list[tuple[str, int, int]]:
    return [(f.code, f.row, f.column) for f in findings(folder / "train.py", text)]


NEWER = {
    "type statement": ("type Pair[T] = tuple[T, T]", "", ""),
    "type statement over lines": ("type Pair = tuple[\n    int,\n    str,\n]", "", ""),
    "type parameters of a function": ("def first[T](xs: list[T]) -> T:\n    return xs[0]", "", ""),
    "type parameters over lines": ("def first[\n    T,\n    U,\n](xs):\n    return xs", "", ""),
    "type parameters of a class": ("class Box[T: int, *Ts, **P]:\n    pass", "", ""),
    "quotes in an f-string": ("", "print(f'{inputs['x']}')", ""),
    "comment in an f-string": ("", 'print(f"""{\n    inputs  # why\n}""")', ""),
    "backslash in an f-string": ("", r"print(f'{chr(10).join(inputs)}{'\n'}')", ""),
    "f-strings in f-strings": ("", 'print(f"{f"{f"{1}"}"}")', ""),
    "f-string with a format": ("", "print(f'{targets['a']:>{inputs['w']}}')", ""),
    "behind the fault": ("", "", "print(f'{loss['x']}')"),
    "all at once": (
        "type A = int\ndef g[T](x: T) -> T: return x",
        "print(f'{inputs['a']} and {f'{g(1)}'}')",
        "type B = list[A]",
    ),
}


@pytest.mark.parametrize("name", NEWER)
def test_newer_syntax_hides_no_fault(name: str, tmp_path: Path) -> None:
    text = training(*NEWER[name])
    assert found(text, tmp_path) == [("OOM301", *place(text))]


@pytest.mark.parametrize("name", NEWER)
def test_newer_syntax_moves_no_fault_with_windows_line_ends(name: str, tmp_path: Path) -> None:
    text = training(*NEWER[name])
    assert found(text.replace("\n", "\r\n"), tmp_path) == [("OOM301", *place(text))]


def test_except_star_around_the_fault(tmp_path: Path) -> None:
    text = f"""\
import torch

def train(model, loader, optimizer, criterion):
    scaler = torch.amp.GradScaler("cuda")
    for inputs, targets in loader:
        optimizer.zero_grad()
        try:
            loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2 * 0.5)  {HERE}
            scaler.step(optimizer)
            scaler.update()
        except* ValueError:
            print("no")
        except*(TypeError, KeyError) as group:
            print(group)
"""
    assert found(text, tmp_path) == [("OOM301", *place(text))]


SIMPLE = {
    "x = 1\n": "x = 1\n",
    "type A = int\n": "pass        \n",
    "def f[T](x): pass\n": "def f   (x): pass\n",
    "class C[T](B): pass\n": "class C   (B): pass\n",
    "x = f'{a}'\n": "x = ''    \n",
    "try:\n    pass\nexcept* A:\n    b = 2 * 3\n": "try:\n    pass\nexcept  A:\n    b = 2 * 3\n",
    "x = (1,\n     f'{a}', 2)\n": "x = (1,\n     ''    , 2)\n",
    "type A = [\n  int]\r\ny = 1\n": "pass     \\\n      \r\ny = 1\n",
}


@pytest.mark.parametrize(("text", "blanked"), SIMPLE.items())
def test_blanks_in_place(text: str, blanked: str) -> None:
    assert blank_newer_syntax(text) == blanked
    ast.parse(blanked)


def test_what_is_no_python_of_any_version_is_not_blanked() -> None:
    assert blank_newer_syntax("def f[T](:\n") is None


@pytest.mark.parametrize(
    "text",
    [
        "print(f'{a['é']}'); b = 1\n",
        "type Ä = list[int]\nb = 1\n",
        "x = f'{a[\"😀\"]} {'n'}', (b := 1)\n",
        "x = f'{f'{1}'}' + f'{'n'}'; b = 1\n",
        "type A = list[int]; b = 1\n",
        "x = f'{a['é']}' + f'{c}'; b = 1\n",
        "x = f'{a['é']}{f'{c}'}', f'{1}'; b = 1\n",
    ],
)
def test_what_stands_behind_newer_syntax_keeps_its_column(text: str) -> None:
    tree = parsing.parse(text)
    (name,) = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == "b"]
    line = text.splitlines()[name.lineno - 1]
    assert line.encode()[name.col_offset :].startswith((b"b = 1", b"b := 1"))


# positions


def behind(prefix: str) -> str:
    """A misplaced clip behind other code of its line."""
    text = training()
    clip = "torch.nn.utils.clip"
    return text.replace(clip, prefix + clip).replace(f"  {HERE}", f"; x = 1  {HERE}")


@pytest.mark.parametrize(
    "prefix", ["", "a = 1; ", "a = 'é'; ", "a = '😀'; ", "a = 'é😀', '\t'; ", "é = '\\N{BULLET}'; "]
)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_columns_count_code_points(prefix: str, newline: str, tmp_path: Path) -> None:
    text = behind(prefix)
    row, column = place(text)
    (finding,) = findings(tmp_path / "train.py", text.replace("\n", newline))
    assert (finding.row, finding.column) == (row, column + len(prefix))
    assert finding.end_row == row
    assert text.replace("\n", newline)[finding.start : finding.end] == (
        "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    )


def test_a_tab_is_one_column(tmp_path: Path) -> None:
    text = training().replace("    ", "\t")
    row, column = place(text)
    assert column == 3
    assert found(text, tmp_path) == [("OOM301", row, 3)]


@pytest.mark.parametrize(
    "above",
    [
        "# é😀\n",
        '"""Doc\n\nover lines é\n"""\n',
        "x = '''\n😀'''\n",
        "x = 1 + \\\n    2\n",
        "\n\n\f\n",
        "x = 'a\\\nb'\n",
    ],
)
def test_rows_above_the_fault(above: str, tmp_path: Path) -> None:
    text = above + training()
    row = place(training())[0] + above.count("\n")
    assert found(text, tmp_path) == [("OOM301", row, 9)]


def test_a_call_over_lines(tmp_path: Path) -> None:
    call = "torch.nn.utils.clip_grad_norm_(  # é\n            model.parameters(), 1.0\n        )"
    text = training().replace("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", call)
    (finding,) = findings(tmp_path / "train.py", text)
    assert text[finding.start : finding.end] == call
    assert (finding.end_row - finding.row, finding.end_column) == (2, 10)


# what is no Python


@pytest.mark.parametrize(
    ("text", "row", "column"),
    [
        ("def f(:\n", 1, 7),
        ("a = 1\nb = = 2\n", 2, 5),
        ("if x:\npass\n", 2, 1),
        ("x = (" + "(" * 200 + ")" * 201 + "\n", 1, 205),
        ("a = 1\n\nx = " + "[" * 201 + "]" * 201 + "\n", 3, 205),
    ],
)
def test_syntax_problems_say_where(text: str, row: int, column: int) -> None:
    with pytest.raises(SyntaxProblem) as raised:
        parsing.parse(text)
    assert (raised.value.row, raised.value.column) == (row, column)
    assert raised.value.message


@pytest.mark.parametrize(
    "text",
    [
        "x = '" + "(" * 500 + "'\n",
        "# " + "[" * 500 + "\nx = 1\n",
        'x = """' + "{\n" * 500 + '"""\n',
        "x = " + ", ".join(["(1)"] * 400) + "\n",
        "x = " + "(" * 90 + ")" * 90 + "\n",
    ],
)
def test_brackets_that_are_not_nested_too_deep(text: str) -> None:
    assert parsing.too_deep(text) is None
    assert isinstance(parsing.parse(text).body[0], ast.Assign)


def test_invalid_escapes_print_nothing(recwarn: pytest.WarningsRecorder) -> None:
    parsing.parse(r"x = '\d'" + "\n")
    assert list(recwarn) == []


def test_analysis_raises_for_what_is_no_python() -> None:
    with pytest.raises(SyntaxProblem, match=r"."):
        model_of("def f(:\n    loss.backward()\n")


def test_the_imports_of_a_file_that_is_only_looked_into() -> None:
    text = (
        "from a.b import (  # imported again: see important()\n    c,\n    d)\n"
        "import e, f\nif x:\n    from .g import *\n# import h\nimportant = import_module('i')\n"
    )
    assert [match.group().strip() for match in outline.imports_of(text)] == [
        "from a.b import (  # imported again: see important()",
        "import e, f",
        "from .g import *",
    ]
