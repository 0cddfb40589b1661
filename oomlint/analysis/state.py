"""One world of a file: the events that happen, in order, under one set of assumptions."""

from __future__ import annotations

import ast
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import wraps
from typing import Any, TypeVar

from oomlint.analysis.modules import Function, Module
from oomlint.analysis.project import Project
from oomlint.analysis.values import Marks, Value


class Kind(Enum):
    """What can happen in a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ZERO_GRAD = "zero_grad"
    UNSCALE = "unscale_"
    CLIP = "clip"
    STEP = "optimizer step"
    SCALER_STEP = "scaler.step"
    SCALER_UPDATE = "scaler.update"
    SCHEDULER_STEP = "scheduler step"
    ENGINE_STEP = "engine step"
    EVAL_MODE = "eval mode"
    TRAIN_MODE = "train mode"
    GRADIENT_TAKEN = "autograd.grad"
    GRADIENT_TOUCHED = "gradients changed by hand"
    KEEP = "kept"
    ENVIRONMENT_STEP = "environment step"
    OPAQUE_CALL = "call that cannot be followed"
    DETACH = "detach"
    SHOWN = "value shown by a notebook"

    # Members are single objects: identity is a cheaper hash than that of the name.
    __hash__ = object.__hash__


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition under which an event happens, with the truth value it has in this world."""

    test: ast.expr
    truth: bool
    key: str
    module: Module


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that an event is in."""

    node: ast.AST
    serial: int
    iteration: int
    module: Module
    # The iterations under way, this one included, outermost first.
    marks: Marks = ()


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was followed to reach an event."""

    node: ast.AST
    module: Module
    callee: Function | None
    caller_this: Value | None
    this: Value | None
    # What the call's positional arguments are, in order.
    arguments: tuple[Value, ...] = ()


@dataclass(eq=False, slots=True)
class Event:
    """One thing that happens; `subject` is the object that it happens to."""

    kind: Kind
    node: ast.expr | ast.stmt
    module: Module
    function: Function | None
    subject: Value | None
    value: Value | None
    guards: tuple[Guard, ...]
    loops: tuple[Loop, ...]
    calls: tuple[Call, ...]
    grad: bool | None
    contexts: tuple[str, ...]
    index: int
    # What belongs to one kind only: place, receiver, old value, closure ...
    detail: dict[str, object] = field(default_factory=dict)

    @property
    def marks(self) -> Marks:
        return self.loops[-1].marks if self.loops else ()


@dataclass(eq=False, slots=True)
class Frame:
    """The names of one call."""

    module: Module
    function: Function | None
    parent: Frame | None = None
    this: Value | None = None
    names: dict[str, Value] = field(default_factory=dict)
    born: dict[str, Marks] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)
    returns: list[Value] = field(default_factory=list)
    # Who gets what a generator yields.
    consumer: Callable[[Value], None] | None = None


# An attribute of an object: its key and the attribute's name.
Place = tuple[str, str]


class Stop(Exception):
    """The world ends here: too long, or the code left the part that is followed."""


class Raised(Stop):
    """A body raises on every way that is followed."""


@dataclass(eq=False, slots=True)
class World:
    """A run through the code under assumptions about its conditions."""

    project: Project
    subject: Module
    # A mapping: of what is known to be a dict, compiled code does not ask `Consulted.get`.
    assumptions: MutableMapping[str, bool] = field(default_factory=dict)
    # Every condition that was decided without being forced, in order, with its choice.
    choices: list[tuple[str, bool]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    guards: list[Guard] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    contexts: list[str] = field(default_factory=list)
    grad: bool | None = True
    root: Function | None = None
    # Whether it may come to a backward: only then does an iteration meet the one before it.
    trains: bool = True
    frames: list[Frame] = field(default_factory=list)
    # Every frame that there was.
    entered: list[Frame] = field(default_factory=list)
    # Attributes of objects that are not of the project, as they were assigned ...
    attributes: dict[Place, Value] = field(default_factory=dict)
    # ... and as they were first read where nothing was assigned.
    reads: dict[Place, Value] = field(default_factory=dict)
    attribute_born: dict[Place, Marks] = field(default_factory=dict)
    frozen: set[str] = field(default_factory=set)
    # What was cast to float16: its key, the call that did it, how many events there were by then.
    halved: dict[str, tuple[ast.Call, int]] = field(default_factory=dict)
    eval_keys: dict[str, bool] = field(default_factory=dict)
    visited: set[Function] = field(default_factory=set)
    returned: Value | None = None
    # Objects of a framework that call the project's functions in a loop, as they were made.
    engines: list[Value] = field(default_factory=list)
    statements: int = 0
    # How many `try` around have a handler, which says what happens where something raises.
    catching: int = 0
    serial: int = 0
    # What was asked of the world once it had been followed, with the answers.
    answers: dict[object, Any] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        return self.frames[-1]

    @property
    def marks(self) -> Marks:
        return self.loops[-1].marks if self.loops else ()

    def enter(self, frame: Frame) -> None:
        self.frames.append(frame)
        self.entered.append(frame)

    def enter_loop(self, node: ast.AST, serial: int, iteration: int) -> None:
        marks = (*self.marks, (serial, iteration))
        self.loops.append(Loop(node, serial, iteration, self.frame.module, marks))

    def emit(
        self,
        kind: Kind,
        node: ast.expr | ast.stmt,
        subject: Value | None = None,
        value: Value | None = None,
        **detail: object,
    ) -> Event:
        event = Event(
            kind,
            node,
            self.frame.module,
            self.frame.function,
            subject,
            value,
            tuple(self.guards),
            tuple(self.loops),
            tuple(self.calls),
            self.grad,
            tuple(self.contexts),
            len(self.events),
            detail,
        )
        self.events.append(event)
        return event

    def of(self, *kinds: Kind) -> Sequence[Event]:
        """The events of some kinds, in order; only for a world that has been followed."""
        events = by_kind(self)
        if len(kinds) == 1:
            return events.get(kinds[0], [])
        lists = [events[kind] for kind in kinds if kind in events]
        if len(lists) < 2:
            return lists[0] if lists else []
        return sorted((event for found in lists for event in found), key=by_index)


def by_index(event: Event) -> int:
    return event.index


Answer = TypeVar("Answer")


def once(question: Callable[[World], Answer]) -> Callable[[World], Answer]:
    """Keeps the answer to a question with the world: nothing changes once it was followed."""

    @wraps(question)
    def asked(world: World) -> Answer:
        if question not in world.answers:
            world.answers[question] = question(world)
        answer: Answer = world.answers[question]
        return answer

    return asked


@once
def by_kind(world: World) -> dict[Kind, list[Event]]:
    """The events of each kind, in order."""
    found: dict[Kind, list[Event]] = {}
    for event in world.events:
        found.setdefault(event.kind, []).append(event)
    return found
