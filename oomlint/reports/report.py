"""What every output format is given: results, the texts they point into, and how to show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from oomlint.keys import shown_path
from oomlint.linter import FileResult
from oomlint.rule import Fix, Rule, Safety
from oomlint.source import Place, Source, Unreadable, is_notebook, read


@dataclass(slots=True)
class Texts:
    """The sources that reports quote, read when first needed; an unreadable one is None."""

    known: dict[Path, Source | None] = field(default_factory=dict)

    def get(self, path: Path) -> Source | None:
        if path not in self.known:
            try:
                self.known[path] = read(path)
            except (OSError, Unreadable):
                self.known[path] = None
        return self.known[path]


@dataclass(frozen=True, slots=True)
class Report:
    """`unsafe` tells whether unsafe fixes would be applied now.

    Names in machine formats are relative to `root`; `rules` are those that are on.
    """

    results: tuple[FileResult, ...]
    texts: Texts
    unsafe: bool
    color: bool = False
    # A path as the user sees it.
    show: Callable[[Path], str] = shown_path
    root: Path = field(default_factory=Path.cwd)
    rules: tuple[type[Rule], ...] = ()

    def place(self, path: Path, row: int) -> Place:
        """Where a row of a file lies as its author counts: in a cell, where there are any."""
        source = self.texts.get(path) if is_notebook(path) else None
        return source.place(row) if source else Place(None, row)

    def applies(self, fix: Fix | None) -> bool:
        return fix is not None and (self.unsafe or fix.safety is Safety.SAFE)
