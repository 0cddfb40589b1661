"""A notebook as one text with a map back to its cells, and written back into its own JSON."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from typing import Any

from oomlint.magics import python_of

SPACE = re.compile(r"[ \t\r\n]*")
# A line of a cell, and the same as JSON writes it inside a string.
LINE = re.compile(r"[^\n]*\n|[^\n]+")
JSON_LINE = re.compile(r"(?:[^\\]|\\[^n])*?\\n|(?:[^\\]|\\[^n])+")
JSON_CHAR = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.|[^\\]", re.DOTALL)
DECODER = json.JSONDecoder()

# (start, end, content): replaces the code points `start:end`.
TextEdit = tuple[int, int, str]


class NoNotebook(Exception):
    """Why a file cannot be read as a notebook: one sentence for the user, without the path."""


class OtherLanguage(NoNotebook):
    """A sound notebook, but not in Python."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A code cell of Python and its place in the text; the next one begins a line behind `end`."""

    # Among all cells of the notebook, from 1.
    number: int
    start: int
    end: int
    # Where its code begins, behind its cell magics.
    begin: int
    # Its first row in the text.
    row: int
    # Whether its last line has no newline in the notebook.
    padded: bool


@dataclass(frozen=True, slots=True)
class Notebook:
    """Cells in their order make the module: `text` is its Python, `written` what the author sees.

    Both have the same characters at the same places but for what is no Python.
    """

    document: str
    text: str
    written: str
    cells: tuple[Cell, ...]
    # What is no Python, as (start, end) in the text.
    blanked: tuple[tuple[int, int], ...]

    def cell_at_row(self, row: int) -> Cell | None:
        index = bisect_right(self.cells, row, key=lambda cell: cell.row) - 1
        return self.cells[max(index, 0)] if self.cells else None

    def pieces(self) -> Iterator[tuple[int, str]]:
        """The Python of each cell with the row where it begins."""
        for cell in self.cells:
            yield cell.row, self.text[cell.start : cell.end]

    def in_document(self, offset: int) -> tuple[int, int]:
        """Line and column (from 1) in the JSON itself of what stands at an offset of the text."""
        index = bisect_right(self.cells, offset, key=lambda cell: cell.start) - 1
        cell = self.cells[max(index, 0)]
        spans = string_spans(self.document, *all_source_spans(self.document)[cell.number])
        found = place_of(self.document, spans, offset - cell.start)
        return self.document.count("\n", 0, found) + 1, found - self.document.rfind("\n", 0, found)

    def written_cells(self) -> Iterator[tuple[int, str]]:
        """What the author sees of each cell, with its number among all cells."""
        for cell in self.cells:
            yield cell.number, self.written[cell.start : cell.end - cell.padded]

    def without_cells(self, rows: set[int]) -> Notebook:
        """The notebook with the cells that begin on these rows blanked like what is no Python."""
        spans = [(cell.start, cell.end) for cell in self.cells if cell.row in rows]
        text = self.text
        for start, end in spans:
            text = text[:start] + re.sub(r"[^\r\n]", " ", text[start:end]) + text[end:]
        return replace(self, text=text, blanked=(*self.blanked, *spans))

    def edited(self, edits: Iterable[TextEdit]) -> Notebook | None:
        """The notebook after ascending edits of its text; None where one is not inside the code."""
        by_cell: dict[Cell, list[TextEdit]] = {}
        for edit in edits:
            placed = self.placed(edit)
            if placed is None:
                return None
            by_cell.setdefault(placed[0], []).append(placed[1])
        changes = {}
        for cell, inside in by_cell.items():
            text = self.written[cell.start : cell.end]
            for start, end, content in reversed(inside):
                text = text[: start - cell.start] + content + text[end - cell.start :]
            changes[cell.number] = text.removesuffix("\n") if cell.padded else text
        return read_notebook(with_sources(self.document, changes))

    def placed(self, edit: TextEdit) -> tuple[Cell, TextEdit] | None:
        """The cell that an edit changes; what would come before a cell magic comes behind it."""
        start, end, content = edit
        index = bisect_right(self.cells, start, key=lambda cell: cell.start) - 1
        if index < 0 or end > self.cells[index].end:
            return None
        cell = self.cells[index]
        if start == end < cell.begin and content.endswith("\n"):
            start = end = cell.begin
        if any(start < last and first < end for first, last in self.blanked):
            return None
        if any(first < start < last for first, last in self.blanked) or start < cell.begin:
            return None
        return cell, (start, end, content)


def read_notebook(document: str) -> Notebook:
    """The notebook that a JSON text holds. Raises NoNotebook."""
    texts: list[str] = []
    written: list[str] = []
    cells: list[Cell] = []
    blanked: list[tuple[int, int]] = []
    offset, row = 0, 1
    for number, source in code_cells(parsed(document)):
        code = python_of(source)
        if code is None:
            continue
        padding = "" if source.endswith("\n") or not source else "\n"
        end = offset + len(source) + len(padding)
        begin = end if code.begin == len(source) else offset + code.begin
        cells.append(Cell(number, offset, end, begin, row, bool(padding)))
        blanked += [(offset + first, offset + last) for first, last in code.blanked]
        # The empty line between cells: what is inserted behind the last line stays in its cell.
        texts.append(f"{code.text}{padding}\n")
        written.append(f"{source}{padding}\n")
        row += len(re.findall(r"\r\n|\r|\n", texts[-1]))
        offset = end + 1
    return Notebook(document, "".join(texts), "".join(written), tuple(cells), tuple(blanked))


def parsed(document: str) -> dict[str, Any]:
    """The checked JSON of a notebook. Raises NoNotebook."""
    if not document.strip():
        raise NoNotebook("is no notebook: it is empty")
    try:
        found = json.loads(document)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise NoNotebook(f"is no notebook: invalid JSON in {where}: {error.msg}") from None
    except RecursionError:
        raise NoNotebook("is no notebook: its JSON nests too deeply") from None
    if not isinstance(found, dict):
        raise NoNotebook("is no notebook: its JSON is no object")
    form = found.get("nbformat")
    if "worksheets" in found or (isinstance(form, int) and form < 4):
        raise NoNotebook(
            f"has the old notebook format {form or 3}; save it in format 4"
            " (`jupyter nbconvert --to notebook --inplace`)"
        )
    if not isinstance(found.get("cells"), list):
        raise NoNotebook("is no notebook: it has no list of cells")
    language = language_of(found.get("metadata"))
    if language.lower() not in ("", "python", "ipython", "python3"):
        raise OtherLanguage(f"is a notebook in {language} and was not checked")
    return found


def language_of(metadata: object) -> str:
    """What the notebook says that its code is; empty where it says nothing."""
    for table, key in (("language_info", "name"), ("kernelspec", "language")):
        found = metadata.get(table) if isinstance(metadata, dict) else None
        language = found.get(key) if isinstance(found, dict) else None
        if isinstance(language, str) and language:
            return language
    return ""


def code_cells(document: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """The code cells of Python with their numbers. Raises NoNotebook."""
    for number, cell in enumerate(document["cells"], 1):
        if not isinstance(cell, dict):
            raise NoNotebook(f"is no notebook: cell {number} is no object")
        if cell.get("cell_type") != "code" or is_foreign(cell.get("metadata")):
            continue
        source = cell.get("source")
        lines = [source] if isinstance(source, str) else source
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise NoNotebook(f"is no notebook: cell {number} has no source")
        yield number, "".join(lines)


def is_foreign(metadata: object) -> bool:
    """Whether an editor has marked a cell as one of another language."""
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    return isinstance(editor, dict) and editor.get("languageId", "python") != "python"


def with_sources(document: str, changes: dict[int, str]) -> str:
    """The JSON text with new sources for some cells; nothing else of it changes."""
    parts, position = [], 0
    ascii_only = document.isascii()
    for number, start, end in source_spans(document):
        if number not in changes:
            continue
        value = document[start:end]
        rewrite = rewritten_string if value.startswith('"') else rewritten_list
        parts += [document[position:start], rewrite(value, changes[number], ascii_only)]
        position = end
    return "".join([*parts, document[position:]])


def source_spans(document: str) -> Iterator[tuple[int, int, int]]:
    """Where the `source` of each cell stands in a JSON text, as (number, start, end)."""
    top = {key: start for key, start, _ in members(document, skip(document, 0))}
    for number, (at, _) in enumerate(items(document, top["cells"]), 1):
        spans = {key: (start, end) for key, start, end in members(document, at)}
        if "source" in spans:
            yield number, *spans["source"]


@lru_cache(maxsize=4)
def all_source_spans(document: str) -> dict[int, tuple[int, int]]:
    return {number: (start, end) for number, start, end in source_spans(document)}


def string_spans(document: str, start: int, end: int) -> list[tuple[int, int]]:
    """The strings of a source, whether it is one or a list of them."""
    return [(start, end)] if document[start] == '"' else list(items(document, start))


def place_of(document: str, spans: Iterable[tuple[int, int]], wanted: int) -> int:
    """Where the JSON spells the character with an index in some strings; past all, their end."""
    last = 0
    for start, end in spans:
        for char in JSON_CHAR.finditer(document, start + 1, end - 1):
            if wanted == 0:
                return char.start()
            wanted -= 1
        last = end - 1
    return last


def skip(document: str, at: int) -> int:
    space = SPACE.match(document, at)
    return space.end() if space else at


def members(document: str, at: int) -> Iterator[tuple[str, int, int]]:
    """The keys of the object at an offset, with the spans of their values."""
    at = skip(document, at + 1)
    while document[at] != "}":
        key, at = DECODER.raw_decode(document, skip(document, at))
        start = skip(document, skip(document, at) + 1)
        _, end = DECODER.raw_decode(document, start)
        yield key, start, end
        at = skip(document, end)
        at += document[at] == ","


def items(document: str, at: int) -> Iterator[tuple[int, int]]:
    """The spans of the items of the array at an offset."""
    at = skip(document, at + 1)
    while document[at] != "]":
        start = skip(document, at)
        _, end = DECODER.raw_decode(document, start)
        yield start, end
        at = skip(document, end)
        at += document[at] == ","


def rewritten_string(value: str, text: str, ascii_only: bool) -> str:
    """A source in one string; lines that stay keep their spelling."""
    old = JSON_LINE.findall(value[1:-1])
    decoded = [json.loads(f'"{line}"') for line in old]
    return f'"{"".join(merged(old, decoded, text, ascii_only))}"'


def rewritten_list(value: str, text: str, ascii_only: bool) -> str:
    """A source in a list of lines; items that stay keep their spelling and what is around them."""
    spans = list(items(value, 0))
    head = value[1 : spans[0][0]] if spans else ""
    between = [value[end:start] for (_, end), (start, _) in pairwise(spans)]
    closing = value[spans[-1][1] : -1] if spans else ""
    old = [value[start:end] for start, end in spans]
    lines = merged([item[1:-1] for item in old], [json.loads(i) for i in old], text, ascii_only)
    between += [between[-1] if between else f",{head}"] * len(lines)
    before = [head, *between]
    written = "".join(f'{before[index]}"{line}"' for index, line in enumerate(lines))
    return f"[{written}{closing}]" if lines else "[]"


def merged(old: list[str], decoded: list[str], text: str, ascii_only: bool) -> list[str]:
    """The lines of a text as JSON spells them: as before where they were there before."""
    new = LINE.findall(text)
    result: list[str] = []
    for tag, first, last, new_first, new_last in SequenceMatcher(
        None, decoded, new, autojunk=False
    ).get_opcodes():
        if tag == "equal":
            result += old[first:last]
        else:
            lines = new[new_first:new_last]
            result += [json.dumps(line, ensure_ascii=ascii_only)[1:-1] for line in lines]
    return result
