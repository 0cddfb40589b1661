"""The blocks of Python in a Markdown text as one module, each where it stands in the text."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

FENCE = re.compile(
    r"^(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^\r\n]*)(?:\r\n|\r|\n|\Z)",
    re.MULTILINE,
)
NEWLINE = re.compile(r"\r\n|\r|\n")
PYTHON = re.compile(r"\{?\.?(?:python3?|py)\b(?!-)", re.IGNORECASE)
# What stands for the fence above an indented block, so that its lines may be indented.
HEAD = "if 1:"

TextEdit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Block:
    """One block, as offsets of the text: its first line, its code, and the row of that line."""

    first: int
    start: int
    end: int
    row: int


@dataclass(frozen=True, slots=True)
class Markdown:
    """`text` is the Python of a document, which has everything else blanked, row by row."""

    document: str
    text: str
    blocks: tuple[Block, ...]

    def pieces(self) -> Iterator[tuple[int, str]]:
        """The Python of each block, with the row where it begins."""
        for block in self.blocks:
            yield block.row, self.text[block.first : block.end]

    def without_blocks(self, rows: set[int]) -> Markdown:
        """The document with the blocks that begin on these rows blanked, too."""
        text = self.text
        for block in self.blocks:
            if block.row in rows:
                text = (
                    text[: block.first] + spaces(text[block.first : block.end]) + text[block.end :]
                )
        return replace(self, text=text)

    def edited(self, edits: Iterable[TextEdit]) -> Markdown | None:
        """The document after ascending edits; None where one is about anything but code."""
        placed = [self.placed(edit) for edit in edits]
        document = self.document
        for edit in reversed(placed):
            if edit is None:
                return None
            start, end, content = edit
            document = document[:start] + content + document[end:]
        return read_markdown(document)

    def placed(self, edit: TextEdit) -> TextEdit | None:
        """An edit of code; lines that would come before all code come at its beginning."""
        start, end, content = edit
        if self.blocks and start == end < self.blocks[0].start and content.endswith("\n"):
            start = end = self.blocks[0].start
        if any(block.start <= start and end <= block.end for block in self.blocks):
            return start, end, content
        return None


def read_markdown(document: str) -> Markdown:
    """The document's blocks of Python; those that are none by themselves are left out."""
    parts: list[str] = []
    blocks: list[Block] = []
    position, row, counted = 0, 1, 0
    for first, start, end, indent in fenced(document):
        row, counted = row + len(NEWLINE.findall(document, counted, first)), first
        head = ""
        if indent:
            head = HEAD + spaces(document[first + len(HEAD) : start])
        code = (head or spaces(document[first:start])) + document[start:end]
        if not is_python(code):
            continue
        blocks.append(Block(first, start, end, row))
        parts += [spaces(document[position:first]), code]
        position = end
    parts.append(spaces(document[position:]))
    return Markdown(document, "".join(parts), tuple(blocks))


def fenced(document: str) -> Iterator[tuple[int, int, int, str]]:
    """Blocks in Python as (start of the fence, start of the code, its end, indentation)."""
    position = 0
    while (opening := FENCE.search(document, position)) is not None:
        closing = closing_of(document, opening)
        end = closing.start() if closing else len(document)
        position = closing.end() if closing else len(document)
        if PYTHON.match(opening["info"]):
            yield opening.start(), opening.end(), end, opening["indent"]
        if closing is None:
            return


def closing_of(document: str, opening: re.Match[str]) -> re.Match[str] | None:
    """The fence of the same sign, at least as long, with nothing behind it."""
    fence = opening["fence"]
    for found in FENCE.finditer(document, opening.end()):
        same = found["fence"].startswith(fence) and not found["info"].strip()
        if same:
            return found
    return None


def is_python(code: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def spaces(text: str) -> str:
    return re.sub(r"[^\r\n]", " ", text)
