"""Unified diffs of what fixes would change."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


def unified(label: str, before: str, after: str) -> Iterator[str]:
    """The lines of a unified diff, each with its own newline."""
    old, new = LINE.findall(before), LINE.findall(after)
    for line in difflib.unified_diff(old, new, label, label):
        if line.endswith(("\n", "\r")):
            yield line
        else:
            yield f"{line}\n\\ No newline at end of file\n"
