"""The result of a check as an editor shows it: diagnostics that carry their own remedies."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.workspace import PositionCodec

from oomlint.lsp.documents import Document, document_uri
from oomlint.rule import Edit, Finding, Safety, Severity, Waypoint
from oomlint.source import Source, Unreadable, read
from oomlint.suppressions import ignore_edit, noqa_row

if TYPE_CHECKING:
    from oomlint.linter import FileResult

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
    document: Document, result: FileResult, abilities: Abilities
) -> list[types.Diagnostic]:
    """One diagnostic a finding, or the syntax error."""
    problem = result.problem
    if problem is not None and problem.row:
        start = document.client_position(problem.row, problem.column)
        end = document.client_position(problem.row, problem.column + 1)
        return [
            types.Diagnostic(
                types.Range(start, end),
                problem.message,
                severity=types.DiagnosticSeverity.Error,
                code="invalid-syntax",
                source=SOURCE,
            )
        ]
    return [diagnostic(document, finding, abilities) for finding in result.findings]


def diagnostic(document: Document, finding: Finding, abilities: Abilities) -> types.Diagnostic:
    help_line = f"\n\nhelp: {finding.fix.title}" if finding.fix else ""
    return types.Diagnostic(
        document.range(finding.start, finding.end),
        finding.message + help_line,
        severity=SEVERITIES[finding.severity],
        code=finding.code,
        code_description=types.CodeDescription(finding.url) if finding.url else None,
        source=SOURCE,
        tags=[tag for tag in tags(finding) if tag in abilities.tags] or None,
        related_information=witness(document, finding.path) if abilities.related else None,
        data=remedies(document, finding),
    )


def tags(finding: Finding) -> list[types.DiagnosticTag]:
    """Faded where the remedy is to delete what is flagged, struck out where it is an old name."""
    edits = finding.fix.edits if finding.fix else ()
    deleted = bool(edits) and not any(edit.content.strip() for edit in edits)
    if deleted and any(e.start <= finding.start and finding.end <= e.end for e in edits):
        return [types.DiagnosticTag.Unnecessary]
    return [types.DiagnosticTag.Deprecated] if finding.name.startswith(DEPRECATED) else []


def remedies(document: Document, finding: Finding) -> dict[str, Any]:
    """What a quick fix needs, as plain JSON: the client hands it back with its request."""
    fix = finding.fix
    source = document.source
    silencing = ignore_edit(source, noqa_row(source, finding.row), [finding.code])
    return {
        "code": finding.code,
        "title": fix.title if fix else None,
        "edits": [wire_edit(document, edit) for edit in fix.edits] if fix else [],
        "is_preferred": fix is not None and fix.safety is Safety.SAFE,
        "noqa_edit": wire_edit(document, silencing),
    }


def wire_edit(document: Document, edit: Edit) -> dict[str, Any]:
    start, end = document.position(edit.start), document.position(edit.end)
    return {
        "range": {
            "start": {"line": start.line, "character": start.character},
            "end": {"line": end.line, "character": end.character},
        },
        "newText": edit.content,
    }


def witness(
    document: Document, path: tuple[Waypoint, ...]
) -> list[types.DiagnosticRelatedInformation]:
    """The waypoints, each at its place in this document or in another file of the project."""
    places = {"": document}
    for name in {point.filename for point in path} - {""}:
        places[name] = other_document(Path(name), document.codec)
    information = []
    for point in path:
        place = places[point.filename]
        start = place.client_position(point.row, point.column)
        end = place.client_position(point.end_row, point.end_column)
        location = types.Location(place.uri, types.Range(start, end))
        information.append(types.DiagnosticRelatedInformation(location, point.what))
    return information


def other_document(path: Path, codec: PositionCodec) -> Document:
    """A file that is on the path; when it cannot be read any more, a text of no lines."""
    try:
        source = read(path)
    except (Unreadable, OSError):
        source = Source(path, "")
    return Document(document_uri(path), None, source, codec)
