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


class Groups:
    """Groups of words, of which some rules need one each; `rules` are those that need any.

    One pass of an automaton over a text finds the words that it holds, as bits of one number.
    Rules are bits of another one, by their places.
    """

    def __init__(self, of_rules: Iterable[Iterable[tuple[str, ...]]]) -> None:
        self.bits: dict[bytes, int] = {}
        # The words of each group, and the rules that need one of them.
        self.needed: dict[int, int] = {}
        for place, groups in enumerate(of_rules):
            for group in groups:
                words = self.any_of(group)
                self.needed[words] = self.needed.get(words, 0) | 1 << place
        self.rules = 0
        for rules in self.needed.values():
            self.rules |= rules
        self.common = [(word, bit) for word, bit in self.bits.items() if word in COMMON]
        others = tuple(word for word in self.bits if word not in COMMON)
        self.by_place = [self.bits[word] for word in others]
        self.automaton = automaton_of(others)

    def any_of(self, words: Iterable[str]) -> int:
        """The bits of some words."""
        found = 0
        for word in words:
            found |= self.bits.setdefault(word.encode(), 1 << len(self.bits))
        return found

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

    def closed_by(self, data: bytes) -> int:
        """The rules that need a word of a group of which a text has none."""
        words, closed = self.words_in(data), 0
        for group, rules in self.needed.items():
            if not words & group:
                closed |= rules
        return closed


class Gate:
    """The rules of one selection, asked file by file."""

    def __init__(self, rules: tuple[type[Rule], ...]) -> None:
        self.rules = rules
        self.by_bit = [(1 << place, rule) for place, rule in enumerate(rules)]
        self.tokens = Groups(rule.tokens for rule in rules)
        self.texts = Groups((rule.texts,) if rule.texts else () for rule in rules)

    def open_rules(self, data: bytes) -> tuple[type[Rule], ...]:
        coding = CODING.search(data, 0, 400)
        if coding and not TRANSPARENT.fullmatch(coding[1].replace(b"_", b"-")):
            return self.rules
        closed = self.tokens.closed_by(data)
        if self.texts.rules & ~closed:
            closed |= self.texts.closed_by(data)
        if closed == (1 << len(self.rules)) - 1:
            return ()
        # Half of the files with the words only talk about training, in docstrings and comments.
        code = TEXTS.sub(b'""', data)
        if b"\r" in code:
            code = code.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        closed |= self.tokens.closed_by(code)
        return tuple(
            rule
            for bit, rule in self.by_bit
            if not closed & bit and (rule.token_pattern is None or rule.token_pattern.search(code))
        )


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
