"""What an editor shows where the pointer rests: the pages of the rules that speak there."""

from __future__ import annotations

from collections.abc import Sequence

from lsprotocol import types

from oomlint.lsp.diagnostics import SOURCE
from oomlint.lsp.documents import Document
from oomlint.rule import PREFIX
from oomlint.suppressions import IGNORE, NOQA, SELECTOR, WHOLE_FILE


def code_at(document: Document, position: types.Position) -> tuple[str, types.Range] | None:
    """The code or name at a position inside a comment that silences, and its place."""
    source = document.source
    if position.line >= len(source.line_starts):
        return None
    start = source.line_starts[position.line]
    column = document.offset(position) - start
    line = source.line(position.line + 1)
    comments = [
        match.span() for kind in (NOQA, IGNORE, WHOLE_FILE) for match in kind.finditer(line)
    ]
    if not any(first <= column <= last for first, last in comments):
        return None
    for match in SELECTOR.finditer(line):
        if match.start() <= column <= match.end():
            return match.group(), document.range(start + match.start(), start + match.end())
    return None


def findings_at(
    known: Sequence[types.Diagnostic], position: types.Position
) -> list[types.Diagnostic]:
    """Our diagnostics at a position, the narrowest first."""
    found = [
        item
        for item in known
        if item.source == SOURCE and item.range.start <= position <= item.range.end
    ]
    return sorted(found, key=lambda item: size(item.range))


def size(place: types.Range) -> tuple[int, int]:
    return place.end.line - place.start.line, place.end.character - place.start.character


def hover_of(text: str, place: types.Range) -> types.Hover:
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), place)


def unknown_rule(code: str) -> str | None:
    """What to say of a code without a rule; nothing of those of other linters."""
    return f"`{code}`: oomlint has no such rule." if code.startswith(PREFIX) else None
