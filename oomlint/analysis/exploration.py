"""Which worlds of a file are followed: from which function, under which assumptions."""

from __future__ import annotations

import ast
import re
from collections import deque

from oomlint.analysis import dispatch, driven, evaluation, execution, walked
from oomlint.analysis.attributes import first_argument
from oomlint.analysis.calls import evaluate_call
from oomlint.analysis.construction import instance_of
from oomlint.analysis.dispatch import run_block, run_body
from oomlint.analysis.following import bind_unknown, decorated_mode
from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.project import Project
from oomlint.analysis.roots import Reading, Root
from oomlint.analysis.state import Frame, Kind, Stop, World, once
from oomlint.analysis.values import Value

# Here all of the analysis comes together, so here the tables of handlers are filled.
dispatch.EXPRESSIONS.update({**evaluation.HANDLERS, ast.Call: evaluate_call})
dispatch.STATEMENTS.update(execution.HANDLERS)

# Worlds of one root; most training functions have fewer than ten.
MAX_WORLDS = 12
# Evaluation alone has no order of events: its conditions are about which mode it is in.
MAX_WORLDS_WITHOUT_TRAINING = 4
# Statements over all worlds of one root and of one file ...
ROOT_BUDGET = 1_000
FILE_BUDGET = 5_000
# ... behind which every root still has its first world, until these are spent, too.
FIRST_WORLDS_BUDGET = 15_000
# Conditions that decide which steps there are: they are flipped before others.
URGENT = re.compile(r"(?<![a-z])amp(?![a-z])|fp16|scaler|mixed|precision|accum", re.IGNORECASE)
# The iteration in which a condition is asked: the same one again says less than another one.
ITERATION = re.compile(r"#\d+\.\d+")


def worlds_of(project: Project, module: Module) -> list[World]:
    """Every world that is followed for a file, roots in source order."""
    found: list[World] = []
    reached: set[Function] = set()
    spent = 0
    reading = Reading(project, module)
    script = reading.script()
    if script is not None:
        found, spent = explore(project, module, script, reached)
    for root in reading.roots():
        if (root.function in reached and not root.again) or spent > FIRST_WORLDS_BUDGET:
            continue
        if root.function is not None and reading.only_hands_on(root.function, reached):
            continue
        more, cost = explore(project, module, root, reached, alone=spent > FILE_BUDGET)
        found.extend(more)
        spent += cost
    return found


def explore(
    project: Project, module: Module, root: Root, reached: set[Function], alone: bool = False
) -> tuple[list[World], int]:
    """The worlds of one root, by flipping one choice of a known world at a time.

    `alone` asks for the first of them only, as does a root of another file from which nothing
    happens by way of this one.
    A choice whose flip changes no event is idle: it is not flipped again together with others.
    """
    queue: deque[tuple[dict[str, bool], str, World | None]] = deque([({}, "", None)])
    urgent: deque[tuple[dict[str, bool], str, World | None]] = deque()
    again: deque[tuple[dict[str, bool], str, World | None]] = deque()
    asked: set[str] = set()
    seen: set[frozenset[tuple[str, bool]]] = set()
    idle: set[str] = set()
    found: list[World] = []
    spent = runs = 0
    trains = root.trains or project.teaching is not None
    most = 1 if alone else MAX_WORLDS if trains else MAX_WORLDS_WITHOUT_TRAINING
    while (urgent or queue or again) and runs < most and spent < ROOT_BUDGET:
        assumptions, flipped, base = (urgent or queue or again).popleft()
        if flipped in idle:
            continue
        world = run_world(project, module, root, assumptions)
        spent, runs = spent + world.statements, runs + 1
        reached |= world.visited
        if base is None and is_inherited(root, module) and not comes_here(world, module):
            return [world], spent
        tried: set[str] = set()
        if base is not None and story_of(world) == story_of(base):
            idle.add(flipped)
            # What it asks besides is new; the rest is tried from the other world.
            tried = {key for key, _ in base.choices}
        else:
            found.append(world)
        made = dict(assumptions)
        for key, choice in world.choices:
            other = {**made, key: not choice}
            made[key] = choice
            identity = frozenset(other.items())
            if identity not in seen and key not in tried:
                seen.add(identity)
                # In their order: what was asked first decides about most of what follows.
                first = urgent if URGENT.search(key) else queue
                condition = ITERATION.sub("#", key)
                (again if condition in asked else first).append((other, key, world))
                asked.add(condition)
    return found, spent


def is_inherited(root: Root, module: Module) -> bool:
    return root.function is not None and root.function.module is not module


def comes_here(world: World, module: Module) -> bool:
    """Whether an event happens in a file, or by way of a call in it."""
    return any(
        event.module is module or any(call.module is module for call in event.calls)
        for event in world.events
        if event.kind is not Kind.OPAQUE_CALL
    )


Story = tuple[object, ...]


@once
def story_of(world: World) -> Story:
    """What happens in a world: two worlds with one story give the same answers."""
    return tuple(
        (
            event.kind,
            id(event.node),
            event.subject.key if event.subject else "",
            event.value.key if event.value else "",
            event.grad,
            event.marks,
            tuple(event.contexts),
        )
        for event in world.events
        if event.kind is not Kind.OPAQUE_CALL
    )


def run_world(project: Project, module: Module, root: Root, assumptions: dict[str, bool]) -> World:
    world = World(project, module, assumptions=dict(assumptions), root=root.function)
    world.trains = root.trains or project.teaching is not None
    project.followed.append(world)
    try:
        if root.function is None:
            world.enter(Frame(module, None))
            run_block(world, module.tree.body)
        else:
            run_root(world, module, root.function, root.owner)
        driven.run_rest(world)
    except Stop:
        pass
    except RecursionError:
        pass
    return world


def run_root(world: World, module: Module, root: Function, owner: Class | None) -> None:
    world.enter(Frame(module, None))
    this: Value | None = None
    if owner is not None and not is_static(root):
        this = instance_of(world, owner)
    frame = Frame(root.module, root, this=this)
    if this is not None:
        frame.names[first_argument(root)] = this
    bind_unknown(world, frame, root)
    world.visited.add(root)
    mode = decorated_mode(world, root)
    if mode is not None:
        world.grad = mode if isinstance(mode, bool) else None
    if driven.is_process(world, root):
        return
    after = walked.walks_result(world, owner, root)
    if after is not None and owner is not None and this is not None:
        walked.run_walked(world, root, owner, this, after)
        return
    world.enter(frame)
    world.returned = run_body(world, root.node.body)


def is_static(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorators)
