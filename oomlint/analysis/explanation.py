"""What the model made of one row: what it took each part for, how it came there, what happens."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import Model, classes
from oomlint.analysis.attributes import attribute
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.observation import Observation, Visit, observing
from oomlint.analysis.silence import reasons, refusal
from oomlint.analysis.state import Event, Guard, Loop, World
from oomlint.analysis.values import Callable, External, Instance, Value, settled
from oomlint.analysis.wording import (
    EVENTS,
    GRAD,
    QUIET,
    Meaning,
    clipped,
    meaning,
    missing_role,
    object_of,
)

# Events that are shown before and after those of the row.
NEIGHBOURS = 4


@dataclass(frozen=True, slots=True)
class Line:
    """A row of code; `filename` is empty for the file that is explained."""

    row: int
    code: str
    filename: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One expression: what it was taken for in the worlds, each meaning once."""

    code: str
    row: int
    column: int
    meanings: tuple[Meaning, ...]
    events: tuple[str, ...]
    # Why it is no event although it looks like one; what happens inside; that it is taught.
    note: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    line: Line
    holds: bool


@dataclass(frozen=True, slots=True)
class Way:
    """One way on which the row is reached, and under what."""

    root: str
    root_row: int
    calls: tuple[Line, ...]
    loops: tuple[Line, ...]
    conditions: tuple[Condition, ...]
    gradients: str
    contexts: tuple[str, ...]
    worlds: int


@dataclass(frozen=True, slots=True)
class Happening:
    what: str
    object: str
    line: Line
    here: bool
    iteration: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Story:
    """The events around those of the row, in the worlds that tell it so."""

    root: str
    conditions: tuple[Condition, ...]
    happenings: tuple[Happening, ...]
    earlier: int
    later: int
    worlds: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that the model has to say about one row; `silence` says why it was not followed."""

    row: int
    end_row: int
    code: str
    function: str
    parts: tuple[Part, ...]
    ways: tuple[Way, ...]
    stories: tuple[Story, ...]
    silence: tuple[str, ...]
    worlds: int


def explain(model: Model, row: int) -> Explanation | None:
    """Follows the file anew and watches a row of it; None where no statement stands on the row."""
    module = model.module
    nodes_of_file = ast.walk(module.tree)
    statements = [n for n in nodes_of_file if isinstance(n, ast.stmt) and stands_on(n, row)]
    if not statements:
        return None
    nodes = [part for statement in statements for part in head(statement)]
    function = enclosing(module, statements[0])
    callees = {function.name} if function is not None else set()
    if function is not None and function.owner is not None and function.name == "__call__":
        callees.add(function.owner.name)
    with observing(module, nodes, callees) as observation:
        worlds = model.worlds
    known = set(worlds)
    every = [visit for statement in statements for visit in observation.visits.get(statement, ())]
    # A world that tells a known story again is dropped; if only such came here, they must do.
    visits = [visit for visit in every if visit.world in known] or every
    own = frozenset(nodes)
    return Explanation(
        row=min(statement.lineno for statement in statements),
        end_row=max(last_row(statement) for statement in statements),
        code=module.source.line(row).strip(),
        function=function.qualname if function is not None else "",
        parts=tuple(parts(observation, worlds, nodes)),
        ways=tuple(ways(module, visits)),
        stories=tuple(stories(module, worlds, own)),
        silence=() if visits else tuple(reasons(model, observation, statements[0], function)),
        worlds=len(worlds),
    )


def stands_on(node: ast.stmt, row: int) -> bool:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    rows = [node.lineno, *(decorator.lineno for decorator in decorators)]
    return min(rows) <= row <= last_row(node)


def last_row(node: ast.stmt) -> int:
    """The last row of a statement without the block that belongs to it."""
    body = getattr(node, "body", None) or getattr(node, "cases", None)
    if not body:
        return node.end_lineno or node.lineno
    first = body[0].pattern if isinstance(body[0], ast.match_case) else body[0]
    return max(node.lineno, first.lineno - 1)


def head(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and its own expressions, those of its block left out."""
    yield statement
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from ast.walk(child)


def enclosing(module: Module, statement: ast.stmt) -> Function | None:
    return module.by_node.get(statement) or module.function_of(statement)


def parts(
    observation: Observation, worlds: tuple[World, ...], nodes: list[ast.AST]
) -> Iterator[Part]:
    happened: dict[ast.AST, dict[str, None]] = {}
    inside: dict[ast.AST, dict[str, None]] = {}
    for world in worlds:
        for event in world.events:
            happened.setdefault(event.node, {})[EVENTS[event.kind]] = None
            for call in event.calls if event.kind not in QUIET else ():
                inside.setdefault(call.node, {})[EVENTS[event.kind]] = None
    said = {
        node: meanings
        for node in nodes
        if isinstance(node, ast.expr | ast.stmt)
        and (meanings := meanings_of(observation.readings.get(node, ())))
    }
    for node in sorted(nodes, key=position):
        if not isinstance(node, ast.expr | ast.stmt) or isinstance(node, ast.Constant):
            continue
        meanings = said.get(node, ())
        events = tuple(happened.get(node, ()))
        if not (meanings or events) or only_outside(node, meanings):
            continue
        text = clipped(written(node).splitlines()[0])
        column = observation.module.source.position(observation.module.span(node)[0])[1]
        loud = [event for event in events if event not in {EVENTS[kind] for kind in QUIET}]
        note = taught_by_settings(observation, node)
        if not note and node in inside:
            note = f"what happens inside of it: {', '.join(inside[node])}"
        elif not (loud or note):
            note = why_no_event(node, said) or why_not_followed(observation, node)
        yield Part(text, node.lineno, column, meanings, events, note)


def meanings_of(readings: list[tuple[World, Value]] | tuple[()]) -> tuple[Meaning, ...]:
    return tuple(dict.fromkeys(meaning(world, value) for world, value in readings))[:4]


def only_outside(node: ast.AST, meanings: tuple[Meaning, ...]) -> bool:
    """`torch` in `torch.no_grad()` says nothing to anybody."""
    plain = isinstance(node, ast.Name) and all("from outside" in m.what for m in meanings)
    return plain and bool(meanings)


def why_no_event(node: ast.AST, said: dict[ast.expr | ast.stmt, tuple[Meaning, ...]]) -> str:
    if not isinstance(node, ast.Call):
        return ""
    receiver = None
    if isinstance(node.func, ast.Attribute):
        receiver = next(iter(said.get(node.func.value, ())), None)
    return missing_role(node, receiver, next(iter(said.get(node.func, ())), None))


def taught_by_settings(observation: Observation, node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    item = None
    for world, value in observation.readings.get(node.func, ()):
        teaching = world.project.teaching
        item = item or (teaching.of_value(value) if teaching is not None else None)
    if isinstance(node.func, ast.Attribute):
        for world, value in observation.readings.get(node.func.value, ()):
            teaching = world.project.teaching
            if teaching is not None and item is None:
                item = teaching.of_method(world, settled(value), node.func.attr)
            if teaching is not None and item is None and isinstance(value, External):
                target = attribute(world, value, node.func.attr)
                item = teaching.of_value(target)
    return f"the settings teach that `{item.name}` is: {item.effect.value}" if item else ""


def why_not_followed(observation: Observation, node: ast.AST) -> str:
    """Why a call of a function of the project was one opaque event."""
    if not isinstance(node, ast.Call):
        return ""
    for world, value in observation.readings.get(node.func, ()):
        function = value.function if isinstance(value, Callable) else None
        if function is not None and function not in world.visited:
            return refusal(observation.module, function)
    if isinstance(node.func, ast.Attribute):
        for world, value in observation.readings.get(node.func.value, ()):
            cls = value.cls if isinstance(value, Instance) else None
            method = classes.find_method(world, cls, node.func.attr) if cls is not None else None
            if method is not None and method not in world.visited:
                return refusal(observation.module, method)
    return ""


def position(node: ast.AST) -> tuple[int, int, int]:
    row, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
    # Of two that start together the inner one is read first.
    return row, column, getattr(node, "end_col_offset", 0) or 0


def ways(module: Module, visits: list[Visit]) -> Iterator[Way]:
    counted: dict[Way, set[World]] = {}
    for visit in visits:
        way = way_of(module, visit)
        counted.setdefault(way, set()).add(visit.world)
    for way, worlds in counted.items():
        yield Way(
            way.root,
            way.root_row,
            way.calls,
            way.loops,
            way.conditions,
            way.gradients,
            way.contexts,
            len(worlds),
        )


def way_of(module: Module, visit: Visit) -> Way:
    name, row = root_name(visit.world)
    calls = [line_of(module, call.module, call.node) for call in visit.calls]
    built = visit.functions[-1] if not visit.calls and len(visit.functions) > 1 else None
    if built is not None:
        calls.append(Line(built.node.lineno, f"`{built.qualname}`, to see what `self` holds"))
    return Way(
        name,
        row,
        tuple(calls),
        tuple(dict.fromkeys(loop_line(module, loop) for loop in visit.loops)),
        conditions(module, visit.guards),
        GRAD[visit.grad],
        visit.contexts,
        0,
    )


def root_name(world: World) -> tuple[str, int]:
    root = world.root
    return (root.qualname, root.node.lineno) if root is not None else ("the script itself", 1)


def conditions(module: Module, guards: tuple[Guard, ...]) -> tuple[Condition, ...]:
    return tuple(
        dict.fromkeys(
            Condition(line_of(module, guard.module, guard.test), guard.truth) for guard in guards
        )
    )


def line_of(module: Module, other: Module, node: ast.AST) -> Line:
    filename = "" if other is module else str(other.path)
    return Line(getattr(node, "lineno", 0), clipped(written(node)), filename)


def loop_line(module: Module, loop: Loop) -> Line:
    node = loop.node
    if isinstance(node, ast.For | ast.AsyncFor):
        code = f"for {written(node.target)} in {written(node.iter)}"
    elif isinstance(node, ast.While):
        code = f"while {written(node.test)}"
    else:
        code = written(node)
    filename = "" if loop.module is module else str(loop.module.path)
    return Line(getattr(node, "lineno", 0), clipped(code), filename)


def stories(module: Module, worlds: tuple[World, ...], own: frozenset[ast.AST]) -> Iterator[Story]:
    """What happens around the row's own events, from the first to the last of them."""
    counted: dict[Story, int] = {}
    for world in worlds:
        shown = [e for e in world.events if e.node in own or e.kind not in QUIET]
        places = [index for index, event in enumerate(shown) if is_here(event, own)]
        if not places:
            continue
        first = max(places[0] - NEIGHBOURS, 0)
        last = min(places[-1] + 1 + NEIGHBOURS, len(shown))
        story = Story(
            root_name(world)[0],
            conditions(module, tuple(guard for e in shown[first:last] for guard in e.guards)),
            tuple(happening(module, event, own) for event in shown[first:last]),
            first,
            len(shown) - last,
            0,
        )
        counted[story] = counted.get(story, 0) + 1
    for told, times in counted.items():
        yield Story(told.root, told.conditions, told.happenings, told.earlier, told.later, times)


def happening(module: Module, event: Event, own: frozenset[ast.AST]) -> Happening:
    filename = "" if event.module is module else str(event.module.path)
    line = Line(event.node.lineno, clipped(written(event.node).splitlines()[0]), filename)
    iteration = tuple(loop.iteration for loop in event.loops)
    here = is_here(event, own)
    return Happening(EVENTS[event.kind], object_of(event), line, here, iteration)


def is_here(event: Event, own: frozenset[ast.AST]) -> bool:
    """Whether an event happens on the row, or inside of what the row calls."""
    return event.node in own or any(call.node in own for call in event.calls)
