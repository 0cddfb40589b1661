"""What stands above a finding in a file that can be run: measure its fix, or what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lsprotocol import types

from oomlint.lsp.documents import Document
from oomlint.rule import Finding

MEASURE = "oomlint.measure"

MAIN_GUARD = re.compile(r"if\s+__name__\s*==\s*['\"]__main__['\"]")
DEFINITION = re.compile(r"(?:async\s+)?def\s+(\w+)|class\b|@")
CALL = re.compile(r"(?:[\w, ]+=\s*)?(\w+)\(")
TRAINS = re.compile(r"\.(?:backward|step)\(")
# What continues a definition in the first column: the end of its signature.
CLOSING = re.compile(r"[)\]}]")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `oomlint verify` said of one finding, and of which text of its file."""

    code: str
    row: int
    verdict: str
    reason: str
    text: str = ""

    @property
    def sentence(self) -> str:
        return f"{self.code} {self.verdict}: {self.reason}"


# Outcomes by the code of the finding and what its line says: they move with it.
Outcomes = Mapping[tuple[str, str], Outcome]


def is_runnable(text: str) -> bool:
    """Whether running the file trains: it has a main guard, or it trains at its top level.

    By lines, for a text that is being typed has no tree. What is wrongly called runnable is only
    offered to be run.
    """
    functions: set[str] = set()
    calls: set[str] = set()
    is_outside = True
    for line in text.splitlines():
        if line[:1].strip() and not CLOSING.match(line):
            if MAIN_GUARD.match(line):
                return True
            definition = DEFINITION.match(line)
            is_outside = definition is None and not line.startswith("#")
            if definition is not None and definition[1]:
                functions.add(definition[1])
            call = CALL.match(line) if is_outside else None
            if call is not None:
                calls.add(call[1])
        if is_outside and TRAINS.search(line):
            return True
    return not functions.isdisjoint(calls)


def line_key(document: Document, code: str, row: int) -> tuple[str, str]:
    return code, document.source.line(row).strip()


def lenses(
    document: Document, findings: Sequence[Finding], outcomes: Outcomes, is_measuring: bool
) -> Iterator[types.CodeLens]:
    """One lens for each line on which findings with fixes start."""
    by_row: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.fix is not None:
            by_row.setdefault(finding.row, []).append(finding)
    for row, found in by_row.items():
        start = document.client_position(row, found[0].column)
        end = document.client_position(row, found[0].column + 1)
        known = [outcomes.get(line_key(document, item.code, row)) for item in found]
        title = title_of(document, [item for item in known if item is not None], len(found))
        if is_measuring:
            title = "Measuring …"
        command = types.Command(title, MEASURE, arguments=[{"uri": document.uri, "line": row - 1}])
        yield types.CodeLens(types.Range(start, end), command)


def title_of(document: Document, known: Sequence[Outcome], count: int) -> str:
    if not known:
        return "Measure this fix" if count == 1 else f"Measure these {count} fixes"
    said = "; ".join(dict.fromkeys(item.sentence for item in known))
    if any(item.text != document.source.text for item in known):
        return f"{said} (measured before the last changes)"
    return said
