"""Notebooks in an editor: cells are documents, their order is the module, all else as in files."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lsp_client import CAPABILITIES, OOMLINT, PLUGIN, Client, apply_edits, place
from lsprotocol import types
from typed_client import config, pytest_lsp

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import editor
import notebook_edits

START, KEEP, WRONG = "kept = 0\n", 'name = "é😀"; kept += value', "print(wrong)\n"
NOTEBOOK = types.NotebookDocumentClientCapabilities(types.NotebookDocumentSyncClientCapabilities())


class Book:
    """A notebook that a typed client shows; its cells are named by single words."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.uri, self.version = client, (folder / "train.ipynb").as_uri(), 1

    def cell(self, name: str) -> str:
        return f"notebook-cell:{self.uri.removeprefix('file:')}#{name}"

    def kinds(self, names: str) -> list[types.NotebookCell]:
        return [
            types.NotebookCell(types.NotebookCellKind.Code, self.cell(name))
            for name in names.split()
        ]

    def items(self, texts: dict[str, str], language: str = "python") -> list[Any]:
        return [
            types.TextDocumentItem(self.cell(name), language, 1, text)
            for name, text in texts.items()
        ]

    def open(self, **texts: str) -> None:
        book = types.NotebookDocument(self.uri, "jupyter-notebook", 1, self.kinds(" ".join(texts)))
        params = types.DidOpenNotebookDocumentParams(book, self.items(texts))
        self.client.notebook_document_did_open(params)

    def change(self, **changes: Any) -> None:
        self.version += 1
        cells = types.NotebookDocumentCellChanges(**changes)
        self.client.notebook_document_did_change(
            types.DidChangeNotebookDocumentParams(
                types.VersionedNotebookDocumentIdentifier(self.version, self.uri),
                types.NotebookDocumentChangeEvent(cells=cells),
            )
        )

    def restructure(self, start: int, gone: int, names: str = "", **opened: str) -> None:
        structure = types.NotebookDocumentCellChangeStructure(
            types.NotebookCellArrayChange(start, gone, self.kinds(names)),
            did_open=self.items(opened),
        )
        self.change(structure=structure)

    def type(self, name: str, line: int, column: int, text: str) -> None:
        at = types.Position(line, column)
        partial = types.TextDocumentContentChangePartial(types.Range(at, at), text)
        identifier = types.VersionedTextDocumentIdentifier(self.version + 1, self.cell(name))
        content = types.NotebookDocumentCellContentChanges(identifier, [partial])
        self.change(text_content=[content])

    async def shows(self, **wanted: list[Any]) -> None:
        """Waits until these cells have exactly these diagnostics: (code, range)."""
        for _ in range(600):
            shown = {
                name: [
                    (item.code, (r.start.line, r.start.character, r.end.line, r.end.character))
                    for item in self.client.diagnostics.get(self.cell(name), [])
                    for r in [item.range]
                ]
                for name in wanted
            }
            if shown == wanted:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"shown: {shown}")

    async def actions(self, name: str, *only: str) -> list[types.CodeAction]:
        uri = self.cell(name)
        found = self.client.diagnostics.get(uri, [])
        whole = types.Range(types.Position(0, 0), types.Position(99, 0))
        params = types.CodeActionParams(
            types.TextDocumentIdentifier(uri), whole, types.CodeActionContext(found, only or None)
        )
        return list(await self.client.text_document_code_action_async(params) or [])


@pytest_lsp.fixture(config=config)
async def typed(lsp_client: pytest_lsp.LanguageClient, tmp_path: Path) -> Any:
    capabilities = pytest_lsp.client_capabilities("visual_studio_code")
    capabilities.notebook_document = NOTEBOOK
    root = types.WorkspaceFolder(tmp_path.as_uri(), "project")
    hello = await lsp_client.initialize_session(
        types.InitializeParams(capabilities, root_uri=root.uri, workspace_folders=[root])
    )
    sync = hello.capabilities.notebook_document_sync
    assert [cell.language for cell in sync.notebook_selector[0].cells] == ["python"]
    yield
    await lsp_client.shutdown_session()


KEPT = ("TST001", (0, 14, 0, 27))
KEPT_BELOW = ("TST001", (2, 14, 2, 27))


@pytest.mark.asyncio
async def test_a_session_with_a_notebook(typed: Any, tmp_path: Path) -> None:
    book = Book(typed, tmp_path)
    book.open(one=START, two=KEEP, three=WRONG)
    wrong = ("TST002", (0, 6, 0, 11))
    await book.shows(one=[], two=[KEPT], three=[wrong])
    (found,) = typed.diagnostics[book.cell("two")]
    (first, second) = found.related_information
    assert (first.location.uri, second.location.uri) == (book.cell("one"), book.cell("two"))

    fix, ignore = await book.actions("two", "quickfix")
    assert (fix.title, fix.is_preferred) == ("oomlint (TST001): Detach it", True)
    (change,) = fix.edit.document_changes
    assert change.text_document.uri == book.cell("two")
    assert [(e.range.start.character, e.new_text) for e in change.edits] == [(27, ".detach()")]
    (change,) = ignore.edit.document_changes
    assert change.edits[0].new_text == "  # oomlint: ignore[TST001]"

    # No `source` action a cell, for clients ask for those of all cells at the same time.
    assert await book.actions("two", "source.fixAll") == []
    (whole,) = await book.actions("three", "notebook.source.fixAll")
    whole = await typed.code_action_resolve_async(whole)
    (change,) = whole.edit.document_changes
    assert change.text_document.uri == book.cell("two")
    assert change.edits[0].new_text == KEEP + ".detach()"

    # Typed in, moved, taken away, closed.
    book.type("two", 0, 0, "x = 1\n\n")
    await book.shows(one=[], two=[KEPT_BELOW], three=[wrong])
    book.type("two", 2, 27, ".detach()")
    await book.shows(one=[], two=[], three=[wrong])
    book.restructure(1, 2, "three two four", four=KEEP)
    await book.shows(one=[], two=[], three=[wrong], four=[KEPT])
    book.restructure(1, 1)
    await book.shows(one=[], two=[], three=[], four=[KEPT])
    data = types.NotebookCell(types.NotebookCellKind.Markup, book.cell("four"))
    book.change(data=[data])
    await book.shows(four=[])
    book.restructure(0, 0, "five", five=KEEP)
    await book.shows(five=[KEPT])
    typed.notebook_document_did_close(
        types.DidCloseNotebookDocumentParams(types.NotebookDocumentIdentifier(book.uri), [])
    )
    await book.shows(five=[])


GRAD = """\
import torch
model = torch.nn.Linear(4, 4).cuda()
loader = []
"""
LOOP = """\
%%time
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
losses = []
for batch in loader:
    loss = model(batch).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""


def opened(client: Client, texts: list[tuple[str, str]]) -> list[str]:
    """Opens a notebook of (language, text); the URIs of its cells."""
    uri = client.uri("b.ipynb")
    cells = [f"{uri}#{number}" for number in range(len(texts))]
    book = {"uri": uri, "notebookType": "jupyter-notebook", "version": 1}
    book["cells"] = [{"kind": 2, "document": cell} for cell in cells]
    items = [
        {"uri": cell, "languageId": language, "version": 1, "text": text}
        for cell, (language, text) in zip(cells, texts, strict=True)
    ]
    params = {"notebookDocument": book, "cellTextDocuments": items}
    client.tell("notebookDocument/didOpen", params)
    return cells


def published(client: Client, uri: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.wait(
        lambda m: m.get("method") == "textDocument/publishDiagnostics" and m["params"]["uri"] == uri
    )["params"]["diagnostics"]
    return found


def close(client: Client) -> None:
    identifier = {"uri": client.uri("b.ipynb")}
    params = {"notebookDocument": identifier, "cellTextDocuments": []}
    client.tell("notebookDocument/didClose", params)


def test_the_answer_is_that_of_check(client: Client, tmp_path: Path) -> None:
    texts = [
        ("python", GRAD),
        ("bash", "wrong"),
        ("python", LOOP),
        ("python", "!ls wrong\n" + WRONG),
    ]
    cells = opened(client, texts)
    shown = [
        (number, item["code"], item["range"]["start"]["line"] + 1)
        for number, cell in enumerate(cells, 1)
        for item in published(client, cell)
    ]
    book = {
        "cells": [
            {"cell_type": "code" if language == "python" else "raw", "metadata": {}, "source": text}
            for language, text in texts
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "b.ipynb").write_text(json.dumps(book))
    command = [str(OOMLINT), "check", "--no-cache", "--output-format", "json", "b.ipynb"]
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = [
        (item["cell"], item["code"], item["location"]["row"]) for item in json.loads(run.stdout)
    ]
    assert shown == said
    assert {code for _, code, _ in shown} >= {"OOM102", "TST002"}
    close(client)


def test_a_cell_that_is_no_python_yet_leaves_the_others_theirs(client: Client) -> None:
    first, second, third = opened(
        client, [("python", START), ("python", "def f(:\n"), ("python", KEEP)]
    )
    assert published(client, first) == []
    (broken,) = published(client, second)
    assert (broken["code"], broken["range"]["start"]) == (
        "invalid-syntax",
        {"line": 0, "character": 6},
    )
    (kept,) = published(client, third)
    assert kept["range"] == place(0, 14, 27)
    assert apply_edits(KEEP, kept["data"]["edits"]) == KEEP + ".detach()"
    close(client)


def test_a_key_publishes_only_the_cells_that_it_changes(client: Client) -> None:
    cells = opened(client, [("python", START), ("python", KEEP), ("python", WRONG)])
    for cell in cells:
        published(client, cell)
    change = {"range": place(0, 0, 0), "text": "\n"}
    content = {"document": {"uri": cells[2], "version": 2}, "changes": [change]}
    client.tell(
        "notebookDocument/didChange",
        {
            "notebookDocument": {"uri": client.uri("b.ipynb"), "version": 2},
            "change": {"cells": {"textContent": [content]}},
        },
    )
    (wrong,) = published(client, cells[2])
    assert wrong["range"] == place(1, 6, 11)
    assert [m for m in client.unread if m.get("method") == "textDocument/publishDiagnostics"] == []
    where = {"line": 0, "character": 16}
    params = {"textDocument": {"uri": cells[1]}, "position": where}
    shown = client.ask("textDocument/hover", params)
    assert shown["contents"]["value"].startswith("# kept-value (TST001)")
    assert client.ask("textDocument/codeLens", {"textDocument": {"uri": cells[1]}}) is None
    close(client)


def test_random_edits_of_cells_end_as_a_fresh_check(client: Client) -> None:
    book, shown = notebook_edits.play(client, editor.training_file(200), 150, seed=5)
    assert shown == notebook_edits.fresh(client, book)
    assert any(shown)
    assert editor.said(client) == []
    for name in ("played", "fresh"):
        params = {"notebookDocument": {"uri": client.uri(f"{name}.ipynb")}, "cellTextDocuments": []}
        client.tell("notebookDocument/didClose", params)


def test_who_pulls_gets_cells_published(tmp_path: Path) -> None:
    document = {**CAPABILITIES["textDocument"], "diagnostic": {}}
    with Client(tmp_path, {**CAPABILITIES, "textDocument": document}) as client:
        (cell,) = opened(client, [("python", START + KEEP)])
        assert len(published(client, cell)) == 1
        report = client.ask("textDocument/diagnostic", {"textDocument": {"uri": cell}})
        assert report["items"] == [], "or they would be shown twice"
