"""Comments that silence what is not found: where they stand, and the text without them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from oomlint.rule import Edit, Finding, Fix, Rule, Safety
from oomlint.source import Source
from oomlint.suppressions import Directive, Suppressions, read_suppressions

# What a file must hold for such a comment to be worth a look.
NAMING = re.compile(rb"#\s*(?:oomlint\s*:|noqa\s*:[^\r\n#]*[A-Z]{3}\d{3})", re.IGNORECASE)


def unused(
    source: Source, findings: Iterable[Finding], asked: Mapping[str, str], rule: type[Rule]
) -> Iterator[Finding]:
    """Findings of `rule` for comments that silence none of `findings`, of all before they were.

    `asked` has the rules that could have been found, each code under itself and under its name;
    others may be silenced for another run.
    """
    found = read_suppressions(source)
    findings = tuple(findings)
    for directive in found.directives:
        needed = silenced(found, directive, findings)
        dead = [n for n in directive.named if n[0] in asked and asked[n[0]] not in needed]
        dead = [named for named in dead if asked[named[0]] != rule.code]
        if dead:
            yield finding(source, directive, dead, rule)


def silenced(
    found: Suppressions, directive: Directive, findings: Iterable[Finding]
) -> Collection[str]:
    return {item.code for item in findings if directive.covers(found.rows_of(item))}


def finding(
    source: Source, directive: Directive, dead: list[tuple[str, int, int]], rule: type[Rule]
) -> Finding:
    shown = " and ".join(f"`{text}`" for text, _, _ in dead)
    verb = "is" if len(dead) == 1 else "are"
    end = directive.start + len(source.text[directive.start : directive.end].rstrip())
    row, column = source.position(directive.start)
    end_row, end_column = source.position(end)
    whole = len(dead) == len(directive.named)
    title = "Remove the comment" if whole else f"Remove {shown} from the comment"
    edit = removal(source, directive) if whole else without(directive, dead)
    return Finding(
        code=rule.code,
        name=rule.name,
        message=f"{shown} {verb} silenced here and not found: the comment would hide a new one",
        severity=rule.severity,
        start=directive.start,
        end=end,
        row=row,
        column=column,
        end_row=end_row,
        end_column=end_column,
        fix=Fix(title, (edit,), Safety.SAFE),
    )


def without(directive: Directive, dead: Collection[tuple[str, int, int]]) -> Edit:
    kept = [text for text, *place in directive.named if (text, *place) not in dead]
    return Edit(directive.named[0][1], directive.named[-1][2], ", ".join(kept))


def removal(source: Source, directive: Directive) -> Edit:
    """Takes the comment out, with its line when nothing else stands there."""
    first = source.line_starts[directive.row - 1]
    line = source.line(directive.row)
    if directive.end < first + len(line):
        return Edit(directive.start, directive.end, "")
    before = line[: directive.start - first].rstrip()
    if before or directive.row == len(source.line_starts):
        return Edit(first + len(before), directive.end, "")
    return Edit(first, source.line_starts[directive.row], "")
