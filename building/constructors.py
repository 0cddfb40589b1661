"""Writes out the constructors of dataclasses, which mypyc would leave to the interpreter.

Each takes the blank line behind its class: all other lines keep their numbers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


class NotWritten(Exception):
    """A class uses something of dataclasses that is not known here."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field: the default that its parameter has, and what makes one for each object."""

    name: str
    default: str | None
    factory: str | None

    @property
    def parameter(self) -> str:
        if self.factory is not None:
            return f"{self.name}=None"
        return self.name if self.default is None else f"{self.name}={self.default}"

    @property
    def assignment(self) -> str:
        if self.factory is None:
            return f"self.{self.name} = {self.name}"
        return f"self.{self.name} = {self.factory}() if {self.name} is None else {self.name}"


def write_constructors(files: Iterable[Path]) -> None:
    """Changes files of one program, between which classes derive from each other.

    Raises:
        NotWritten: a class has no blank line behind it, or says what is not known here.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    found = {file: classes_of(text) for file, text in texts.items()}
    classes: dict[str, ast.ClassDef] = {}
    for node in (node for nodes in found.values() for node in nodes):
        if classes.setdefault(node.name, node) is not node:
            raise NotWritten(f"there are two classes {node.name}")
    for file, nodes in found.items():
        lines = texts[file].split("\n")
        for node in nodes:
            if is_written(node):
                write(node, lines, classes)
        file.write_text("\n".join(lines), encoding="utf-8")


def classes_of(text: str) -> list[ast.ClassDef]:
    return [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def write(node: ast.ClassDef, lines: list[str], classes: Mapping[str, ast.ClassDef]) -> None:
    behind = node.end_lineno
    if behind is None or behind >= len(lines) or lines[behind]:
        raise NotWritten(f"class {node.name} has no blank line behind it")
    fields = all_fields(node, classes).values()
    # Without types: they hold names that the file of a derived class need not know.
    parameters = ", ".join(["self", *(field.parameter for field in fields)])
    body = "; ".join(field.assignment for field in fields)
    lines[behind] = f"    def __init__({parameters}) -> None: {body or 'pass'}"


def is_written(node: ast.ClassDef) -> bool:
    """Whether a constructor is written: a frozen dataclass sets its fields in another way."""
    options = dataclass_options(node)
    if options is None or options.get("frozen") == "True" or has_method(node, "__init__"):
        return False
    if not options.keys() <= {"eq", "slots", "frozen", "order", "repr"}:
        raise NotWritten(f"class {node.name} is made by a dataclass() with other options")
    return True


def has_method(node: ast.ClassDef, name: str) -> bool:
    return any(isinstance(one, ast.FunctionDef) and one.name == name for one in node.body)


def dataclass_options(node: ast.ClassDef) -> dict[str | None, str] | None:
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called) == "dataclass":
            given = decorator.keywords if isinstance(decorator, ast.Call) else []
            return {keyword.arg: ast.unparse(keyword.value) for keyword in given}
    return None


def all_fields(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> dict[str, Field]:
    """The fields in the order of the constructor: inherited ones keep their place."""
    if len(node.bases) > 1 or has_method(node, "__post_init__"):
        raise NotWritten(f"class {node.name} has several bases or a __post_init__")
    found: dict[str, Field] = {}
    for base in node.bases:
        parent = classes.get(ast.unparse(base))
        if parent is None or dataclass_options(parent) is None:
            raise NotWritten(f"class {node.name} derives from a class that is not known here")
        found = all_fields(parent, classes)
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign):
            field = field_of(node, statement)
            found[field.name] = field
    return found


def field_of(node: ast.ClassDef, statement: ast.AnnAssign) -> Field:
    name, kind = ast.unparse(statement.target), ast.unparse(statement.annotation)
    if "ClassVar" in kind or "InitVar" in kind or "KW_ONLY" in kind:
        raise NotWritten(f"{node.name}.{name} is no plain field")
    value = statement.value
    if value is None:
        return Field(name, None, None)
    if not (isinstance(value, ast.Call) and ast.unparse(value.func) == "field"):
        return Field(name, ast.unparse(value), None)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
    # None stands for what was not given, so it must be no value of the field.
    if given.keys() != {"default_factory"} or "None" in kind:
        raise NotWritten(f"{node.name}.{name} is made by a field() with other options")
    return Field(name, None, given["default_factory"])
