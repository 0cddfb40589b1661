"""Names the line of the user's code that is being executed."""

from __future__ import annotations

import linecache
import os
import site
import sys
import sysconfig
from pathlib import Path

import torch

import oomlint


class Places:
    """Tells the user's files from Python's, torch's and those of packages."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}  # what a line of each file begins with; empty: not theirs
        self.files: dict[str, str] = {}  # the other way round
        self.folder = os.getcwd()  # a script may leave it, or remove it
        own = sysconfig.get_paths()
        roots = {own[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        roots |= {
            os.path.dirname(oomlint.__file__),
            os.path.dirname(os.path.dirname(torch.__file__)),
        }
        roots |= {*site.getsitepackages(), site.getusersitepackages()}
        self.foreign = tuple(os.path.join(os.path.realpath(root), "") for root in roots)

    def line(self) -> str:
        """`file:row` of the innermost frame that is neither Python's, torch's nor a package's."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            start = self.known.get(name)
            if start is None:
                start = self.known[name] = self.start(name)
                self.files[start] = name
            if start:
                return f"{start}{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def text(self, line: str) -> str:
        """What is written on a line that was named."""
        start, _, row = line.rpartition(":")
        name = self.files.get(f"{start}:")
        return linecache.getline(name, int(row)).strip() if name else ""

    def start(self, name: str) -> str:
        if not os.path.isfile(name) or os.path.realpath(name).startswith(self.foreign):
            return ""
        try:
            return f"{Path(name).relative_to(self.folder)}:"
        except ValueError:
            return f"{name}:"
