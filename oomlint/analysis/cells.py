"""What a notebook shows of its cells, and so keeps: IPython's `Out` holds every value it showed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import edits, parameterless
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import make_fix, short
from oomlint.analysis.knowledge import Evidence
from oomlint.analysis.retention import is_one_tensor
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Tensor, Unknown, ancestors, has_graph, options
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model
    from oomlint.analysis.modules import Module

# The line above a cell of a script, as editors and Jupytext write it.
MARKER = re.compile(r"^#\s?%%", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Shown:
    """A shown value that carries a graph which nothing walks, and the forward that built it."""

    event: Event
    node: ast.expr
    forward: Event | None


def shown_rows(module: Module) -> frozenset[int]:
    """The first rows of statements whose value a notebook shows: the last one of each cell."""
    starts = cell_rows(module)
    if not starts:
        return frozenset()
    last: dict[int, ast.stmt] = {}
    for statement in module.tree.body:
        cell = sum(row <= statement.lineno for row in starts)
        if cell:
            last[cell] = statement
    return frozenset(
        statement.lineno
        for statement in last.values()
        if isinstance(statement, ast.Expr) and not is_hushed(module, statement)
    )


def cell_rows(module: Module) -> list[int]:
    source = module.source
    if source.notebook is not None:
        return [cell.row for cell in source.notebook.cells]
    if "%%" not in source.text:
        return []
    return [source.position(match.start())[0] for match in MARKER.finditer(source.text)]


def is_hushed(module: Module, statement: ast.Expr) -> bool:
    """Whether a semicolon behind it says that it is not to be shown, and so not kept."""
    end = module.span(statement)[1]
    return module.source.text[end:].lstrip(" \t").startswith(";")


def kept_by_showing(model: Model) -> Iterator[Shown]:
    """Each once; a value whose graph is walked in any world is the training's own."""
    found: dict[int, Shown] = {}
    walked: set[int] = set()
    for world in model.worlds:
        shown = world.of(Kind.SHOWN)
        if not shown:
            continue
        fed = ask.fed(world)
        for event in shown:
            value = event.value
            if value is None or not isinstance(event.node, ast.expr):
                continue
            before = ancestors(value)
            if any(key in fed for key, held in before.items() if has_graph(held)):
                walked.add(id(event.node))
            elif has_graph(value) and all(isinstance(one, Tensor) for one in options(value)):
                forwards = [e for e in world.of(Kind.FORWARD) if id(e.value) in before]
                built = next((e for e in forwards if builds_surely(world, e)), None)
                if built is not None or not forwards:
                    found.setdefault(id(event.node), Shown(event, event.node, built))
    for key, one in found.items():
        if key not in walked:
            yield one


def builds_surely(world: World, forward: Event) -> bool:
    """Whether a forward builds a graph: a pipeline called `classifier` runs without gradients."""
    subject = forward.subject
    guessed = isinstance(subject, Unknown) and subject.evidence is Evidence.NAMED
    return subject is not None and not guessed and not parameterless.is_plain(world, subject)


def detached(model: Model, shown: Shown) -> Fix | None:
    """Shows the same numbers without their graph."""
    if shown.event.value is None or not is_one_tensor(shown.event.value):
        return None
    edit = edits.append_call(model.module, shown.node, ".detach()")
    title = f"Show `{short(model.module, shown.node)}.detach()`"
    return make_fix(title, edit, Safety.SAFE)
