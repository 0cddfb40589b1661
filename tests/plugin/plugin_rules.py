"""Rules of a third party, plain enough to tell in advance where they fire and what they fix."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import ClassVar

from oomlint.analysis import Model
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity, Waypoint


class KeptValue(Rule):
    """## What it does
    Flags every `kept += value`.
    """

    code = "TST001"
    name = "kept-value"
    severity = Severity.ERROR
    tokens: ClassVar = (("kept",),)
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        for match in re.finditer(r"kept \+= (\w+)(?!\.)\b(?!\.)", model.source.text):
            (row, column), (end_row, end_column) = ends(model, match)
            yield Finding(
                code=self.code,
                name=self.name,
                message=f"{match[1]} is kept",
                severity=self.severity,
                start=match.start(),
                end=match.end(),
                row=row,
                column=column,
                end_row=end_row,
                end_column=end_column,
                fix=Fix("Detach it", (Edit(match.end(), match.end(), ".detach()"),), Safety.SAFE),
                path=(
                    Waypoint("the first line", 1, 1, 1, 2),
                    Waypoint("kept here", row, column, end_row, end_column),
                ),
            )


class WrongNumber(Rule):
    """## What it does
    Flags every `wrong`; prints when the text is `loud`, the process dies of `fatal(`, and
    `sleeps(` takes a minute.
    """

    code = "TST002"
    name = "wrong-number"
    severity = Severity.WARNING
    tokens: ClassVar = (("wrong", "fatal", "sleeps"),)
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        if "loud" in model.source.text:
            print("what a rule prints must not get between the messages of a server")
        if "fatal(" in model.source.text:
            os._exit(9)
        if "sleeps(" in model.source.text:
            time.sleep(60)
        for match in re.finditer(r"\bwrong\b", model.source.text):
            (row, column), (end_row, end_column) = ends(model, match)
            yield Finding(
                code=self.code,
                name=self.name,
                message="a wrong number",
                severity=self.severity,
                start=match.start(),
                end=match.end(),
                row=row,
                column=column,
                end_row=end_row,
                end_column=end_column,
                fix=Fix(
                    "Use the right one",
                    (Edit(match.start(), match.end(), "right"),),
                    Safety.UNSAFE,
                ),
            )


def ends(model: Model, match: re.Match[str]) -> tuple[tuple[int, int], tuple[int, int]]:
    return model.source.position(match.start()), model.source.position(match.end())
