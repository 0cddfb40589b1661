"""Rules that fire on single words, one for each way in which a rule can behave."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import ClassVar

from oomlint.analysis import Model
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity, Waypoint


class Word(Rule):
    """## What it does
    Flags a word.
    """

    code = "FAK000"
    name = "word"
    severity = Severity.WARNING
    tokens: ClassVar = (("no-file-holds-this-token",),)
    claims = (Claim.PEAK_FALLS,)
    pattern: ClassVar[str] = r"(?!)"
    content: ClassVar[str | None] = None
    safety: ClassVar[Safety] = Safety.SAFE

    def check(self, model: Model) -> Iterator[Finding]:
        for match in re.finditer(self.pattern, model.source.text):
            yield self.finding(model, match)

    def finding(self, model: Model, match: re.Match[str]) -> Finding:
        row, column = model.source.position(match.start())
        end_row, end_column = model.source.position(match.end())
        fix = None
        if self.content is not None:
            edits = self.edits(match, match.expand(self.content))
            fix = Fix(f"Fix {match[0].split()[0]}", edits, self.safety)
        return Finding(
            code=self.code,
            name=self.name,
            message=f"{match[0].split()[0]} is flagged",
            severity=self.severity,
            start=match.start(),
            end=match.end(),
            row=row,
            column=column,
            end_row=end_row,
            end_column=end_column,
            fix=fix,
            path=(
                Waypoint("starts", 1, 1, 1, 2),
                Waypoint("ends", row, column, end_row, end_column),
            ),
        )

    def edits(self, match: re.Match[str], content: str) -> tuple[Edit, ...]:
        return (Edit(match.start(), match.end(), content),)


class Kept(Word):
    code, name, severity = "FAK101", "kept-value", Severity.ERROR
    tokens: ClassVar = (("kept",),)
    pattern = r"kept \+= (\w+)\b(?!\.)"
    content = r"kept += \1.detach()"


class Wrong(Word):
    code, name = "FAK102", "wrong-number"
    tokens: ClassVar = (("wrong",),)
    pattern, content, safety = r"\bwrong\b", "right", Safety.UNSAFE


class Broken(Word):
    code, name = "FAK103", "broken-fix"
    tokens: ClassVar = (("broken",),)
    pattern, content = r"\bbroken\b", "("


class Imported(Word):
    code, name = "FAK104", "missing-import"
    tokens: ClassVar = (("use_it",),)
    pattern, content = r"\buse_it\b", "tool.it"

    def edits(self, match: re.Match[str], content: str) -> tuple[Edit, ...]:
        return Edit(0, 0, "import tool\n"), Edit(match.start(), match.end(), content)


class Fatal(Word):
    code, name = "FAK105", "fatal-file"
    tokens: ClassVar = (("fatal_word", "sleeping_word"),)

    def check(self, model: Model) -> Iterator[Finding]:
        if "fatal_word" in model.source.text:
            os._exit(9)
        if "sleeping_word" in model.source.text:
            time.sleep(60)
        yield from ()


class Raising(Word):
    code, name = "FAK106", "raising-rule"
    tokens: ClassVar = (("raising_word",),)

    def check(self, model: Model) -> Iterator[Finding]:
        if "raising_word" in model.source.text:
            raise ValueError("a fault\nin the rule")
        yield from ()


class Endless(Word):
    code, name = "FAK107", "endless-fix"
    tokens: ClassVar = (("grow",),)
    pattern, content = r"\bgrow\b", "grow, grow"


class Depends(Word):
    """## What it does
    Flags `asks_other` while the file `other.py` beside it holds `BAD`.
    """

    code, name = "FAK108", "bad-neighbour"
    tokens: ClassVar = (("asks_other",),)
    pattern = r"asks_other"

    def check(self, model: Model) -> Iterator[Finding]:
        other = model.source.path.parent / "other.py"
        model.project.dependencies.add(other)
        if other.is_file() and "BAD" in other.read_text():
            yield from super().check(model)


class Called(Word):
    """## What it does
    Flags `asks_callers` while any file of the project holds `CALLS`.
    """

    code, name = "FAK109", "bad-caller"
    tokens: ClassVar = (("asks_callers",),)
    pattern = r"asks_callers"

    def check(self, model: Model) -> Iterator[Finding]:
        model.project.asked_callers = True
        texts = [path.read_text() for path in model.project.root.rglob("*.py")]
        if any("CALLS" in text for text in texts):
            yield from super().check(model)


class Encoded(Word):
    code, name = "FAK110", "wide-fix"
    tokens: ClassVar = (("widen",),)
    pattern, content = r"\bwiden\b", "'\N{SNOWMAN}'"


class Nested(Word):
    """## What it does
    Flags `call(...)` as a whole, so that fixes of nested calls overlap.
    """

    code, name = "FAK111", "nested-call"
    tokens: ClassVar = (("call(",),)
    pattern, content = r"(?s)\bcall\((.*)\)", r"\1"


class Early(Word):
    code, name, preview = "FAK201", "early-rule", True
    tokens: ClassVar = (("early",),)
    pattern = r"\bearly\b"


class Hint(Word):
    code, name, severity, default = "FAK901", "mere-hint", Severity.ADVICE, False
    tokens: ClassVar = (("hint",),)
    pattern = r"\bhint\b"
