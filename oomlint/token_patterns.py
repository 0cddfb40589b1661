"""What a gate looks for besides words, put together so that most of a text is never matched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

# Lines that begin a block: behind the end of a line, which is found much faster than the start of
# one, and without a group, which would cost as much as the rest.
DEFINITION = re.compile(rb"\n[ \t]*(?:def|async[ \t]+def)[ \t]")
LOOP = re.compile(rb"\n[ \t]*(?:for|while|async[ \t]+for)\b")
HANDLER = re.compile(rb"\n[ \t]*except\b")
CLASS = re.compile(rb"\n[ \t]*class[ \t]")
# How no line inside of brackets begins.
STARTING = re.compile(
    rb"def[ \t]|class[ \t]|async[ \t]|@[^\n]*\n[ \t]*(?:def\b|class\b|async\b|@\w)"
)


class TokenPattern(Protocol):
    """Something with the question of a compiled pattern."""

    def search(self, code: bytes, /) -> object: ...


@dataclass(frozen=True)
class Lines:
    """A pattern that is tried on the lines that hold one of these words, and on no other.

    `^` and `$` are the ends of such a line.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        return any(self.pattern.search(line) for line in lines_with(self.words, code))


def lines_with(words: tuple[bytes, ...], code: bytes) -> Iterator[bytes]:
    """The lines that hold a word, those of the first word first."""
    for word in words:
        place = code.find(word)
        while place >= 0:
            end = code.find(b"\n", place)
            end = end if end >= 0 else len(code)
            yield code[code.rfind(b"\n", 0, place) + 1 : end]
            place = code.find(word, end)


@dataclass(frozen=True)
class AnyOf:
    """One of several patterns: each is searched fast where it begins with a literal."""

    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        return any(pattern.search(code) for pattern in self.patterns)


@dataclass(frozen=True)
class AllOf:
    """All of several patterns, in any order in the text."""

    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        return all(pattern.search(code) for pattern in self.patterns)


class Shared:
    """A pattern that several rules ask of the same text, which is searched once for all of them."""

    def __init__(self, pattern: TokenPattern) -> None:
        self.pattern = pattern
        self.last: tuple[bytes | None, object] = (None, None)

    def search(self, code: bytes, /) -> object:
        last = self.last
        if last[0] is not code:
            last = self.last = (code, self.pattern.search(code))
        return last[1]


@dataclass(frozen=True)
class Words:
    """One of some words, in whatever case they are written; given in lower case."""

    words: tuple[bytes, ...]

    def search(self, code: bytes, /) -> object:
        small = code.lower()
        return any(word in small for word in self.words)


@dataclass(frozen=True)
class Without:
    """None of some words, in whatever case they are written."""

    words: tuple[bytes, ...]

    def search(self, code: bytes, /) -> object:
        return not Words(self.words).search(code)


@dataclass(frozen=True)
class Times:
    """Some words, so many times at least, all of them together."""

    least: int
    words: tuple[bytes, ...]

    def search(self, code: bytes, /) -> object:
        return sum(map(code.count, self.words)) >= self.least


@dataclass(frozen=True)
class Unless:
    """A match on the lines with a word whose only group another pattern does not match.

    A group that matched nothing counts.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    excluded: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        return any(
            not found or not self.excluded.search(found)
            for line in lines_with(self.words, code)
            for found in self.pattern.findall(line)
        )


@dataclass(frozen=True)
class SameName:
    """Two patterns whose only groups match the same name somewhere."""

    one: re.Pattern[bytes]
    other: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        names = set(self.one.findall(code))
        return bool(names) and not names.isdisjoint(self.other.findall(code))


@dataclass(frozen=True)
class NamePlaced:
    """A name, the only group of a pattern for the lines with a word, that also stands elsewhere.

    `places` is tried on the lines with the name, with a NUL in its place.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    places: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        names = {n for line in lines_with(self.words, code) for n in self.pattern.findall(line)}
        return any(
            self.places.search(with_nul(line, name))
            for name in names
            for line in lines_with((name,), code)
        )


WORD = re.compile(rb"(\w+)")


def with_nul(line: bytes, name: bytes) -> bytes:
    return b"".join(b"\0" if part == name else part for part in WORD.split(line))


@dataclass(frozen=True)
class InOneFunction:
    """All of several patterns inside of one function, or in the code outside of all of them.

    Nested functions belong to the one around them, decorators to the function below them. The
    patterns are asked in their order; the first one is asked of the whole text before.
    """

    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        if not self.patterns[0].search(code):
            return False
        return any(
            all(pattern.search(part) for pattern in self.patterns) for part in functions_of(code)
        )


@dataclass(frozen=True)
class InOneBlock:
    """All of several patterns in one block that such a line begins, this line included.

    Blocks inside of a block belong to it.
    """

    head: re.Pattern[bytes]
    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        if not self.patterns[0].search(code):
            return False
        code, end = b"\n" + code, 0
        while match := self.head.search(code, end):
            end = end_of(code, match)
            block = code[match.start() : end]
            if all(pattern.search(block) for pattern in self.patterns):
                return True
        return False


@dataclass(frozen=True)
class OutsideFunctions:
    """A pattern in the code outside of all functions, that of classes included."""

    pattern: TokenPattern

    def search(self, code: bytes, /) -> object:
        return self.pattern.search(functions_of(code)[-1])


@lru_cache(maxsize=1)
def functions_of(code: bytes) -> tuple[bytes, ...]:
    """The outermost functions and methods of a text, told by its lines, then all the rest of it.

    Strings and comments of the text are blanked: its lines say what belongs to what.
    """
    functions: list[bytes] = []
    others: list[bytes] = []
    code = b"\n" + code
    end = 0
    while match := DEFINITION.search(code, end):
        start = decorated(code, end, match)
        others.append(code[end:start])
        end = end_of(code, match)
        functions.append(code[start:end])
    return (*functions, b"".join((*others, code[end:])))


def decorated(code: bytes, begin: int, match: re.Match[bytes]) -> int:
    """Where the decorators of a definition begin, if there are any behind `begin`."""
    start, indent = match.start(), indentation(match)
    head = b"\n" + match[0][1 : indent + 1] + b"@"
    while (place := code.rfind(head, begin, start)) >= 0:
        if behind(indent).search(code, place + len(head), start):
            break
        start = place
    return start


def indentation(match: re.Match[bytes]) -> int:
    """How far the line is indented that a match begins at the end of the line above."""
    return len(match[0]) - len(match[0].lstrip()) - 1


def end_of(code: bytes, match: re.Match[bytes]) -> int:
    """Where the block ends that a matched line begins."""
    begin, place, opened = match.start(), match.end(), 0
    pattern = behind(indentation(match))
    while after := pattern.search(code, place):
        end, place = after.start(), after.end()
        if STARTING.match(code, place - 1):
            return end
        opened += depth(code, begin, end)
        begin = end
        if opened <= 0 and code[end - 1 : end] != b"\\":
            return end
    return len(code)


def depth(code: bytes, start: int, end: int) -> int:
    """How many brackets are opened between two places and not closed there."""
    opened = sum(code.count(bracket, start, end) for bracket in (b"(", b"[", b"{"))
    return opened - sum(code.count(bracket, start, end) for bracket in (b")", b"]", b"}"))


@lru_cache(maxsize=64)
def behind(indent: int) -> re.Pattern[bytes]:
    """A line that no longer belongs to a block whose first line is indented so far."""
    return re.compile(rb"\n(?![ \t]{%d})[ \t]*[^\s)\]}\\]" % (indent + 1))
