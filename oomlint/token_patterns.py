"""What a gate looks for besides words, put together so that most of a text is never matched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

# Behind the end of a line, which is found much faster than the start of one.
DEFINITION = re.compile(rb"\n([ \t]*)(?:async[ \t]+)?def[ \t]")


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


# Code that can name `torch.utils.checkpoint.checkpoint`.
CHECKPOINTING = AnyOf(
    (
        re.compile(rb"utils\.checkpoint\b"),
        re.compile(rb"utils\s+import\b[^#;=]{0,400}?\bcheckpoint\b"),
        re.compile(rb"checkpoint\.checkpoint"),
    )
)


@dataclass(frozen=True)
class AllOf:
    """All of several patterns, in any order in the text."""

    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        return all(pattern.search(code) for pattern in self.patterns)


@dataclass(frozen=True)
class Without:
    """None of some words, in whatever case they are written."""

    words: tuple[bytes, ...]

    def search(self, code: bytes, /) -> object:
        small = code.lower()
        return not any(word in small for word in self.words)


@dataclass(frozen=True)
class Times:
    """Some words, so many times at least, all of them together."""

    least: int
    words: tuple[bytes, ...]

    def search(self, code: bytes, /) -> object:
        return sum(map(code.count, self.words)) >= self.least


@dataclass(frozen=True)
class InOneFunction:
    """All of several patterns inside of one function, or in the code outside of all of them.

    Nested functions belong to the one around them. The patterns are asked in their order.
    """

    patterns: tuple[TokenPattern, ...]

    def search(self, code: bytes, /) -> object:
        if not self.patterns[0].search(code):
            return False
        return any(
            all(pattern.search(part) for pattern in self.patterns) for part in functions_of(code)
        )


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
    for match in DEFINITION.finditer(code):
        if match.start() < end:
            continue
        others.append(code[end : match.start()])
        after = behind(len(match[1])).search(code, match.end())
        end = after.start() if after else len(code)
        functions.append(code[match.start() : end])
    return (*functions, b"".join((*others, code[end:])))


@lru_cache(maxsize=64)
def behind(indentation: int) -> re.Pattern[bytes]:
    """A line that no longer belongs to a function which is indented so far."""
    return re.compile(rb"\n[ \t]{0,%d}[^\s)\]}\\]" % indentation)
