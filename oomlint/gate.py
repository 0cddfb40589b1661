"""Decides from a file's bytes which rules can fire in it, and never rules one out wrongly."""

from __future__ import annotations

import re

from oomlint.rule import Rule

CODING = re.compile(rb"coding[:=]\s*([-\w.]+)")
# Encodings in which ASCII words are ASCII bytes; for any other the gate stays open.
TRANSPARENT = re.compile(
    rb"utf-?8(-sig)?|ascii|us-ascii|latin.*|iso-?8859.*|cp\d+|windows.*|euc.*|koi8.*|gb\w*|big5.*|mac.*",
    re.IGNORECASE,
)


# Comments and strings, in the order in which Python reads them.
TEXTS = re.compile(
    rb"#[^\r\n]*|'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\""
    rb"|'(?:\\.|[^\\'\r\n])*'|\"(?:\\.|[^\\\"\r\n])*\"",
    re.DOTALL,
)


class Gate:
    """The rules of one selection, asked file by file."""

    def __init__(self, rules: tuple[type[Rule], ...]) -> None:
        groups: dict[tuple[bytes, ...], int] = {}
        self.rules = [
            (rule, [groups.setdefault(words(group), len(groups)) for group in rule.tokens])
            for rule in rules
        ]
        self.groups = list(groups)
        self.texts = {rule: words(rule.texts) for rule in rules if rule.texts}

    def open_rules(self, data: bytes) -> tuple[type[Rule], ...]:
        coding = CODING.search(data[:400])
        if coding and not TRANSPARENT.fullmatch(coding[1].replace(b"_", b"-")):
            return tuple(rule for rule, _ in self.rules)
        spoken = {rule for rule in self.matching(data) if self.says(rule, data)}
        if not spoken:
            return ()
        # Half of what is left only talks about training, in docstrings and comments.
        code = TEXTS.sub(b'""', data)
        return tuple(
            rule
            for rule in self.matching(code)
            if rule in spoken and (rule.token_pattern is None or rule.token_pattern.search(code))
        )

    def says(self, rule: type[Rule], data: bytes) -> bool:
        texts = self.texts.get(rule)
        return texts is None or any(text in data for text in texts)

    def matching(self, data: bytes) -> tuple[type[Rule], ...]:
        answers: list[bool | None] = [None] * len(self.groups)
        found = []
        for rule, needed in self.rules:
            for index in needed:
                if answers[index] is None:
                    answers[index] = any(word in data for word in self.groups[index])
                if not answers[index]:
                    break
            else:
                found.append(rule)
        return tuple(found)


def words(group: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(word.encode("utf-8") for word in group)
