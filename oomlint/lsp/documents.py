"""The text of an open document, and its offsets in the units that the client counts in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lsprotocol import types
from pygls import uris
from pygls.workspace import PositionCodec
from pygls.workspace.position_codec import ServerTextPosition

from oomlint.rule import Edit
from oomlint.source import Source


@dataclass(frozen=True, slots=True)
class Document:
    """One version of a text in the editor; offsets count code points of `source.text`."""

    uri: str
    version: int | None
    source: Source
    codec: PositionCodec

    def position(self, offset: int) -> types.Position:
        row, column = self.source.position(offset)
        return self.client_position(row, column)

    def range(self, start: int, end: int) -> types.Range:
        return types.Range(self.position(start), self.position(end))

    @property
    def body(self) -> str:
        """What says all that a check rests on."""
        return self.source.text

    @property
    def parts(self) -> Iterable[Document]:
        """The documents that diagnostics are published for."""
        return (self,)

    def part(self, uri: str) -> Document | None:
        return self if uri == self.uri else None

    def place(self, start: int, end: int) -> types.Location:
        return types.Location(self.uri, self.range(start, end))

    def spot(self, row: int, column: int, end_row: int, end_column: int) -> types.Location:
        """The place between two 1-based rows and columns, as findings tell them."""
        start = self.client_position(row, column)
        return types.Location(
            self.uri, types.Range(start, self.client_position(end_row, end_column))
        )

    def edit_at(self, edit: Edit) -> types.Location | None:
        return self.place(edit.start, edit.end)

    def parts_after(self, body: str) -> list[tuple[Document, str]]:
        """What a new body makes of each document."""
        return [(self, body)]

    def client_position(self, row: int, column: int) -> types.Position:
        """A 1-based row and column in code points; past the end of the text it is the end."""
        row = max(1, min(row, len(self.source.line_starts)))
        line = self.source.line(row)
        inside = self.codec.position_to_client_units([line], ServerTextPosition(0, column - 1))
        return types.Position(row - 1, inside.character)

    def offset(self, position: types.Position) -> int:
        """The offset of a client's position; past the end of a line it is the end of the line."""
        if position.line >= len(self.source.line_starts):
            return len(self.source.text)
        line = self.source.line(position.line + 1)
        if position.character >= self.codec.client_num_units(line):
            column = len(line)
        else:
            asked = types.Position(0, position.character)
            column = self.codec.position_from_client_units([line], asked).character
        return self.source.line_starts[position.line] + column

    def changed(
        self, changes: list[types.TextDocumentContentChangeEvent], version: int | None
    ) -> Document:
        """The document after a client's changes, applied one after the other."""
        document = self
        for change in changes:
            text = change.text
            if isinstance(change, types.TextDocumentContentChangePartial):
                before = document.source.text[: document.offset(change.range.start)]
                after = document.source.text[document.offset(change.range.end) :]
                text = before + change.text + after
            document = Document(self.uri, version, Source(self.source.path, text), self.codec)
        return document


def open_document(item: types.TextDocumentItem, codec: PositionCodec, folder: Path) -> Document:
    """A document as the client opened it; one without a file is taken to lie in `folder`."""
    return Document(
        item.uri, item.version, Source(document_path(item.uri, folder), item.text), codec
    )


def document_path(uri: str, folder: Path, untitled: str = "untitled.py") -> Path:
    if uri.startswith("file:"):
        path = uris.to_fs_path(uri)
        if path:
            return Path(path)
    return folder / untitled


def document_uri(path: Path) -> str:
    return uris.from_fs_path(str(path)) or path.as_uri()
