"""What is run: a script, a module or one function; found without importing any of it."""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from oomlint.errors import OomlintError

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Target:
    """What a run starts, and the file of it whose text the run gets from elsewhere.

    `file` is absolute. A script is `main` itself; with `module` it is run as under `python -m`.
    With `function` (a qualified name, `Trainer.fit`) the file is imported and the function called
    with what the harness (`package.module:function` or `file.py:function`) returns; relative files
    and modules of a harness are looked for in `folder` first.
    """

    file: str
    main: str
    argv: tuple[str, ...] = ()
    module: str = ""
    function: str = ""
    harness: str = ""
    folder: str = ""

    @property
    def name(self) -> str:
        """As a user would write it."""
        if self.module:
            return f"python -m {self.module}"
        return f"{Path(self.main).name}::{self.function}" if self.function else self.main


def script(path: Path, argv: tuple[str, ...] = ()) -> Target:
    place = str(path.resolve())
    return Target(place, place, argv)


def module(name: str, argv: tuple[str, ...] = ()) -> Target:
    """The target of `python -m name` in the working folder. Raises OomlintError."""
    place = find_module(name)
    return Target(place, place, argv, module=name)


def function(path: Path, name: str, text: str, argv: tuple[str, ...], harness: str) -> Target:
    """One function of a file with this text. Raises OomlintError where it has none of the name."""
    known = definitions(ast.parse(text))
    if not isinstance(known.get(name), Function):
        raise OomlintError(f"{path} has no function `{name}`{suggestion(name, known)}")
    place = str(path.resolve())
    return Target(place, place, argv, function=name, harness=harness, folder=os.getcwd())


def suggestion(name: str, known: dict[str, Definition]) -> str:
    names = [key for key, node in known.items() if isinstance(node, Function)]
    if not names:
        return ""
    last = {key.rpartition(".")[2]: key for key in names}
    near = difflib.get_close_matches(name, names, 1)
    near = near or [last[key] for key in difflib.get_close_matches(name, last, 1)]
    if near:
        return f"; did you mean `{near[0]}`?"
    return f"; it has {', '.join(names[:8])}" + (" ..." if len(names) > 8 else "")


def find_module(name: str) -> str:
    """The file that `python -m name` would run; parents are not imported. Raises OomlintError."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise OomlintError(f"`{name}` is no module's name; give one such as package.train")
    places: list[str] = [os.getcwd(), *(place for place in sys.path if place)]
    parts = name.split(".")
    spec = None
    for number in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:number]), places)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", places)
        if spec is None:
            raise OomlintError(f"{name} is a package without a __main__.py; name a module of it")
    if spec is None or not spec.origin:
        raise OomlintError(f"no module {name} is found from {os.getcwd()}")
    if not spec.origin.endswith(".py"):
        raise OomlintError(f"{name} is {spec.origin}, which is no Python file")
    return os.path.realpath(spec.origin)


def dotted_name(path: str) -> tuple[str, str]:
    """The folder to import a file from, and its name there: packages around it count."""
    folder, name = os.path.split(path)
    parts = [] if name == "__init__.py" else [name.removesuffix(".py")]
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, package = os.path.split(folder)
        parts.insert(0, package)
    return folder, ".".join(parts)


def definitions(tree: ast.Module) -> dict[str, Definition]:
    """Functions, classes and methods of a module by qualified name; what is nested is left out."""
    found: dict[str, Definition] = {}

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, Definition):
                found[prefix + node.name] = node
                if isinstance(node, ast.ClassDef):
                    collect(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.If | ast.Try | ast.With):
                for field in ("body", "orelse", "finalbody"):
                    collect(getattr(node, field, []), prefix)

    collect(tree.body, "")
    return found


def rows_reached(text: str, name: str) -> set[int]:
    """Rows of a function and of what the file defines and the function may call, by its names."""
    known = definitions(ast.parse(text))
    by_last: dict[str, list[str]] = {}
    for key in known:
        by_last.setdefault(key.rpartition(".")[2], []).append(key)
    waiting, reached = [name], set[str]()
    while waiting:
        key = waiting.pop()
        if key in reached:
            continue
        reached.add(key)
        for node in ast.walk(known[key]):
            used = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            waiting += by_last.get(used, ())
    rows: set[int] = set()
    for key in reached:
        node = known[key]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        rows.update(range(first, (node.end_lineno or node.lineno) + 1))
    return rows
