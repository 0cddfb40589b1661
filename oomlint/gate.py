"""Decides from a file's bytes which rules can fire in it, and never rules one out wrongly."""

from __future__ import annotations

import re
from collections import Counter
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


class Gate:
    """The rules of one selection, asked file by file.

    One pass of an automaton over a file's bytes finds every word of every rule that it holds, as
    bits of one number.
    """

    def __init__(self, rules: tuple[type[Rule], ...]) -> None:
        self.bits: dict[bytes, int] = {}
        needed = {rule: [self.any_of(group) for group in rule.tokens] for rule in rules}
        shared = Counter(group for groups in needed.values() for group in groups)
        # What rules out most rules is asked first.
        self.rules = [
            (rule, sorted(groups, key=lambda group: -shared[group]), self.any_of(rule.texts))
            for rule, groups in needed.items()
        ]
        self.by_place = list(self.bits.values())
        self.automaton = automaton_of(tuple(self.bits))

    def any_of(self, words: Iterable[str]) -> int:
        """The bits of some words; 0 for none."""
        found = 0
        for word in words:
            found |= self.bits.setdefault(word.encode(), 1 << len(self.bits))
        return found

    def open_rules(self, data: bytes) -> tuple[type[Rule], ...]:
        coding = CODING.search(data, 0, 400)
        if coding and not TRANSPARENT.fullmatch(coding[1].replace(b"_", b"-")):
            return tuple(rule for rule, _, _ in self.rules)
        said = self.words_in(data)
        spoken = [
            (rule, groups)
            for rule, groups, texts in self.rules
            if all(said & group for group in groups) and (not texts or said & texts)
        ]
        if not spoken:
            return ()
        # Half of what is left only talks about training, in docstrings and comments.
        code = TEXTS.sub(b'""', data)
        written = self.words_in(code)
        return tuple(
            rule
            for rule, groups in spoken
            if all(written & group for group in groups)
            and (rule.token_pattern is None or rule.token_pattern.search(code))
        )

    def words_in(self, data: bytes) -> int:
        found, by_place = 0, self.by_place
        if self.automaton is None:
            return found
        for place, _, _ in self.automaton.find_matches_as_indexes(data, overlapping=True):
            found |= by_place[place]
        return found


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
