"""What an editor offers at a place: a quick fix a finding, silencing it, all safe fixes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from lsprotocol import types

from oomlint.lsp.diagnostics import SOURCE
from oomlint.lsp.documents import Document
from oomlint.source import Source

FIX_ALL = "source.fixAll.oomlint"
FIX_ALL_TITLE = "oomlint: Fix all auto-fixable problems"


def wanted(kind: str, only: Sequence[str] | None) -> bool:
    """Whether the client asked for this kind; `source` includes `source.fixAll`."""
    return only is None or any(kind == asked or kind.startswith(f"{asked}.") for asked in only)


def quick_fixes(
    document: Document,
    known: Sequence[types.Diagnostic],
    context: Sequence[types.Diagnostic],
    place: types.Range,
    versioned: bool,
) -> Iterator[types.CodeAction]:
    """The remedies of the findings that the client names or that lie at `place`.

    `known` belongs to this version of the document, `context` may be older.
    """
    ours = [item for item in context if item.source == SOURCE]
    named = [(item.code, span(item.range)) for item in ours]
    # Some editors hand ranges back in units of their own, but `data` always as they got it.
    carried = [item.data for item in ours if item.data]
    at_place = [
        (item, item.data)
        for item in known
        if isinstance(item.data, dict)
        and (
            item.data in carried
            or (item.code, span(item.range)) in named
            or overlap(item.range, place)
        )
    ]
    for item, data in at_place:
        edits, safe = data["edits"], data["is_preferred"]
        if edits:
            title = data["title"] if safe else f"{data['title']} (unsafe)"
            yield quick_fix(
                document, item, f"oomlint ({item.code}): {title}", edits, safe, versioned
            )
    for item, data in at_place:
        title = f"oomlint ({item.code}): Ignore on this line"
        yield quick_fix(document, item, title, [data["noqa_edit"]], False, versioned)


def span(place: types.Range) -> tuple[int, int, int, int]:
    return place.start.line, place.start.character, place.end.line, place.end.character


def overlap(one: types.Range, other: types.Range) -> bool:
    """Whether two ranges share a position; an empty range is a cursor, and touching counts."""
    return one.start <= other.end and other.start <= one.end


def quick_fix(
    document: Document,
    item: types.Diagnostic,
    title: str,
    edits: Sequence[dict[str, object]],
    preferred: bool,
    versioned: bool,
) -> types.CodeAction:
    bare = types.Diagnostic(
        item.range, item.message, item.severity, item.code, item.code_description, item.source
    )
    return types.CodeAction(
        title,
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[bare],
        is_preferred=preferred or None,
        edit=workspace_edit(document, [text_edit(edit) for edit in edits], versioned),
    )


def text_edit(edit: dict[str, object]) -> types.TextEdit:
    place = edit["range"]
    assert isinstance(place, dict)
    start, end = types.Position(**place["start"]), types.Position(**place["end"])
    return types.TextEdit(types.Range(start, end), str(edit["newText"]))


def whole_edit(document: Document, fixed: str, versioned: bool) -> types.WorkspaceEdit:
    """The change from the document to `fixed`, as edits of the lines that differ."""
    before = keep_lines(document.source)
    after = keep_lines(Source(document.source.path, fixed))
    starts = (*document.source.line_starts, len(document.source.text))
    edits = []
    for tag, first, last, new_first, new_last in SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        if tag != "equal":
            place = document.range(starts[first], starts[last])
            edits.append(types.TextEdit(place, "".join(after[new_first:new_last])))
    return workspace_edit(document, edits, versioned)


def keep_lines(source: Source) -> list[str]:
    """The lines with their ends, split where an editor splits them."""
    starts = (*source.line_starts, len(source.text))
    return [source.text[start:end] for start, end in pairwise(starts)]


def workspace_edit(
    document: Document, edits: list[types.TextEdit], versioned: bool
) -> types.WorkspaceEdit:
    if not versioned:
        return types.WorkspaceEdit(changes={document.uri: edits})
    identifier = types.OptionalVersionedTextDocumentIdentifier(document.uri, document.version)
    change = types.TextDocumentEdit(identifier, [*edits])
    return types.WorkspaceEdit(document_changes=[change])
