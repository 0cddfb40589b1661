"""Blanks syntax that the running Python does not know, in place: positions stay true."""

from __future__ import annotations

import re
from collections.abc import Mapping

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)?")


def blank_newer_syntax(text: str) -> str | None:
    """The same text with type statements, type parameters, `except*` and f-strings blanked.

    None where libcst does not accept the text either.
    """
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        positions = wrapper.resolve(PositionProvider)
    except (
        Exception
    ):  # libcst raises ParserSyntaxError, and RecursionError's kin from its native part
        return None
    lines = [match.group() for match in LINE.finditer(text)]
    # From right to left, so that what is still to come keeps its columns.
    order = sorted(positions.items(), key=lambda item: (-item[1].start.line, -item[1].start.column))
    for node, place in order:
        blank(lines, node, place, positions)
    return "".join(lines)


def blank(
    lines: list[str],
    node: cst.CSTNode,
    place: CodeRange,
    positions: Mapping[cst.CSTNode, CodeRange],
) -> None:
    if isinstance(node, cst.TypeAlias):
        # libcst counts a semicolon behind it in.
        replace(lines, CodeRange(place.start, positions[node.value].end), "pass")
    elif isinstance(node, cst.TypeParameters):
        replace(lines, place, "")
    elif isinstance(node, cst.ExceptStarHandler):
        row = place.start.line - 1
        lines[row] = lines[row].replace("*", " ", 1)
    elif isinstance(node, cst.FormattedString):
        replace(lines, place, "''")


def replace(lines: list[str], place: CodeRange, content: str) -> None:
    """Writes `content` at the start of the range and spaces over the rest; newlines stay."""
    first, last = place.start.line - 1, place.end.line - 1
    for row in range(first, last + 1):
        line = lines[row]
        body = line.rstrip("\r\n")
        start = place.start.column if row == first else 0
        end = place.end.column if row == last else len(body)
        filler = content if row == first else ""
        # A statement that spans lines stays one logical line: join with a backslash.
        tail = "" if row == last else "\\"
        # `ast` counts columns in UTF-8 bytes.
        width = len(body[start:end].encode("utf-8")) - len(filler) - len(tail)
        lines[row] = body[:start] + filler + " " * width + tail + body[end:] + line[len(body) :]
