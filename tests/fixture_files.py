"""The files under fixtures/ as data: clean text, and what its marks expect of each row."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures"
CLEAN = "clean"

ITEM = r'[A-Z]{3}\d{3}(?:@\d+)?(?: "[^"]*")?'
MARK = re.compile(
    rf"[ \t]*# (?P<kind>expect|expect-next|todo-expect): (?P<items>{ITEM}(?:, {ITEM})*)$",
    re.MULTILINE,
)
PART = re.compile(r'(?P<code>[A-Z]{3}\d{3})(?:@(?P<column>\d+))?(?: "(?P<message>[^"]*)")?')
LIKE_A_MARK = re.compile(r"#\s*(todo-)?expect\b")


@dataclass(frozen=True)
class Expectation:
    """One finding that a row must have; a known miss is one that it must not have yet."""

    row: int
    code: str
    column: int | None
    message: str
    known_miss: bool


@dataclass(frozen=True)
class FixtureFile:
    """One file without its marks; `folder` is its rule's stem, `unit` what is checked together."""

    path: Path
    text: str
    expected: tuple[Expectation, ...]

    @property
    def folder(self) -> str:
        return self.path.relative_to(FIXTURES).parts[0]

    @property
    def name(self) -> str:
        return self.path.relative_to(FIXTURES).as_posix()

    @property
    def place(self) -> Path:
        """Where a copy lies: a single file in a project of its own, others with their project."""
        relative = self.path.relative_to(FIXTURES)
        if len(relative.parts) > 2:
            return relative
        return relative.parent / relative.stem / relative.name

    @property
    def project(self) -> Path:
        return Path(*self.place.parts[:2])

    @property
    def golden(self) -> Path:
        return self.path.with_suffix(".fixed.py")

    @property
    def hits(self) -> list[tuple[int, str]]:
        return sorted((item.row, item.code) for item in self.expected if not item.known_miss)

    @property
    def flagged_rows(self) -> list[int]:
        return sorted({row for row, _ in self.hits})


def read_marks(text: str) -> tuple[str, tuple[Expectation, ...]]:
    """The text without its marks, and what they expect. Raises ValueError for a malformed one."""
    expected = []
    lines = text.split("\n")
    for index, line in enumerate(lines):
        mark = MARK.search(line)
        if mark is None:
            if LIKE_A_MARK.search(line):
                raise ValueError(f"line {index + 1}: malformed mark: {line.strip()}")
            continue
        lines[index] = line[: mark.start()]
        row = index + 1
        if mark["kind"] == "expect-next":
            if lines[index]:
                raise ValueError(f"line {row}: `# expect-next:` stands on a line of its own")
            row += 1
        for part in PART.finditer(mark["items"]):
            column = int(part["column"]) if part["column"] else None
            miss = mark["kind"] == "todo-expect"
            expected.append(Expectation(row, part["code"], column, part["message"] or "", miss))
    return "\n".join(lines), tuple(expected)


def load(path: Path) -> FixtureFile:
    try:
        text, expected = read_marks(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.relative_to(FIXTURES)}: {error}") from None
    return FixtureFile(path, text, expected)


@lru_cache(maxsize=1)
def all_files() -> tuple[FixtureFile, ...]:
    paths = sorted(FIXTURES.glob("*/**/*.py"))
    return tuple(load(path) for path in paths if not path.name.endswith(".fixed.py"))


def files_of(folder: str) -> tuple[FixtureFile, ...]:
    return tuple(file for file in all_files() if file.folder == folder)


def alone(text: str, row: int) -> str:
    """The top-level statement on a row, the imports, and the definitions that it names."""
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    body = ast.parse(text).body
    subject = next(n for n in body if n.lineno <= row <= (n.end_lineno or 0))
    named = {n.name: n for n in body if isinstance(n, definitions)}
    kept, waiting = set(), [subject]
    while waiting:
        node = waiting.pop()
        if node not in kept:
            kept.add(node)
            names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            waiting += [named[name] for name in names & {*named}]
    others = [n for n in body if n not in kept and not isinstance(n, ast.Import | ast.ImportFrom)]
    lines = text.split("\n")
    for node in others:
        if isinstance(node, definitions) or isinstance(subject, definitions):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            lines[first - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - first + 1)
    return "\n".join(lines)
