"""Decides from a file's bytes which rules can fire in it, and never rules one out wrongly."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache, reduce
from operator import itemgetter, or_
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


# What begins a comment or a string, or ends or continues one. Each is marked with a NUL, which no
# source holds: one byte is found ten times as fast as one of four.
MARKED = (b'"', b"'", b"#", b"\\")
ESCAPED = rb"\\(?:\0[\s\S]|[^\0])"
LONG = rb"Q\0Q\0Q[^\0]*(?:\0(?:" + ESCAPED + rb"|[^Q\\]|Q(?!\0Q\0Q))[^\0]*)*\0Q\0Q\0Q"
SHORT = rb"Q[^\0\n]*(?:\0(?:" + ESCAPED + rb"|[^Q\\])[^\0\n]*)*\0Q"
STRINGS = (form.replace(b"Q", quote) for form in (LONG, SHORT) for quote in (b"'", b'"'))
# Comments and strings in a text with marks, in the order in which Python reads them.
TEXTS = re.compile(rb"\0(?:#.*|" + b"|".join(STRINGS) + rb")")


def without_texts(data: bytes) -> bytes:
    """The code of a file: each string and comment as `""`, each end of a line as a line feed."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    if b"\0" in data:
        data = data.replace(b"\0", b" ")
    for byte in MARKED:
        data = data.replace(byte, b"\0" + byte)
    return TEXTS.sub(b'""', data).replace(b"\0", b"")


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


class Vocabulary:
    """The words of some rules, as bits of one number; one pass over a text finds the rarer ones."""

    def __init__(self, words: Iterable[str]) -> None:
        unique = dict.fromkeys(word.encode() for word in words)
        self.bits = {word: 1 << place for place, word in enumerate(unique)}
        rare = tuple(word for word in self.bits if word not in COMMON)
        self.by_place = [self.bits[word] for word in rare]
        self.common = reduce(or_, self.bits.values(), 0) & ~reduce(or_, self.by_place, 0)
        self.automaton = automaton_of(rare)

    def rare_in(self, data: bytes) -> int:
        if self.automaton is None:
            return 0
        found, by_place = 0, self.by_place
        matches = self.automaton.find_matches_as_indexes(data, overlapping=True)
        for place in set(map(itemgetter(0), matches)):
            found |= by_place[place]
        return found


# Words of which some rules need one: as bits, one by one, and the rules as bits of another number.
Group = tuple[int, tuple[tuple[int, bytes], ...], int]


def groups_of(
    vocabulary: Vocabulary, of_rules: Iterable[Iterable[tuple[str, ...]]]
) -> tuple[Group, ...]:
    """Each group of words once, those without a common word first."""
    rules: dict[tuple[str, ...], int] = {}
    for place, groups in enumerate(of_rules):
        for group in groups:
            rules[group] = rules.get(group, 0) | 1 << place
    found: list[Group] = []
    for group, needing in rules.items():
        words = tuple((vocabulary.bits[word], word) for word in map(str.encode, group))
        found.append((reduce(or_, (bit for bit, _ in words), 0), words, needing))
    return tuple(sorted(found, key=lambda group: bool(group[0] & vocabulary.common)))


def closed_by(
    groups: tuple[Group, ...], text: bytes, held: int, possible: int, closed: int
) -> tuple[int, int]:
    """The rules that need a word of a group of which a text has none, besides some closed ones.

    The text holds the words `held`, and of others only `possible` ones, which are returned as well,
    without those that were not found.
    """
    for bits, words, rules in groups:
        if held & bits or closed & rules == rules:
            continue
        if possible & bits:
            for bit, word in words:
                if not possible & bit:
                    continue
                if word in text:
                    held |= bit
                    break
                possible &= ~bit
        if not held & bits:
            closed |= rules
    return closed, possible


class Gate:
    """The rules of one selection, asked file by file."""

    def __init__(self, rules: tuple[type[Rule], ...]) -> None:
        self.rules = rules
        self.by_bit = [(1 << place, rule) for place, rule in enumerate(rules)]
        tokens = [rule.tokens for rule in rules]
        both = [(*rule.tokens, rule.texts) if rule.texts else rule.tokens for rule in rules]
        self.vocabulary = Vocabulary(word for groups in both for group in groups for word in group)
        self.of_code = groups_of(self.vocabulary, tokens)
        self.of_file = groups_of(self.vocabulary, both)

    def open_rules(self, data: bytes) -> tuple[type[Rule], ...]:
        coding = CODING.search(data, 0, 400)
        if coding and not TRANSPARENT.fullmatch(coding[1].replace(b"_", b"-")):
            return self.rules
        held = self.vocabulary.rare_in(data)
        possible = held | self.vocabulary.common
        closed, possible = closed_by(self.of_file, data, held, possible, 0)
        if closed == (1 << len(self.rules)) - 1:
            return ()
        # Half of the files with the words only talk about training, in docstrings and comments.
        code = without_texts(data)
        closed, _ = closed_by(self.of_code, code, 0, possible, closed)
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
    code = without_texts(data)
    missing = [group for group in rule.tokens if not any(w.encode() in code for w in group)]
    if rule.texts and not any(word.encode() in data for word in rule.texts):
        missing.append(rule.texts)
    return tuple(missing) or ((),)
