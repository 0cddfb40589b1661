"""Colours, and how wide a piece of source text is on a terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

import click

TAB = "    "


def paint(text: str, color: bool, **style: Any) -> str:
    return click.style(text, **style) if color and text else text


def printable(text: str) -> str:
    """Source text that a terminal shows as it is: tabs widened, control characters pictured."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(TAB if char == "\t" else pictured(char) for char in text)


def pictured(char: str) -> str:
    if char < " ":
        return chr(0x2400 + ord(char))
    if char == "\x7f":
        return "\u2421"
    # Bidirectional controls and their like would let a line show other code than it holds.
    if unicodedata.category(char) in ("Cc", "Cf", "Cs"):
        return "\ufffd"
    return char


def width(text: str) -> int:
    """Terminal cells of a printable text."""
    if text.isascii():
        return len(text)
    return sum(cells(char) for char in text)


def cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
