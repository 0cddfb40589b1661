"""Path patterns of settings: a name matches anywhere, a pattern with a slash from its folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, slots=True)
class Pattern:
    """A glob and the absolute folder that it is relative to."""

    glob: str
    base: str

    def matches(self, path: str) -> bool:
        """Whether the absolute `path` itself (not a folder above it) is meant."""
        if "/" not in self.glob.rstrip("/"):
            return compiled(self.glob).fullmatch(os.path.basename(path)) is not None
        if os.path.isabs(self.glob):
            return compiled(self.glob).fullmatch(path) is not None
        relative = os.path.relpath(path, self.base).replace(os.sep, "/")
        return compiled(self.glob).fullmatch(relative) is not None

    def covers(self, path: str) -> bool:
        """Whether `path` or a folder above it, up to the base, is meant."""
        while True:
            if self.matches(path):
                return True
            parent = os.path.dirname(path)
            if path in (self.base, parent):
                return False
            path = parent


@cache
def compiled(glob: str) -> re.Pattern[str]:
    return re.compile(translate(glob), re.DOTALL)


def translate(glob: str) -> str:
    """A glob as a regular expression: `*` and `?` stay inside a name, `**` crosses folders."""
    glob = glob.rstrip("/").removeprefix("./")
    out: list[str] = []
    index = 0
    while index < len(glob):
        if glob.startswith("**/", index):
            out.append("(?:.*/)?")
            index += 3
            continue
        if glob.startswith("**", index):
            out.append(".*")
            index += 2
            continue
        char = glob[index]
        index += 1
        if char == "*":
            out.append("[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[" and "]" in glob[index + 1 :]:
            end = glob.index("]", index + 1)
            body = glob[index:end].replace("\\", "\\\\")
            out.append(f"[^{body[1:]}]" if body.startswith("!") else f"[{body}]")
            index = end + 1
        else:
            out.append(re.escape(char))
    return "".join(out)
