"""Decides from a file's bytes which rules can fire in it, and never rules one out wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from oomlint.rule import Rule

if TYPE_CHECKING:
    from ahocorasick_rs import BytesAhoCorasick

CODING = re.compile(rb"coding[:=]\s*([-\w.]+)")
# Encodings in which ASCII words are ASCII bytes; for any other the gate stays open.
TRANSPARENT = re.compile(
    rb"utf-?8(-sig)?|ascii|us-ascii|latin.*|iso-?8859.*|cp\d+|windows.*|euc.*|koi8.*|gb\w*|big5.*|mac.*",
    re.IGNORECASE,
)


# Comments and strings, in the order in which Python reads them; loops are unrolled for speed.
TEXTS = re.compile(
    rb"#[^\r\n]*"
    rb"|'''[^'\\]*(?:(?:\\.|''?(?!'))[^'\\]*)*'''"
    rb'|"""[^"\\]*(?:(?:\\.|""?(?!"))[^"\\]*)*"""'
    rb"|'[^\\'\r\n]*(?:\\.[^\\'\r\n]*)*'"
    rb'|"[^\\"\r\n]*(?:\\.[^\\"\r\n]*)*"',
    re.DOTALL,
)


@lru_cache(maxsize=64)
def any_word(words: tuple[str, ...]) -> re.Pattern[bytes]:
    if not "".join(words).isascii():
        # How it is written depends on the encoding, which nobody has asked for yet.
        return re.compile(b"")
    return re.compile(rb"\b(" + "|".join(words).encode() + rb")\b")


def uses_taught(data: bytes, words: tuple[str, ...]) -> bool:
    """Whether a file uses what its settings teach, which stands for the words of any rule."""
    return bool(words) and any_word(words).search(data) is not None


# Words that half of all files hold, and a hundred times: alone they are found at their first.
COMMON = frozenset((b"torch", b"self.", b"for ", b" for ", b"True", b"False", b"/"))


class Gate:
    """The rules of one selection, asked file by file.

    One pass of an automaton over a file's bytes finds the words of all rules that it holds, as
    bits of one number. Rules are bits of another one.
    """

    def __init__(self, rules: tuple[type[Rule], ...]) -> None:
        self.rules = rules
        self.bits: dict[bytes, int] = {}
        # The words of each group, and the rules that need one of them.
        self.tokens = self.needing([rule.tokens for rule in rules])
        self.texts = self.needing([(rule.texts,) if rule.texts else () for rule in rules])
        self.common = [(word, bit) for word, bit in self.bits.items() if word in COMMON]
        others = tuple(word for word in self.bits if word not in COMMON)
        self.by_place = [self.bits[word] for word in others]
        self.automaton = automaton_of(others)

    def needing(self, of_rules: list[tuple[tuple[str, ...], ...]]) -> list[tuple[int, int]]:
        found: dict[int, int] = {}
        for place, groups in enumerate(of_rules):
            for group in groups:
                words = self.any_of(group)
                found[words] = found.get(words, 0) | 1 << place
        return list(found.items())

    def any_of(self, words: Iterable[str]) -> int:
        """The bits of some words."""
        found = 0
        for word in words:
            found |= self.bits.setdefault(word.encode(), 1 << len(self.bits))
        return found

    def open_rules(self, data: bytes) -> tuple[type[Rule], ...]:
        coding = CODING.search(data, 0, 400)
        if coding and not TRANSPARENT.fullmatch(coding[1].replace(b"_", b"-")):
            return self.rules
        said = self.words_in(data)
        closed = missing(said, self.tokens) | missing(said, self.texts)
        if closed == (1 << len(self.rules)) - 1:
            return ()
        # Half of what is left only talks about training, in docstrings and comments.
        code = TEXTS.sub(b'""', data)
        if b"\r" in code:
            code = code.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        closed |= missing(self.words_in(code), self.tokens)
        return tuple(
            rule
            for place, rule in enumerate(self.rules)
            if not closed >> place & 1
            and (rule.token_pattern is None or rule.token_pattern.search(code))
        )

    def words_in(self, data: bytes) -> int:
        found, by_place = 0, self.by_place
        for word, bit in self.common:
            if word in data:
                found |= bit
        if self.automaton is None:
            return found
        for place, _, _ in self.automaton.find_matches_as_indexes(data, overlapping=True):
            found |= by_place[place]
        return found


def missing(words: int, groups: list[tuple[int, int]]) -> int:
    """The rules that need a word of a group of which there is none."""
    closed = 0
    for group, rules in groups:
        if not words & group:
            closed |= rules
    return closed


def automaton_of(words: tuple[bytes, ...]) -> BytesAhoCorasick | None:
    if not words:
        return None
    from ahocorasick_rs import BytesAhoCorasick, Implementation

    return BytesAhoCorasick(words, implementation=Implementation.DFA)


def missing_words(rule: type[Rule], data: bytes) -> tuple[tuple[str, ...], ...]:
    """The groups of which a file holds no word, so that this rule is not asked about it.

    A group that stands only in comments and strings is missing; an empty one stands for a pattern.
    """
    if rule in Gate((rule,)).open_rules(data):
        return ()
    code = TEXTS.sub(b'""', data)
    missing = [group for group in rule.tokens if not any(w.encode() in code for w in group)]
    if rule.texts and not any(word.encode() in data for word in rule.texts):
        missing.append(rule.texts)
    return tuple(missing) or ((),)
