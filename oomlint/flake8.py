"""The plugin for flake8: its own selection and `noqa` count on top of oomlint's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import oomlint
from oomlint.errors import OomlintError
from oomlint.settings import SettingsFinder

# Under this code flake8 reports what kept oomlint from checking a file.
FAILED = "OOM000"

Report = tuple[int, int, str, type]


class Plugin:
    """Checks one file. flake8 makes one for each, with `tree` when the file is Python."""

    name: ClassVar[str] = "oomlint"
    version: ClassVar[str] = oomlint.__version__
    finder: ClassVar[SettingsFinder | None] = None
    disable_noqa: ClassVar[bool] = False

    def __init__(self, tree: object, filename: str, lines: list[str]) -> None:
        self.filename = filename
        self.text = "".join(lines)

    @classmethod
    def parse_options(cls, options: Any) -> None:
        """Keeps what flake8 was asked for; settings files are read anew."""
        cls.disable_noqa = bool(options.disable_noqa)
        cls.finder = None

    def run(self) -> Iterator[Report]:
        """Each finding as flake8 wants it: row from 1, column from 0, code and message."""
        from oomlint.linter import check_source
        from oomlint.source import Source, Unreadable, from_text

        # flake8 calls what comes on stdin so where nothing names it.
        name = "<stdin>" if self.filename in ("-", "stdin") else self.filename
        path = Path(os.path.abspath(name))
        try:
            source: Source = from_text(path, self.text)
            result = check_source(source, self.settings_finder().for_file(path))
        except (OomlintError, Unreadable) as error:
            yield 1, 0, f"{FAILED} {error}", Plugin
            return
        # What is no Python flake8 reports itself.
        if result.problem is not None and result.problem.kind != "invalid-syntax":
            yield max(result.problem.row, 1), 0, f"{FAILED} {result.problem.message}", Plugin
        for finding in result.findings:
            yield finding.row, finding.column - 1, f"{finding.code} {finding.message}", Plugin

    @classmethod
    def settings_finder(cls) -> SettingsFinder:
        if cls.finder is None:
            cls.finder = SettingsFinder(ignore_noqa=cls.disable_noqa)
        return cls.finder
