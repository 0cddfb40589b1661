"""The model of the training step: what happens in a file, in which order, on which objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oomlint.source import Source


@dataclass(frozen=True, slots=True)
class Model:
    """What rules ask: one file, understood together with the project files that it depends on."""

    source: Source
    # Every other file the answer depended on, present or absent.
    dependencies: tuple[Path, ...] = ()
    # True when the answer also depends on who in the project calls into this file.
    depends_on_callers: bool = False


class SyntaxProblem(Exception):
    """The text is no Python; row and column are 1-based."""

    def __init__(self, message: str, row: int, column: int) -> None:
        super().__init__(message)
        self.message, self.row, self.column = message, row, column


def analyse(source: Source, root: Path | None = None) -> Model:
    """Builds the model of one file; `root` is its project's folder. Raises SyntaxProblem."""
    return Model(source)
