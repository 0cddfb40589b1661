"""Decides from a file's bytes which rules can fire in it, and never rules one out wrongly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from oomlint.rule import Rule

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


# Words as places in the list of all words: any one of them is enough.
Group = tuple[int, ...]


class Gate:
    """The rules of one selection, asked file by file.

    Looking for one word in all files of a large tree costs a tenth of a second or two: what rules
    out most rules is looked for first, and no word twice.
    """

    def __init__(self, rules: tuple[type[Rule], ...]) -> None:
        self.places: dict[bytes, int] = {}
        needed = {rule: [self.group(group) for group in rule.tokens] for rule in rules}
        shared = Counter(group for groups in needed.values() for group in groups)
        self.rules = [
            (rule, sorted(groups, key=lambda group: (-shared[group], len(group))))
            for rule, groups in needed.items()
        ]
        self.texts = {rule: self.group(rule.texts) for rule in rules if rule.texts}
        self.words = list(self.places)
        # A word is not there where a part of it is not.
        self.parts = [
            [place for part, place in self.places.items() if part in word and part != word]
            for word in self.words
        ]

    def group(self, words: Iterable[str]) -> Group:
        return tuple(self.places.setdefault(word.encode(), len(self.places)) for word in words)

    def open_rules(self, data: bytes) -> tuple[type[Rule], ...]:
        coding = CODING.search(data, 0, 400)
        if coding and not TRANSPARENT.fullmatch(coding[1].replace(b"_", b"-")):
            return tuple(rule for rule, _ in self.rules)
        said = Said(self, data)
        texts = self.texts
        spoken = [
            (rule, groups)
            for rule, groups in self.rules
            if said.all_of(groups) and (rule not in texts or said.any_of(texts[rule]))
        ]
        if not spoken:
            return ()
        # Half of what is left only talks about training, in docstrings and comments.
        code = TEXTS.sub(b'""', data)
        written = Said(self, code)
        return tuple(
            rule
            for rule, groups in spoken
            if written.all_of(groups)
            and (rule.token_pattern is None or rule.token_pattern.search(code))
        )


class Said:
    """Which of a gate's words one text holds, looked for when it matters."""

    def __init__(self, gate: Gate, data: bytes) -> None:
        self.gate, self.data = gate, data
        self.groups: dict[Group, bool] = {}
        self.absent: set[int] = set()
        self.present: set[int] = set()

    def all_of(self, groups: list[Group]) -> bool:
        known = self.groups
        for group in groups:
            answer = known.get(group)
            if answer is None:
                answer = known[group] = self.any_of(group)
            if not answer:
                return False
        return True

    def any_of(self, group: Group) -> bool:
        return any(self.holds(place) for place in group)

    def holds(self, place: int) -> bool:
        if place in self.present:
            return True
        if place in self.absent:
            return False
        for part in self.gate.parts[place]:
            if not self.holds(part):
                return False
        found = self.gate.words[place] in self.data
        (self.present if found else self.absent).add(place)
        return found


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
