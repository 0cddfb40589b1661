"""What an editor offers at a place: a quick fix a finding, silencing it, all safe fixes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import pairwise

from lsprotocol import types

from oomlint.lsp.diagnostics import SOURCE, Text
from oomlint.lsp.documents import Document
from oomlint.source import Source

FIX_ALL = "source.fixAll.oomlint"
# Of all cells at once: clients ask for `source` actions cell by cell, at the same time.
FIX_ALL_CELLS = "notebook.source.fixAll.oomlint"
Changes = dict[str, Sequence[types.TextEdit]]

FIX_ALL_TITLE = "oomlint: Fix all auto-fixable problems"


def wanted(kind: str, only: Sequence[str] | None) -> bool:
    """Whether the client asked for this kind; `source` includes `source.fixAll`."""
    return only is None or any(kind == asked or kind.startswith(f"{asked}.") for asked in only)


def quick_fixes(
    document: Text,
    uri: str,
    known: Sequence[types.Diagnostic],
    context: Sequence[types.Diagnostic],
    place: types.Range,
    versioned: bool,
) -> Iterator[types.CodeAction]:
    """The remedies of the findings that the client names or that lie at `place` of `uri`.

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
            changes = by_uri(uri, edits)
            title = f"oomlint ({item.code}): {title}"
            yield quick_fix(document, item, title, changes, safe, versioned)
    for item, data in at_place:
        if data["noqa_edit"]:
            changes = by_uri(uri, [data["noqa_edit"]])
            title = f"oomlint ({item.code}): Ignore on this line"
            yield quick_fix(document, item, title, changes, False, versioned)


def by_uri(uri: str, edits: Sequence[dict[str, object]]) -> Changes:
    changes: dict[str, list[types.TextEdit]] = {}
    for edit in edits:
        changes.setdefault(str(edit.get("uri", uri)), []).append(text_edit(edit))
    return {**changes}


def span(place: types.Range) -> tuple[int, int, int, int]:
    return place.start.line, place.start.character, place.end.line, place.end.character


def overlap(one: types.Range, other: types.Range) -> bool:
    """Whether two ranges share a position; an empty range is a cursor, and touching counts."""
    return one.start <= other.end and other.start <= one.end


def quick_fix(
    document: Text,
    item: types.Diagnostic,
    title: str,
    changes: Changes,
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
        edit=workspace_edit(document, changes, versioned),
    )


def text_edit(edit: dict[str, object]) -> types.TextEdit:
    place = edit["range"]
    assert isinstance(place, dict)
    start, end = types.Position(**place["start"]), types.Position(**place["end"])
    return types.TextEdit(types.Range(start, end), str(edit["newText"]))


def whole_edit(document: Text, fixed: str, versioned: bool) -> types.WorkspaceEdit:
    """The change from the document to the body `fixed`, as edits of the lines that differ."""
    after = document.parts_after(fixed)
    changes = {part.uri: line_edits(part, text) for part, text in after}
    return workspace_edit(
        document, {uri: edits for uri, edits in changes.items() if edits}, versioned
    )


def line_edits(document: Document, fixed: str) -> list[types.TextEdit]:
    if document.source.text == fixed:
        return []
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
    return edits


def keep_lines(source: Source) -> list[str]:
    """The lines with their ends, split where an editor splits them."""
    starts = (*source.line_starts, len(source.text))
    return [source.text[start:end] for start, end in pairwise(starts)]


def workspace_edit(document: Text, changes: Changes, versioned: bool) -> types.WorkspaceEdit:
    if not versioned:
        return types.WorkspaceEdit(changes=changes)
    versions = {part.uri: part.version for part in document.parts}
    return types.WorkspaceEdit(
        document_changes=[
            types.TextDocumentEdit(
                types.OptionalVersionedTextDocumentIdentifier(uri, versions.get(uri)), [*edits]
            )
            for uri, edits in changes.items()
        ]
    )
