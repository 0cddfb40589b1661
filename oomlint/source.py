"""One text: how its bytes decode, where its lines start, and how it is written back."""

from __future__ import annotations

import codecs
import io
import re
import tokenize
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, count
from operator import add
from pathlib import Path

MAX_BYTES = 10 * 1024 * 1024
# CPython refuses more than 200 nested brackets; libcst crashes the process at some 800.
MAX_NESTING = 200

LINE_END = re.compile(r"\r\n|\r|\n")


class Unreadable(Exception):
    """The bytes are no Python text; the message is one sentence for the user, without the path."""


@dataclass(frozen=True, slots=True)
class Source:
    """A decoded file: `text` keeps its newlines, the BOM is not part of it.

    Offsets count code points of `text`.
    """

    path: Path
    text: str
    encoding: str = "utf-8"
    bom: bool = False
    line_starts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "line_starts", starts_of_lines(self.text))

    @property
    def newline(self) -> str:
        match = LINE_END.search(self.text)
        return match.group() if match else "\n"

    def position(self, offset: int) -> tuple[int, int]:
        """Row and column of an offset, both 1-based."""
        row = bisect_right(self.line_starts, offset)
        return row, offset - self.line_starts[row - 1] + 1

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

    def encode(self, text: str) -> bytes:
        """The bytes of a changed text in this source's own encoding; raises UnicodeEncodeError."""
        data = text.encode(self.encoding)
        return codecs.BOM_UTF8 + data if self.bom else data


def starts_of_lines(text: str) -> tuple[int, ...]:
    if "\r" in text:
        return (0, *(match.end() for match in LINE_END.finditer(text)))
    lengths = accumulate(map(len, text.split("\n")[:-1]))
    return (0, *map(add, lengths, count(1)))


def from_bytes(path: Path, data: bytes) -> Source:
    """Decodes as Python does: BOM, coding line, else UTF-8; raises Unreadable."""
    if len(data) > MAX_BYTES:
        raise Unreadable(f"is larger than {MAX_BYTES // (1024 * 1024)} MiB and was not read")
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


def not_valid(encoding: str) -> Unreadable:
    return Unreadable(
        f"is not valid {encoding}; name its encoding in a coding line or save it as UTF-8"
    )


def read(path: Path) -> Source:
    """Reads a file; raises Unreadable, or OSError when it cannot be opened."""
    return from_bytes(path, path.read_bytes())
