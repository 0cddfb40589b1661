"""Random edits of a notebook through the protocol: cells typed in, added, moved and taken away."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

from lsp_client import Client  # noqa: E402

WORDS = (
    *(
        "loss",
        "    ",
        "\n",
        "(",
        ")",
        ":",
        '"""',
        "losses.append(loss)",
        "%%time\n",
        "!ls\n",
        "é😀",
    ),
    *("optimizer.zero_grad()\n", "loss.backward()\n", "  # noqa: OOM101", "%matplotlib inline\n"),
)
# What is found in it, whatever the cells before have become.
FAULTY = """\
import torch
def evaluate(model: torch.nn.Module, loader):
    model.eval()
    return [model(batch) for batch in loader]
"""


@dataclass
class Book:
    """An open notebook as its client sees it: the texts of its cells by their URIs, in order."""

    client: Client
    name: str
    cells: dict[str, str]
    version: int = 1
    made: int = 0
    past: list[dict[str, str]] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return self.client.uri(self.name)

    def open(self) -> None:
        book = {"uri": self.uri, "notebookType": "jupyter-notebook", "version": 1}
        book["cells"] = [kind(uri) for uri in self.cells]
        items = [item(uri, text) for uri, text in self.cells.items()]
        params = {"notebookDocument": book, "cellTextDocuments": items}
        self.client.tell("notebookDocument/didOpen", params)

    def change(self, cells: dict[str, Any]) -> None:
        self.version += 1
        self.client.tell(
            "notebookDocument/didChange",
            {
                "notebookDocument": {"uri": self.uri, "version": self.version},
                "change": {"cells": cells},
            },
        )

    def type(self, uri: str, start: int, end: int, new: str) -> None:
        text = self.cells[uri]
        place = {"start": position(text, start), "end": position(text, end)}
        self.cells[uri] = text[:start] + new + text[end:]
        document = {"uri": uri, "version": self.version + 1}
        changes = [{"range": place, "text": new}]
        self.change({"textContent": [{"document": document, "changes": changes}]})

    def replace(self, start: int, gone: int, new: dict[str, str]) -> None:
        """Other cells in the place of some; one that is there already only moves."""
        before = list(self.cells.items())
        opened = [item(uri, text) for uri, text in new.items() if uri not in self.cells]
        closed = [uri for uri, _ in before[start : start + gone] if uri not in new]
        self.cells = dict([*before[:start], *new.items(), *before[start + gone :]])
        array = {"start": start, "deleteCount": gone, "cells": [kind(uri) for uri in new]}
        structure = {"array": array, "didOpen": opened, "didClose": [{"uri": u} for u in closed]}
        self.change({"structure": structure})

    def edit_at_random(self, draw: random.Random) -> None:
        uris = list(self.cells)
        kind_of_edit = draw.random()
        if kind_of_edit < 0.75 and uris:
            uri = draw.choice(uris)
            start = draw.randrange(len(self.cells[uri]) + 1)
            end = min(len(self.cells[uri]), start + draw.choice((0, 0, 0, 1, 30)))
            self.type(uri, start, end, draw.choice((*WORDS, "")))
            return
        start = draw.randrange(len(uris) + 1)
        if kind_of_edit < 0.85:
            self.made += 1
            self.replace(start, 0, {f"{self.uri}#new{self.made}": draw.choice(WORDS)})
        elif kind_of_edit < 0.95:
            chosen = list(self.cells.items())[start : start + 2]
            self.replace(start, len(chosen), dict(reversed(chosen)))
        elif len(uris) > 3:
            self.replace(start, min(1, len(uris) - start), {})

    def reset(self, texts: Sequence[str]) -> None:
        """Other cells altogether, as when a notebook is read again."""
        self.made += 1
        cells = {f"{self.uri}#{self.made}-{n}": text for n, text in enumerate(texts)}
        self.replace(0, len(self.cells), cells)

    def diagnostics(self) -> list[Any]:
        """What is shown for each cell, in order, when the server has said all it has to say."""
        last: dict[str, list[Any]] = {}
        while len(last) < len(self.cells):
            message = self.client.wait(lambda m: shows(m, self.cells))
            last[message["params"]["uri"]] = message["params"]["diagnostics"]
        return [bare(last[uri]) for uri in self.cells]


def shows(message: dict[str, Any], cells: dict[str, str]) -> bool:
    is_shown = message.get("method") == "textDocument/publishDiagnostics"
    return is_shown and message["params"]["uri"] in cells


def bare(found: list[dict[str, Any]]) -> list[Any]:
    return [(item["range"], item.get("code"), item["message"].splitlines()[0]) for item in found]


def kind(uri: str) -> dict[str, Any]:
    return {"kind": 2, "document": uri}


def item(uri: str, text: str) -> dict[str, Any]:
    return {"uri": uri, "languageId": "python", "version": 1, "text": text}


def position(text: str, offset: int) -> dict[str, int]:
    line = text[text.rfind("\n", 0, offset) + 1 : offset]
    return {"line": text.count("\n", 0, offset), "character": len(line.encode("utf-16-le")) // 2}


def texts_of(source: str) -> list[str]:
    """A script as cells: each begins where two lines are empty."""
    return [part + "\n" for part in source.split("\n\n\n")]


def is_sound(text: str) -> bool:
    """Whether a cell is Python, magics aside: one that is not would hide the others' findings."""
    lines = ["pass" if line[:1] in ("%", "!") else line for line in text.splitlines()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile("\n".join(lines), "cell", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def play(client: Client, source: str, edits: int, seed: int) -> tuple[Book, list[Any]]:
    """Random edits, and what is shown at the end, when all cells are others once more."""
    draw = random.Random(seed)
    texts = texts_of(source)
    book = Book(client, "played.ipynb", {})
    book.cells = {f"{book.uri}#{n}": text for n, text in enumerate(texts)}
    book.open()
    for number in range(edits):
        book.edit_at_random(draw)
        if draw.random() < 0.1 and book.cells:
            uri = draw.choice(list(book.cells))
            at = {"line": draw.randrange(20), "character": draw.randrange(60)}
            document = {"uri": uri}
            client.ask("textDocument/hover", {"textDocument": document, "position": at})
            place = {"start": at, "end": at}
            params = {"textDocument": document, "range": place, "context": {"diagnostics": []}}
            client.ask("textDocument/codeAction", params)
        if number % 40 == 39:
            book.reset(texts)
    # Nothing is under way for the earlier cells once a question about the new ones is answered.
    texts = [text if is_sound(text) else "# broken\n" for text in book.cells.values()]
    book.reset([*texts, FAULTY])
    return book, book.diagnostics()


def fresh(client: Client, book: Book) -> list[Any]:
    """What a server shows for the same cells in a notebook that was just opened."""
    other = Book(client, "fresh.ipynb", {})
    other.cells = {f"{other.uri}#{n}": text for n, text in enumerate(book.cells.values())}
    other.open()
    return other.diagnostics()
