"""What a gate sees of a text: no strings or comments, its functions and its blocks."""

from __future__ import annotations

import io
import re
import tokenize
from itertools import takewhile

import pytest
from fixture_files import FixtureFile, all_files

from oomlint.gate import without_texts
from oomlint.layout import LOOP, functions_of
from oomlint.token_patterns import (
    AllOf,
    AnyOf,
    Calls,
    Exactly,
    InOneBlock,
    InOneFunction,
    Lines,
    OutsideFunctions,
    Statements,
    Times,
    TokenPattern,
    Unless,
    Without,
    Words,
)

CODE = b"""\
first = load(path)

@decorated
def outer(a):
    def inner():
        load(a)
    for item in a:
        keep(item)
    return inner

class Holder:
    async def run(self): return keep(self)
    last = keep(load)
"""
SCRIPTS = [file for file in all_files() if file.place.suffix == ".py" and file.hits]


class Load:
    """A third party's pattern: it can only be searched."""

    def search(self, code: bytes, /) -> object:
        return b"load(" in code


LOAD = (
    re.compile(rb"load\("),
    Exactly((b"load(",)),
    Words((b"load(",)),
    Lines((b"load",), re.compile(rb"load\(")),
    Unless((b"load",), re.compile(rb"()load\("), re.compile(rb"x")),
    Times(1, (b"load(",)),
    AnyOf((Exactly((b"save(",)), Exactly((b"load(",)))),
    AllOf((Exactly((b"load(",)), Exactly((b"a",)))),
    Calls(frozenset((b"load",))),
    Load(),
)


@pytest.mark.parametrize("load", LOAD, ids=lambda pattern: type(pattern).__name__)
def test_one_function_holds_all_patterns(load: TokenPattern) -> None:
    def together(*words: bytes) -> bool:
        return bool(InOneFunction((load, *(Exactly((word,)) for word in words))).search(CODE))

    assert together(b"inner", b"for item", b"@decorated")
    assert together(b"first", b"last")
    assert not together(b"first", b"inner")
    assert not together(b"run")


@pytest.mark.parametrize("load", LOAD, ids=lambda pattern: type(pattern).__name__)
def test_one_block_holds_all_patterns(load: TokenPattern) -> None:
    code = CODE.replace(b"keep(item)", b"load(a + item)")
    assert InOneBlock(LOOP, (load, Exactly((b"for item",)))).search(code)
    assert not InOneBlock(LOOP, (load, Exactly((b"return",)))).search(code)
    assert not InOneBlock(LOOP, (load,)).search(CODE)


def test_code_outside_of_functions() -> None:
    assert (
        functions_of(CODE).rest()
        == b"\nfirst = load(path)\n\nclass Holder:\n    last = keep(load)\n"
    )
    assert OutsideFunctions(Without((b"inner", b"run"))).search(CODE)


def test_statements_are_read_in_one_line() -> None:
    whole = Statements((b"load",), re.compile(rb"^keep.*load"))
    assert whole.search(b"keep(\n  [a,\n  load])\n")
    assert whole.search(b"keep = \\\n  load\n")
    assert not whole.search(b"keep(a)\nload\n")
    # What does not close may be no part of the code in the end.
    assert whole.search(b"keep(a\nload\n")
    assert whole.search(b"keep(a))\nload\n")


def test_calls_are_told_behind_subscripts() -> None:
    code = b"a.one (x)\nb[0][i](y)\nc = d[e(f)]\n"
    called = {
        name for name in b"a one x b i y c d e f".split() if Calls(frozenset({name})).search(code)
    }
    assert called == {b"one", b"b", b"e"}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (rb"""a = 'it\'s' "#" # "b" """, rb'a = "" "" ""'),
        (b"r'\\\\' + b'\\\\\\'' + c", b'r"" + b"" + c'),
        (b'"""a "quoted" \\""" word""" + b', b'"" + b'),
        (b"''''a' # b''' + c", b'"" + c'),
        (b"a \\\r\n + 'b\\\r\nc'\rd # e\r\n", b'a \\\n + ""\nd ""\n'),
        (b"don't\nsay 'no'", b'don\'t\nsay ""'),
    ],
)
def test_texts_are_blanked(text: bytes, code: bytes) -> None:
    assert without_texts(text) == code


@pytest.mark.parametrize("file", [pytest.param(file, id=file.name) for file in SCRIPTS[::4]])
def test_texts_are_those_of_python(file: FixtureFile) -> None:
    kinds = (tokenize.STRING, tokenize.COMMENT)
    if "f'" in file.text or 'f"' in file.text:
        pytest.skip("its parts are tokens of their own in newer Pythons")
    lines = file.text.splitlines(keepends=True)
    found = [
        t for t in tokenize.generate_tokens(io.StringIO(file.text).readline) if t.type in kinds
    ]
    for part in reversed(found):
        (row, column), (end_row, end_column) = part.start, part.end
        prefix = "".join(takewhile(str.isalpha, part.string))
        tail = lines[end_row - 1][end_column:]
        lines[row - 1 : end_row] = [f'{lines[row - 1][:column]}{prefix}""{tail}']
    assert without_texts(file.text.encode()).decode() == "".join(lines)


def test_an_open_string_takes_no_longer() -> None:
    """One that never ends could be read in more ways than there are atoms."""
    opened = b'"""' + b"\\'\\\"#\\\\" * 2000
    assert len(without_texts(opened)) < len(opened)
