"""What a gate looks for besides words, put together so that most of a text is never matched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol


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
        for word in self.words:
            place = code.find(word)
            while place >= 0:
                end = code.find(b"\n", place)
                end = end if end >= 0 else len(code)
                found = self.pattern.search(code[code.rfind(b"\n", 0, place) + 1 : end])
                if found:
                    return found
                place = code.find(word, end)
        return None


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
