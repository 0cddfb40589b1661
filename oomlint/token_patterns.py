"""What a gate looks for besides words, put together so that most of a text is never matched."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from oomlint.layout import OfLast, blocks_around, functions_of


class TokenPattern(Protocol):
    """Something with the question of a compiled pattern."""

    def search(self, code: bytes, /) -> object: ...


class Placed:
    """A pattern that can tell where it may be found: no function or block elsewhere is asked.

    A place is where a match would begin, or the line of it.
    """

    def places(self, code: bytes) -> Iterable[int]:
        raise NotImplementedError

    def search(self, code: bytes, /) -> object:
        return any(True for _ in self.places(code))


def places_of(pattern: TokenPattern, code: bytes) -> Iterable[int]:
    """Where a pattern may be found: every line of a text that has it, if it cannot tell."""
    if isinstance(pattern, re.Pattern):
        return (match.start() for match in pattern.finditer(code))
    if isinstance(pattern, Placed):
        return pattern.places(code)
    return every(b"\n", b"\n" + code) if pattern.search(code) else ()


def every(word: bytes, code: bytes) -> Iterator[int]:
    """Where a word stands."""
    place = code.find(word)
    while place >= 0:
        yield place
        place = code.find(word, place + 1)


@dataclass(frozen=True)
class Lines(Placed):
    """A pattern that is tried on the lines that hold one of these words, and on no other.

    `^` and `$` are the ends of such a line.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]

    def places(self, code: bytes) -> Iterator[int]:
        search = self.pattern.search
        return (place for place, line in lines_with(self.words, code) if search(line))


def lines_with(words: tuple[bytes, ...], code: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines that hold a word, and where they begin, those of the first word first."""
    for word in words:
        place = code.find(word)
        while place >= 0:
            start = code.rfind(b"\n", 0, place) + 1
            end = code.find(b"\n", place)
            end = end if end >= 0 else len(code)
            yield start, code[start:end]
            place = code.find(word, end)


@dataclass(frozen=True)
class Statements:
    """A pattern that is tried on the statements that hold one of these words, each in one line.

    It counts as found where brackets do not close: such a part may be left out of a document.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        lines = joined(code)
        return lines is None or Lines(self.words, self.pattern).search(lines)


BREAK = re.compile(rb"[()\[\]{}]|\\?\n")


def joined(code: bytes) -> bytes | None:
    """A text with blanks for line breaks in brackets and behind backslashes; None if open ends."""
    parts: list[bytes] = []
    opened = begin = 0
    for match in BREAK.finditer(code):
        sign = match[0]
        if sign in b"([{":
            opened += 1
        elif sign in b")]}":
            opened -= 1
            if opened < 0:
                return None
        elif opened or len(sign) > 1:
            parts.append(code[begin : match.start()])
            begin = match.end()
    return None if opened else b" ".join((*parts, code[begin:]))


@dataclass(frozen=True)
class AnyOf(Placed):
    """One of several patterns: each is searched fast where it begins with a literal."""

    patterns: tuple[TokenPattern, ...]

    def places(self, code: bytes) -> Iterator[int]:
        return chain.from_iterable(places_of(pattern, code) for pattern in self.patterns)

    def search(self, code: bytes, /) -> object:
        return any(pattern.search(code) for pattern in self.patterns)


@dataclass(frozen=True)
class AllOf(Placed):
    """All of several patterns, in any order in the text; the first one should be rare."""

    patterns: tuple[TokenPattern, ...]

    def places(self, code: bytes) -> Iterable[int]:
        return places_of(self.patterns[0], code)

    def search(self, code: bytes, /) -> object:
        return all(pattern.search(code) for pattern in self.patterns)


class Shared:
    """A pattern that several rules ask of the same text, which is searched once for all of them."""

    def __init__(self, pattern: TokenPattern) -> None:
        self.search = OfLast(pattern.search)


@dataclass(frozen=True)
class Exactly(Placed):
    """One of some words, as they are written."""

    words: tuple[bytes, ...]

    def places(self, code: bytes) -> Iterator[int]:
        return chain.from_iterable(every(word, code) for word in self.words)

    def search(self, code: bytes, /) -> object:
        return any(word in code for word in self.words)


@dataclass(frozen=True)
class Words(Placed):
    """One of some words, in whatever case they are written; given in lower case."""

    words: tuple[bytes, ...]

    def places(self, code: bytes) -> Iterator[int]:
        return Exactly(self.words).places(code.lower())

    def search(self, code: bytes, /) -> object:
        return Exactly(self.words).search(code.lower())


@dataclass(frozen=True)
class Calls:
    """A call of one of these names, whatever it is looked up in."""

    names: frozenset[bytes]

    def search(self, code: bytes, /) -> object:
        return not self.names.isdisjoint(called(code))


# Read backwards, so that each match begins with a bracket: those are found fast.
CALLED = re.compile(rb"\(\s*(?:\][^\[\]]*\[)*(\w+)")


def called(code: bytes) -> set[bytes]:
    """The last names of all that is called, behind any subscripts."""
    return {name[::-1] for name in set(CALLED.findall(code[::-1]))}


@dataclass(frozen=True)
class Without:
    """None of some words, in whatever case they are written."""

    words: tuple[bytes, ...]

    def search(self, code: bytes, /) -> object:
        return not Words(self.words).search(code)


@dataclass(frozen=True)
class Times(Placed):
    """Some words, so many times at least, all of them together."""

    least: int
    words: tuple[bytes, ...]

    def places(self, code: bytes) -> Iterable[int]:
        return Exactly(self.words).places(code)

    def search(self, code: bytes, /) -> object:
        return sum(map(code.count, self.words)) >= self.least


@dataclass(frozen=True)
class Unless(Placed):
    """A match on the lines with a word whose only group another pattern does not match.

    A group that matched nothing counts.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    excluded: re.Pattern[bytes]

    def places(self, code: bytes) -> Iterator[int]:
        return (
            place
            for place, line in lines_with(self.words, code)
            for found in self.pattern.findall(line)
            if not found or not self.excluded.search(found)
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

    `elsewhere` is tried on the lines with the name, with a NUL in its place.
    """

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    elsewhere: re.Pattern[bytes]

    def search(self, code: bytes, /) -> object:
        names = {n for _, line in lines_with(self.words, code) for n in self.pattern.findall(line)}
        return any(
            self.elsewhere.search(with_nul(line, name))
            for name in names
            for _, line in lines_with((name,), code)
        )


WORD = re.compile(rb"(\w+)")


def with_nul(line: bytes, name: bytes) -> bytes:
    return b"".join(b"\0" if part == name else part for part in WORD.split(line))


@dataclass(frozen=True)
class InOneFunction:
    """All of several patterns inside of one function, or in the code outside of all of them.

    Nested functions belong to the one around them, decorators to the function below them. Only
    where the first pattern is found in the whole text are the functions asked: it should be rare.
    """

    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        places = list(places_of(self.patterns[0], code))
        return bool(places) and any(
            all(pattern.search(part) for pattern in self.patterns)
            for part in functions_of(code).holding(places)
        )


@dataclass(frozen=True)
class InOneBlock(Placed):
    """All of several patterns in one block that such a line begins, this line included.

    Blocks inside of a block belong to it. Only those are asked in which the first pattern is found
    in the whole text.
    """

    head: re.Pattern[bytes]
    patterns: tuple[TokenPattern, ...]

    def places(self, code: bytes) -> Iterable[int]:
        return places_of(self.patterns[0], code)

    def search(self, code: bytes, /) -> object:
        return any(
            all(pattern.search(block) for pattern in self.patterns)
            for block in blocks_around(code, self.head, self.places(code))
        )


@dataclass(frozen=True)
class OutsideFunctions:
    """A pattern in the code outside of all functions, that of classes included."""

    pattern: TokenPattern

    def search(self, code: bytes, /) -> object:
        return self.pattern.search(functions_of(code).rest())
