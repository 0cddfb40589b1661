"""Tells from the lines of a code which functions and blocks it has: no tree is built for it.

Strings and comments of the code are blanked. Places count in it behind one more end of a line.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache, update_wrapper
from typing import Generic, TypeVar

# Lines that begin a block: behind the end of a line, which is found much faster than the start of
# one. The group takes the indentation at once: no part of it is tried again where no word follows.
LINE = rb"\n(?=([ \t]*))\1"
DEFINITION = re.compile(LINE + rb"(?:def|async[ \t]+def)[ \t]")
LOOP = re.compile(LINE + rb"(?:for|while|async[ \t]+for)\b")
HANDLER = re.compile(LINE + rb"except\b")
CLASS = re.compile(LINE + rb"class[ \t]")
# How no line inside of brackets begins.
STARTING = re.compile(
    rb"def[ \t]|class[ \t]|async[ \t]|@[^\n]*\n[ \t]*(?:def\b|class\b|async\b|@\w)"
)
Found = TypeVar("Found")


class OfLast(Generic[Found]):
    """What several rules ask of the same text, remembered for the last one."""

    def __init__(self, ask: Callable[[bytes], Found]) -> None:
        self.ask = ask
        self.last: tuple[bytes, Found] | None = None
        update_wrapper(self, ask)

    def __call__(self, code: bytes) -> Found:
        last = self.last
        if last is None or last[0] is not code:
            last = self.last = (code, self.ask(code))
        return last[1]


@dataclass(frozen=True, slots=True)
class Functions:
    """The outermost functions and methods of a text: where each begins and ends."""

    text: bytes
    starts: tuple[int, ...]
    ends: tuple[int, ...]

    def holding(self, places: Iterable[int]) -> Iterator[bytes]:
        """The functions around some places of the code, and all the rest for those outside."""
        asked = set[int]()
        for place in places:
            at = bisect_right(self.starts, place + 1) - 1
            if at >= 0 and place + 1 >= self.ends[at]:
                at = -1
            if at not in asked:
                asked.add(at)
                yield self.text[self.starts[at] : self.ends[at]] if at >= 0 else self.rest()

    def rest(self) -> bytes:
        """The code outside of all functions, that of classes included."""
        parts = zip((0, *self.ends), (*self.starts, len(self.text)), strict=True)
        return b"".join(self.text[start:end] for start, end in parts)


@OfLast
def functions_of(code: bytes) -> Functions:
    """Nested functions belong to the one around them, decorators to the one below them."""
    text, end = b"\n" + code, 0
    starts: list[int] = []
    ends: list[int] = []
    while match := DEFINITION.search(text, end):
        starts.append(decorated(text, end, match))
        end = end_of(text, match)
        ends.append(end)
    return Functions(text, tuple(starts), tuple(ends))


def blocks_around(code: bytes, head: re.Pattern[bytes], places: Iterable[int]) -> Iterator[bytes]:
    """The outermost blocks that such a line begins and that hold one of these places."""
    text, end = b"\n" + code, 0
    left = sorted(set(places), reverse=True)
    while left and (match := head.search(text, end)):
        start, end = match.start(), end_of(text, match)
        while left and left[-1] + 1 < start:
            left.pop()
        if left and left[-1] + 1 < end:
            yield text[start:end]
        while left and left[-1] + 1 < end:
            left.pop()


def decorated(text: bytes, begin: int, match: re.Match[bytes]) -> int:
    """Where the decorators of a definition begin, if there are any behind `begin`."""
    start, indent = match.start(), match[1]
    head = b"\n" + indent + b"@"
    while (place := text.rfind(head, begin, start)) >= 0:
        if behind(len(indent)).search(text, place + len(head), start):
            break
        start = place
    return start


def end_of(text: bytes, match: re.Match[bytes]) -> int:
    """Where the block ends that a matched line begins."""
    begin, place, opened = match.start(), match.end(), 0
    pattern = behind(len(match[1]))
    while after := pattern.search(text, place):
        end, place = after.start(), after.end()
        if STARTING.match(text, place - 1):
            return end
        opened += depth(text, begin, end)
        begin = end
        if opened <= 0 and text[end - 1 : end] != b"\\":
            return end
    return len(text)


def depth(text: bytes, start: int, end: int) -> int:
    """How many brackets are opened between two places and not closed there."""
    opened = sum(text.count(bracket, start, end) for bracket in (b"(", b"[", b"{"))
    return opened - sum(text.count(bracket, start, end) for bracket in (b")", b"]", b"}"))


@lru_cache(maxsize=64)
def behind(indent: int) -> re.Pattern[bytes]:
    """A line that no longer belongs to a block whose first line is indented so far."""
    return re.compile(rb"\n(?![ \t]{%d})[ \t]*[^\s)\]}\\]" % (indent + 1))
