"""Finds what sets the batch size of a script: an argument, a number in its text, its loader."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

ARGUMENT, CONSTANT, LOADER = "argument", "constant", "loader"
# From the most telling name on; `-b` and `batch` may be a number of batches.
NAMES = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(per_device_|per_gpu_)?(train|training|micro)_?batch_?size",
        r"batch_?size(_per_(device|gpu)|_train)?",
        r"(train_)?bs",
        r"micro_?batch|batch|b",
    )
)


@dataclass(frozen=True, slots=True)
class Knob:
    """`value` is what it stands at, where that is known.

    `span` are the UTF-8 offsets of a constant's number in its row (from 1).
    """

    kind: str
    name: str
    value: int | None = None
    row: int = 0
    span: tuple[int, int] = (0, 0)
    others: tuple[str, ...] = ()  # names of the same argument

    def given(self, argv: tuple[str, ...]) -> Knob:
        """With the value that the arguments give it, by any of its names."""
        values = [value_of(argv, name) for name in (self.name, *self.others)]
        return replace(self, value=next((v for v in values if v is not None), self.value))

    def __str__(self) -> str:
        if self.kind == LOADER:
            return "the DataLoader's batch_size"
        return self.name if self.kind == ARGUMENT else f"{self.name} in line {self.row}"

    def turned(
        self, batch: int, text: str, argv: tuple[str, ...]
    ) -> tuple[str, tuple[str, ...], int | None]:
        """Text, arguments and the loader's batch for a run at another batch size."""
        if self.kind == LOADER:
            return text, argv, batch
        if self.kind == ARGUMENT:
            return text, with_argument(argv, self.name, batch), None
        lines = text.splitlines(keepends=True)
        line = lines[self.row - 1].encode()
        start, end = self.span
        lines[self.row - 1] = (line[:start] + str(batch).encode() + line[end:]).decode()
        return "".join(lines), argv, None


LOADERS = Knob(LOADER, "batch_size")


def find(text: str, argv: tuple[str, ...], named: str | None = None) -> Knob | None:
    """What is named, or the first of: an argument that is given, one that is declared, a constant.

    None where the text has nothing of the kind: the loader is left. Raises LookupError where what
    is named is not there.
    """
    tree = ast.parse(text)
    known = {knob.name: knob for knob in reversed(list(declared(tree)))}
    numbers = list(constants(tree))
    if named is not None:
        return find_named(named, argv, known, numbers)
    given = [word.partition("=")[0] for word in argv if word.startswith("--") or "=" in word]
    for candidates in (given, list(known)):
        best = telling(candidates)
        if best is not None:
            return known.get(best, Knob(ARGUMENT, best)).given(argv)
    best = telling([knob.name for knob in numbers])
    return next((knob for knob in numbers if knob.name == best), None)


def find_named(
    name: str, argv: tuple[str, ...], known: dict[str, Knob], numbers: list[Knob]
) -> Knob:
    if name in known or value_of(argv, name) is not None or name.startswith("-"):
        return known.get(name, Knob(ARGUMENT, name)).given(argv)
    for knob in numbers:
        if knob.name == name:
            return knob
    raise LookupError(name)


def telling(names: list[str]) -> str | None:
    """The name that most clearly is that of the training batch's size."""
    for pattern in NAMES:
        for name in names:
            plain = name.rpartition(".")[2].lstrip("-").replace("-", "_")
            if pattern.fullmatch(plain):
                return name
    return None


def declared(tree: ast.Module) -> Iterator[Knob]:
    """Options that argparse, click or typer is told of, with their defaults."""
    numbers = {knob.name: knob.value for knob in constants(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or called(node) not in ("add_argument", "option"):
            continue
        words = [a.value for a in node.args if isinstance(a, ast.Constant)]
        flags = [word for word in words if isinstance(word, str) and word.startswith("-")]
        default: Any = None
        for keyword in node.keywords:
            if keyword.arg == "default" and isinstance(keyword.value, ast.Constant):
                default = keyword.value.value
            elif keyword.arg == "default" and isinstance(keyword.value, ast.Name):
                default = numbers.get(keyword.value.id)
        value = default if isinstance(default, int) and not isinstance(default, bool) else None
        for flag in sorted(flags, key=len, reverse=True):
            others = tuple(other for other in flags if other != flag)
            yield Knob(ARGUMENT, flag, value, node.lineno, others=others)


def called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def constants(tree: ast.Module) -> Iterator[Knob]:
    """Whole numbers that are assigned to a name, those of the module first."""
    for node in sorted(ast.walk(tree), key=lambda node: getattr(node, "col_offset", 0)):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value
        if len(targets) != 1 or not isinstance(value, ast.Constant) or type(value.value) is not int:
            continue
        target = targets[0]
        name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if name and value.lineno == value.end_lineno:
            span = value.col_offset, value.end_col_offset or 0
            yield Knob(CONSTANT, name, value.value, value.lineno, span)


def value_of(argv: tuple[str, ...], name: str) -> int | None:
    """The number that an argument is given, as `--name 8`, `--name=8` or `name=8`."""
    for place, word in enumerate(argv):
        head, equals, tail = word.partition("=")
        if head != name:
            continue
        text = tail if equals else argv[place + 1] if place + 1 < len(argv) else ""
        if text.isdecimal():
            return int(text)
    return None


def with_argument(argv: tuple[str, ...], name: str, value: int) -> tuple[str, ...]:
    """The arguments with another number for one of them; at their end if it is not given."""
    words = list(argv)
    for place, word in enumerate(words):
        head, equals, _ = word.partition("=")
        if head == name and equals:
            words[place] = f"{name}={value}"
            return tuple(words)
        if word == name and place + 1 < len(words):
            words[place + 1] = str(value)
            return tuple(words)
    return (*words, name, str(value)) if name.startswith("-") else (*words, f"{name}={value}")
