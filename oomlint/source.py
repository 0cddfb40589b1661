"""One text: how its bytes decode, where its lines start, and how it is written back."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomlint.markdown import Markdown
    from oomlint.notebook import Notebook, TextEdit

MAX_BYTES = 10 * 1024 * 1024
# Most of a notebook is its outputs; its code may not be larger than any other.
MAX_NOTEBOOK_BYTES = 200 * 1024 * 1024
# CPython refuses more than 200 nested brackets; libcst crashes the process at some 800.
MAX_NESTING = 200

LINE_END = re.compile(r"\r\n|\r|\n")


class Unreadable(Exception):
    """The bytes are no Python text; the message is one sentence for the user, without the path."""


class NotPython(Unreadable):
    """A sound file of another language, which is no fault."""


@dataclass(frozen=True, slots=True)
class Place:
    """A row as the author of a text counts: in a cell of a notebook, or in the whole file."""

    cell: int | None
    row: int

    def __str__(self) -> str:
        return f"{self.row}" if self.cell is None else f"cell {self.cell}:{self.row}"


@dataclass(frozen=True)
class Source:
    """A decoded file: `text` keeps its newlines, the BOM is not part of it.

    Offsets count code points of `text`; that of a notebook is the Python of all its cells, that of
    Markdown the document with everything blanked but its blocks of Python.
    """

    path: Path
    text: str
    encoding: str = "utf-8"
    bom: bool = False
    notebook: Notebook | None = None
    markdown: Markdown | None = None

    @cached_property
    def line_starts(self) -> tuple[int, ...]:
        """The offset of each row's first character; most files are never asked for it."""
        return starts_of_lines(self.text)

    @property
    def written(self) -> str:
        """The text as its author sees it: in a notebook with its magics, at the same places."""
        if self.markdown is not None:
            return self.markdown.document
        return self.notebook.written if self.notebook else self.text

    @property
    def document(self) -> str:
        """The whole text of the file; a notebook's is its JSON."""
        return self.notebook.document if self.notebook else self.written

    @property
    def newline(self) -> str:
        match = LINE_END.search(self.text)
        return match.group() if match else "\n"

    def position(self, offset: int) -> tuple[int, int]:
        """Row and column of an offset, both 1-based."""
        row = bisect_right(self.line_starts, offset)
        return row, offset - self.line_starts[row - 1] + 1

    def rows_before(self, offset: int) -> int:
        """How many rows end before an offset: as many empty ones put a part of a text in place."""
        return bisect_right(self.line_starts, offset) - 1

    def offset(self, row: int, utf8_column: int) -> int:
        """The offset of what `ast` calls (lineno, col_offset): a column in UTF-8 bytes from 0."""
        start = self.line_starts[row - 1]
        line = self.text[start : start + utf8_column]
        if line.isascii():
            return start + utf8_column
        return start + len(line.encode("utf-8")[:utf8_column].decode("utf-8", "ignore"))

    def line(self, row: int) -> str:
        """The text of a 1-based row, without its newline."""
        start = self.line_starts[row - 1]
        end = self.line_starts[row] if row < len(self.line_starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    def written_line(self, row: int) -> str:
        """The same as the author sees it."""
        start = self.line_starts[row - 1]
        return self.written[start : start + len(self.line(row))]

    def place(self, row: int) -> Place:
        cell = self.notebook.cell_at_row(row) if self.notebook else None
        return Place(cell.number, row - cell.row + 1) if cell else Place(None, row)

    def rows_around(self, row: int) -> tuple[int, int]:
        """The first and the last row of the cell that holds a row, or of the file."""
        if self.notebook is None:
            return 1, len(self.line_starts)
        cell = self.notebook.cell_at_row(row)
        if cell is None:
            return 1, 1
        return cell.row, self.position(max(cell.start, cell.end - 1))[0]

    def pieces(self) -> Iterator[tuple[int, str]]:
        """What must be Python by itself, with its first row: each cell, or the whole text."""
        parted = self.notebook or self.markdown
        if parted is None:
            yield 1, self.text
        else:
            yield from parted.pieces()

    def without_pieces(self, rows: set[int]) -> Source:
        """The source with the cells that begin on these rows blanked."""
        if self.markdown is not None:
            return of_markdown(self.path, self.markdown.without_blocks(rows), self.bom)
        if self.notebook is None:
            return self
        return of_notebook(self.path, self.notebook.without_cells(rows), self.bom)

    def edited(self, edits: Iterable[TextEdit]) -> Source | None:
        """The source after ascending edits; None where a notebook's cells do not allow them."""
        edits = tuple(edits)
        if self.markdown is not None:
            markdown = self.markdown.edited(edits)
            return of_markdown(self.path, markdown, self.bom) if markdown else None
        if self.notebook is None:
            return Source(self.path, spliced(self.text, edits), self.encoding, self.bom)
        notebook = self.notebook.edited(edits)
        return of_notebook(self.path, notebook, self.bom) if notebook else None

    @property
    def data(self) -> bytes:
        """The bytes of the file; raises UnicodeEncodeError."""
        return self.in_encoding(self.document)

    def encode(self, text: str) -> bytes:
        """The bytes of a changed text in this source's own encoding; raises UnicodeEncodeError."""
        if self.notebook is not None or self.markdown is not None:
            raise TypeError("this file is no text of Python; change it by `edited`")
        return self.in_encoding(text)

    def in_encoding(self, text: str) -> bytes:
        data = text.encode(self.encoding)
        return codecs.BOM_UTF8 + data if self.bom else data


def spliced(text: str, edits: Iterable[TextEdit]) -> str:
    """The text after edits that ascend and do not overlap."""
    parts = []
    position = 0
    for start, end, content in edits:
        parts += [text[position:start], content]
        position = end
    return "".join([*parts, text[position:]])


def is_notebook(path: Path | str) -> bool:
    return str(path).endswith(".ipynb")


def is_markdown(path: Path | str) -> bool:
    return str(path).endswith((".md", ".markdown", ".qmd"))


def of_markdown(path: Path, markdown: Markdown, bom: bool = False) -> Source:
    return Source(path, markdown.text, bom=bom, markdown=markdown)


def markdown_from_bytes(path: Path, data: bytes) -> Source:
    """Raises Unreadable."""
    from oomlint.markdown import read_markdown

    if len(data) > MAX_BYTES:
        raise too_large(MAX_BYTES)
    bom = data.startswith(codecs.BOM_UTF8)
    try:
        document = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Unreadable("is not valid utf-8; save it as UTF-8") from None
    return of_markdown(path, read_markdown(document), bom)


def of_notebook(path: Path, notebook: Notebook, bom: bool = False) -> Source:
    return Source(path, notebook.text, bom=bom, notebook=notebook)


def notebook_from_bytes(path: Path, data: bytes) -> Source:
    """Raises Unreadable, for a notebook in another language NotPython."""
    from oomlint.notebook import NoNotebook, OtherLanguage, read_notebook

    if len(data) > MAX_NOTEBOOK_BYTES:
        raise too_large(MAX_NOTEBOOK_BYTES)
    bom = data.startswith(codecs.BOM_UTF8)
    try:
        notebook = read_notebook(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise Unreadable("is no notebook: it is not valid utf-8") from None
    except OtherLanguage as error:
        raise NotPython(str(error)) from None
    except NoNotebook as error:
        raise Unreadable(str(error)) from None
    if len(notebook.text) > MAX_BYTES:
        raise too_large(MAX_BYTES)
    return of_notebook(path, notebook, bom)


def too_large(limit: int) -> Unreadable:
    return Unreadable(f"is larger than {limit // (1024 * 1024)} MiB and was not read")


def starts_of_lines(text: str) -> tuple[int, ...]:
    if "\r" in text:
        return (0, *(match.end() for match in LINE_END.finditer(text)))
    lengths = accumulate(map(len, text.split("\n")[:-1]))
    return (0, *map(add, lengths, count(1)))


def from_bytes(path: Path, data: bytes) -> Source:
    """Decodes as Python does: BOM, coding line, else UTF-8; raises Unreadable.

    A notebook is decoded as Jupyter does, Markdown as UTF-8.
    """
    if is_notebook(path):
        return notebook_from_bytes(path, data)
    if is_markdown(path):
        return markdown_from_bytes(path, data)
    if len(data) > MAX_BYTES:
        raise too_large(MAX_BYTES)
    if b"\0" in data:
        raise Unreadable("holds null bytes and is not Python source")
    bom = data.startswith(codecs.BOM_UTF8)
    body = data[len(codecs.BOM_UTF8) :] if bom else data
    encoding = "utf-8"
    if (not bom and not data.isascii()) or b"coding" in data[:400]:
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(data).readline)[0]
        except SyntaxError as error:
            if "missing" in str(error):
                raise not_valid("utf-8") from None
            raise Unreadable(f"cannot be decoded: {error.msg or error}") from None
        encoding = "utf-8" if encoding == "utf-8-sig" else encoding
    try:
        text = body.decode(encoding)
    except (UnicodeDecodeError, LookupError):
        raise not_valid(encoding) from None
    return Source(path, text, encoding, bom)


def from_text(path: Path, text: str) -> Source:
    """What the text of a file at `path` holds; a notebook's text is its JSON. Raises Unreadable."""
    if is_notebook(path) or is_markdown(path):
        return from_bytes(path, text.encode("utf-8", "surrogatepass"))
    if len(text) > MAX_BYTES:
        raise too_large(MAX_BYTES)
    if "\0" in text:
        raise Unreadable("holds null bytes and is not Python source")
    return Source(path, text.removeprefix("\ufeff"), bom=text.startswith("\ufeff"))


def not_valid(encoding: str) -> Unreadable:
    return Unreadable(
        f"is not valid {encoding}; name its encoding in a coding line or save it as UTF-8"
    )


def read(path: Path) -> Source:
    """Reads a file; raises Unreadable, or OSError when it cannot be opened."""
    return from_bytes(path, path.read_bytes())
