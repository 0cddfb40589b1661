"""A gate opens for what its rule finds, however the same code is laid out."""

from __future__ import annotations

import ast
import io
import token
import tokenize
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from fixture_files import FixtureFile, all_files, alone

from oomlint.gate import Gate
from oomlint.registry import all_rules

GATES = {rule.code: Gate((rule,)) for rule in all_rules() if not rule.of_comments}
FLAGGED = [file for file in all_files() if file.place.suffix == ".py" and file.hits]
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
FSTRING_START = getattr(token, "FSTRING_START", -1)
FSTRING_END = getattr(token, "FSTRING_END", -1)


def respelled(text: str) -> str:
    """As Python itself would write the tree."""
    return ast.unparse(ast.parse(text))


def unindented(text: str) -> str:
    """Every part of a bracket on a line of its own, at the margin."""
    return with_inserted(text, dict.fromkeys(breaks(text), "\n"))


def commented(text: str) -> str:
    """A comment with brackets behind every line."""
    ends = {
        part.start
        for part in tokens(text)
        if part.type in (token.NEWLINE, token.NL) and part.line.strip()
    }
    return with_inserted(text, dict.fromkeys(ends, "  # ) [ {:"))


def breaks(text: str) -> Iterator[tuple[int, int]]:
    """Where a bracket's content begins, and behind its commas; not inside of an f-string."""
    inside, strings = 0, 0
    found = list(tokens(text))
    for part, following in pairwise(found):
        strings += (part.type == FSTRING_START) - (part.type == FSTRING_END)
        inside += (part.string in OPENING) - (part.string in CLOSING)
        ends_here = following.string in CLOSING or following.type in (token.NL, token.COMMENT)
        if inside and not strings and part.string in (*OPENING, ",") and not ends_here:
            yield part.end


def tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def with_inserted(text: str, inserted: dict[tuple[int, int], str]) -> str:
    lines = text.splitlines(keepends=True)
    for row, column in sorted(inserted, reverse=True):
        line = lines[row - 1]
        lines[row - 1] = line[:column] + inserted[row, column] + line[column:].lstrip(" ")
    return "".join(lines)


LAYOUTS = (respelled, unindented, commented)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("file", [pytest.param(file, id=file.name) for file in FLAGGED])
def test_layout_closes_no_gate(file: FixtureFile, layout: Callable[[str], str]) -> None:
    hits = [(row, code) for row, code in file.hits if code in GATES]
    for text in {file.text, *(alone(file.text, row) for row, _ in hits)}:
        changed = layout(text)
        assert ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text))
        for code in {code for _, code in hits if is_open(code, text)}:
            assert is_open(code, changed), code
            assert is_open(code, changed.replace("\n", "\r\n")), code


@pytest.mark.parametrize("file", [pytest.param(file, id=file.name) for file in FLAGGED])
def test_what_is_found_opens_the_gate(file: FixtureFile) -> None:
    assert all(is_open(code, file.text) for _, code in file.hits if code in GATES)


def is_open(code: str, text: str) -> bool:
    return bool(GATES[code].open_rules(text.encode()))
