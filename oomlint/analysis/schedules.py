"""Learning-rate schedules: which steps advance them, and of which optimizer they are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import knowledge
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Class, written
from oomlint.analysis.order import steps
from oomlint.analysis.ownership import key_of
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.things import has_own_step
from oomlint.analysis.values import (
    Callable,
    Container,
    Number,
    Thing,
    Unknown,
    Value,
    ancestors,
    settled,
)
from oomlint.analysis.windows import Window

# Schedulers of something else than the learning rate, or that are told where they are.
OTHER_SCHEDULE = re.compile(
    r"noise|compress|prun|spars|profil|beta|kl_|temp|mask|teach|curric|momentum|_wd|weight_?decay"
    r"|warm_?up|sampl|batch",
    re.IGNORECASE,
)
SCHEDULER_NAME = re.compile(r"^_?(\w*_)?(lr)?_?sched(uler)?s?(_?\w{1,4})?$", re.IGNORECASE)
TOLD_WHERE = re.compile(r"timm\.scheduler|ReduceLROnPlateau")


def advances(event: Event) -> bool:
    """Whether an event is a `scheduler.step()` that moves a learning rate on by one.

    One that is given an epoch sets the rate of that epoch, whenever it is called.
    """
    node = event.node
    if event.kind is not Kind.SCHEDULER_STEP or not isinstance(node, ast.Call):
        return False
    if node.args or node.keywords or event.subject is None:
        return False
    subject = settled(event.subject)
    if isinstance(subject, Thing):
        return subject.role is Role.SCHEDULER and not TOLD_WHERE.search(subject.qualified)
    names = [subject.key.removesuffix("[*]").rsplit(".", 1)[-1]]
    if isinstance(subject, Unknown):
        names.append(subject.name)
    named = any(SCHEDULER_NAME.match(name) for name in names)
    return named and not any(OTHER_SCHEDULE.search(name) for name in names)


def optimizer_of(scheduler: Value | None) -> Value | None:
    """The optimizer that a scheduler was built for, where that can be seen."""
    thing = settled(scheduler) if scheduler is not None else None
    if not isinstance(thing, Thing):
        return None
    given = thing.arguments.get("optimizer", thing.arguments.get("0"))
    if isinstance(given, Container) and given.items:
        given = given.items[0]
    if isinstance(given, Thing) and given.role is Role.SCHEDULER:
        return optimizer_of(given)
    return given


def may_belong(scheduler: Value | None, step: Event) -> bool:
    """Whether a scheduler may be that of the optimizer that steps."""
    mine = optimizer_of(scheduler)
    return mine is None or step.subject is None or key_of(mine) == key_of(step.subject)


def steps_of(world: World, scheduler: Value | None) -> list[Event]:
    """Steps of the optimizer that a scheduler changes; of any where that is not known."""
    return [step for step in steps(world) if may_belong(scheduler, step)]


def may_count_itself(world: World, advance: Event) -> bool:
    """Whether a scheduler of which the name is known may be one that decides where it is itself."""
    subject = settled(advance.subject) if advance.subject is not None else None
    if not isinstance(subject, Unknown):
        return False
    module = advance.module
    made = [name for name in module.imports.values() if SCHEDULING.search(name)]
    found = (world.project.find(name, module) for name in made)
    return any(isinstance(cls, Class) and has_own_step(world, cls) for cls in found)


SCHEDULING = re.compile(r"sched\w*$|lr$", re.IGNORECASE)


PROGRESS = re.compile(r"epoch|step|iter|batch|resum|start|warm|first|count", re.IGNORECASE)


def by_progress(advance: Event, step: Event | None = None) -> bool:
    """Whether a schedule is advanced only at some places of the run, as its conditions say."""
    shared = {id(guard.test) for guard in step.guards} if step is not None else set()
    return any(
        PROGRESS.search(ast.unparse(guard.test)) or "%" in guard.key
        for guard in advance.guards
        if id(guard.test) not in shared
    )


def counts_micro_batches(window: Window, advance: Event) -> bool:
    """Whether the length of a schedule is written in micro-batches, so that it may advance on each.

    It is where nothing was divided and the scheduler was built from the length of a loader, or the
    run ends after so many micro-batches.
    """
    thing = settled(advance.subject) if advance.subject is not None else None
    ends = ends_by_counter(window)
    if not isinstance(thing, Thing):
        return ends
    texts = [
        part.key
        for name, given in thing.arguments.items()
        if name not in ("0", "optimizer")
        for value in (given, *captured(given))
        for part in ancestors(value).values()
        if isinstance(part, Number | Unknown)
    ]
    counted = any("len(" in text for text in texts)
    divided = any("/" in text or knowledge.ACCUMULATION_NAME.search(text) for text in texts)
    return (counted or ends) and not divided


def ends_by_counter(window: Window) -> bool:
    """Whether the counter that tells where the window ends tells where the run ends, too."""
    if window.guard is None:
        return False
    counters = {
        written(part.left)
        for part in ast.walk(window.guard.test)
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod)
    }
    return any(
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Gt | ast.GtE)
        and written(test.left) in counters
        and any(isinstance(part, ast.Break | ast.Return) for part in node.body)
        for node in ast.walk(window.loop.node)
        if isinstance(node, ast.If)
        for test in (node.test,)
    )


def captured(value: Value) -> Iterator[Value]:
    """What a function that gives the rate takes from around it: `lambda n: 1 - n / total`."""
    if not isinstance(value, Callable):
        return
    node = value.lambda_node or (value.function.node if value.function is not None else None)
    if node is None:
        return
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    frame = value.frame
    while frame is not None:
        yield from (frame.names[name] for name in sorted(names & frame.names.keys()))
        frame = frame.parent
