"""A notebook in the editor: its cells are documents of their own, their order is the module."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from lsprotocol import types
from pygls.workspace import PositionCodec

from oomlint.lsp.documents import Document, document_path
from oomlint.notebook import Cell, Notebook, read_notebook
from oomlint.rule import Edit
from oomlint.source import Source, of_notebook

PYTHON = "python"
UNTITLED = "untitled.ipynb"


@dataclass(frozen=True, slots=True)
class CellDocument:
    """One cell: its text and whether that is Python."""

    document: Document
    is_python: bool


@dataclass(frozen=True)
class NotebookDocument:
    """One version of a notebook; offsets count code points of `source.text`, as in a `Document`."""

    uri: str
    version: int | None
    path: Path
    cells: tuple[CellDocument, ...]
    codec: PositionCodec

    @cached_property
    def notebook(self) -> Notebook:
        """The cells as the notebook that a file of them would be."""
        cells: list[dict[str, object]] = [
            {
                "cell_type": "code" if cell.is_python else "raw",
                "metadata": {},
                "source": cell.document.source.text,
            }
            for cell in self.cells
        ]
        return read_notebook(json.dumps({"cells": cells, "nbformat": 4}))

    @cached_property
    def source(self) -> Source:
        return of_notebook(self.path, self.notebook)

    @property
    def body(self) -> str:
        """What says all that a check rests on."""
        return self.notebook.document

    @property
    def parts(self) -> Iterable[Document]:
        """The documents that diagnostics are published for."""
        return [cell.document for cell in self.cells]

    def part(self, uri: str) -> Document | None:
        return next((part for part in self.parts if part.uri == uri), None)

    def place(self, start: int, end: int) -> types.Location:
        """What stands at an offset of the module lies in one cell, and what it spans ends there."""
        index = bisect_right(self.notebook.cells, start, key=lambda cell: cell.start) - 1
        if index < 0:
            return types.Location(self.uri, types.Range(START, START))
        cell = self.notebook.cells[index]
        return self.inside(cell, start, end)

    def inside(self, cell: Cell, start: int, end: int) -> types.Location:
        document = self.cells[cell.number - 1].document
        last = len(document.source.text)
        span = document.range(min(start - cell.start, last), min(end - cell.start, last))
        return types.Location(document.uri, span)

    def spot(self, row: int, column: int, end_row: int, end_column: int) -> types.Location:
        cell = self.notebook.cell_at_row(row)
        if cell is None:
            return types.Location(self.uri, types.Range(START, START))
        document = self.cells[cell.number - 1].document
        start = document.client_position(row - cell.row + 1, column)
        end = document.client_position(end_row - cell.row + 1, end_column)
        return types.Location(document.uri, types.Range(start, end))

    def edit_at(self, edit: Edit) -> types.Location | None:
        """Where an edit goes, which is behind the magics of its cell; None for not at all."""
        placed = self.notebook.placed((edit.start, edit.end, edit.content))
        return self.inside(placed[0], placed[1][0], placed[1][1]) if placed else None

    def parts_after(self, body: str) -> list[tuple[Document, str]]:
        """Each cell with its text in another version of the notebook."""
        texts = [str(cell["source"]) for cell in json.loads(body)["cells"]]
        return [(cell.document, text) for cell, text in zip(self.cells, texts, strict=True)]


START = types.Position(0, 0)


def open_notebook(
    params: types.DidOpenNotebookDocumentParams, codec: PositionCodec, folder: Path
) -> NotebookDocument:
    """A notebook as the client opened it, with the texts of its cells."""
    opened = params.notebook_document
    path = document_path(opened.uri, folder, UNTITLED)
    items = {item.uri: item for item in params.cell_text_documents}
    cells = tuple(cell_document(cell, items, path, codec) for cell in opened.cells)
    return NotebookDocument(opened.uri, opened.version, path, cells, codec)


def cell_document(
    cell: types.NotebookCell,
    items: Mapping[str, types.TextDocumentItem],
    path: Path,
    codec: PositionCodec,
) -> CellDocument:
    item = items.get(cell.document)
    text, version = (item.text, item.version) if item else ("", None)
    document = Document(cell.document, version, Source(path, text), codec)
    is_code = cell.kind == types.NotebookCellKind.Code
    return CellDocument(document, is_code and item is not None and item.language_id == PYTHON)


def changed(
    notebook: NotebookDocument,
    event: types.NotebookDocumentChangeEvent,
    version: int | None,
) -> NotebookDocument:
    """The notebook after a client's change: cells that came, went or moved, and their texts."""
    cells = notebook.cells
    changes = event.cells
    if changes is not None:
        if changes.structure is not None:
            cells = restructured(notebook, changes.structure)
        for content in changes.text_content or ():
            cells = tuple(
                retyped(cell, content) if cell.document.uri == content.document.uri else cell
                for cell in cells
            )
        kinds = {data.document: data.kind for data in changes.data or ()}
        cells = tuple(rekinded(cell, kinds.get(cell.document.uri)) for cell in cells)
    return NotebookDocument(notebook.uri, version, notebook.path, cells, notebook.codec)


def restructured(
    notebook: NotebookDocument, structure: types.NotebookDocumentCellChangeStructure
) -> tuple[CellDocument, ...]:
    """The cells after some were replaced; one that only moved keeps its text."""
    known = {cell.document.uri: cell for cell in notebook.cells}
    items = {item.uri: item for item in structure.did_open or ()}
    array = structure.array
    new = [
        known[cell.document]
        if cell.document in known and cell.document not in items
        else cell_document(cell, items, notebook.path, notebook.codec)
        for cell in array.cells or ()
    ]
    before, after = (
        notebook.cells[: array.start],
        notebook.cells[array.start + array.delete_count :],
    )
    return (*before, *new, *after)


def retyped(cell: CellDocument, content: types.NotebookDocumentCellContentChanges) -> CellDocument:
    changes = list(content.changes)
    return replace(cell, document=cell.document.changed(changes, content.document.version))


def rekinded(cell: CellDocument, kind: types.NotebookCellKind | None) -> CellDocument:
    """A cell that became markup is no code any more; what its language is, no change says."""
    if kind is types.NotebookCellKind.Markup and cell.is_python:
        return replace(cell, is_python=False)
    return cell


def gone(before: NotebookDocument, after: NotebookDocument) -> Sequence[str]:
    """The cells that a change took away."""
    kept = {part.uri for part in after.parts}
    return [part.uri for part in before.parts if part.uri not in kept]
