"""The result of a check as an editor shows it: diagnostics that carry their own remedies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.workspace import PositionCodec

from oomlint.lsp.documents import Document, document_uri
from oomlint.lsp.notebooks import NotebookDocument
from oomlint.rule import Edit, Finding, Safety, Severity, Waypoint
from oomlint.source import Source, Unreadable, read
from oomlint.suppressions import ignore_edit, noqa_row

if TYPE_CHECKING:
    from oomlint.linter import FileResult

Text = Document | NotebookDocument

SOURCE = "oomlint"
SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.ADVICE: types.DiagnosticSeverity.Information,
}


# What the names of rules about old spellings begin with.
DEPRECATED = "deprecated-"


@dataclass(frozen=True, slots=True)
class Abilities:
    """What of a diagnostic the client can show."""

    # The path that proves a finding.
    related: bool = False
    tags: frozenset[types.DiagnosticTag] = frozenset()


def diagnostics(
    document: Text, result: FileResult, abilities: Abilities
) -> dict[str, list[types.Diagnostic]]:
    """One diagnostic a finding, and the syntax error, by the URI that each is published for."""
    found: dict[str, list[types.Diagnostic]] = {part.uri: [] for part in document.parts}
    problem = result.problem
    if problem is not None and problem.row:
        place = document.spot(problem.row, problem.column, problem.row, problem.column + 1)
        item = types.Diagnostic(
            place.range,
            problem.message,
            severity=types.DiagnosticSeverity.Error,
            code="invalid-syntax",
            source=SOURCE,
        )
        found.setdefault(place.uri, []).append(item)
    for finding in result.findings:
        place = document.place(finding.start, finding.end)
        item = diagnostic(document, place, finding, abilities)
        found.setdefault(place.uri, []).append(item)
    return found


def diagnostic(
    document: Text, place: types.Location, finding: Finding, abilities: Abilities
) -> types.Diagnostic:
    help_line = f"\n\nhelp: {finding.fix.title}" if finding.fix else ""
    return types.Diagnostic(
        place.range,
        finding.message + help_line,
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        code_description=types.CodeDescription(finding.url) if finding.url else None,
        source=SOURCE,
        tags=[tag for tag in tags(finding) if tag in abilities.tags] or None,
        related_information=witness(document, finding.path) if abilities.related else None,
        data=remedies(document, place.uri, finding),
    )


def tags(finding: Finding) -> list[types.DiagnosticTag]:
    """Faded where the remedy is to delete what is flagged, struck out where it is an old name."""
    edits = finding.fix.edits if finding.fix else ()
    deleted = bool(edits) and not any(edit.content.strip() for edit in edits)
    if deleted and any(e.start <= finding.start and finding.end <= e.end for e in edits):
        return [types.DiagnosticTag.Unnecessary]
    return [types.DiagnosticTag.Deprecated] if finding.name.startswith(DEPRECATED) else []


def remedies(document: Text, uri: str, finding: Finding) -> dict[str, Any]:
    """What a quick fix needs, as plain JSON: the client hands it back with its request.

    An edit says its document only where that is not the finding's own: another cell.
    """
    fix = finding.fix
    source = document.source
    silencing = ignore_edit(source, noqa_row(source, finding.row), [finding.code])
    edits = [wire_edit(document, uri, edit) for edit in fix.edits] if fix else []
    return {
        "code": finding.code,
        "title": fix.title if fix else None,
        # All of a fix or nothing.
        "edits": edits if all(edits) else [],
        "is_preferred": fix is not None and fix.safety is Safety.SAFE,
        "noqa_edit": wire_edit(document, uri, silencing),
    }


def wire_edit(document: Text, uri: str, edit: Edit) -> dict[str, Any] | None:
    """The edit in terms of the protocol; None where it cannot be made."""
    place = document.edit_at(edit)
    if place is None:
        return None
    start, end = place.range.start, place.range.end
    elsewhere = {} if place.uri == uri else {"uri": place.uri}
    return {
        "range": {
            "start": {"line": start.line, "character": start.character},
            "end": {"line": end.line, "character": end.character},
        },
        "newText": edit.content,
        **elsewhere,
    }


def witness(document: Text, path: tuple[Waypoint, ...]) -> list[types.DiagnosticRelatedInformation]:
    """The waypoints, each at its place in this document or in another file of the project."""
    places: dict[str, Text] = {"": document}
    for name in {point.filename for point in path} - {""}:
        places[name] = other_document(Path(name), document.codec)
    information = []
    for point in path:
        place = places[point.filename]
        location = place.spot(point.row, point.column, point.end_row, point.end_column)
        information.append(types.DiagnosticRelatedInformation(location, point.what))
    return information


def other_document(path: Path, codec: PositionCodec) -> Document:
    """A file that is on the path; when it cannot be read any more, a text of no lines."""
    try:
        source = read(path)
    except (Unreadable, OSError):
        source = Source(path, "")
    return Document(document_uri(path), None, source, codec)
