"""`self` as its constructor leaves it: followed once, copied for every further world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from oomlint.analysis import classes, knowledge
from oomlint.analysis.attributes import first_argument
from oomlint.analysis.dispatch import MAX_STATEMENTS, run_body
from oomlint.analysis.following import bind_unknown
from oomlint.analysis.modules import Class, Function
from oomlint.analysis.state import Frame, Place, Stop, World
from oomlint.analysis.values import (
    Callable,
    Container,
    Either,
    Instance,
    Marks,
    Method,
    Super,
    Unknown,
    Value,
)


class Consulted(dict[str, bool]):
    """Assumptions that remember which of them were asked for, and what they were at the start."""

    def __init__(self, assumptions: Mapping[str, bool]) -> None:
        super().__init__(assumptions)
        self.asked: dict[str, bool | None] = {}

    def get(self, key: str, default: bool | None = None) -> bool | None:  # type: ignore[override]
        found = super().get(key)
        self.asked.setdefault(key, found)
        return default if found is None else found


@dataclass(frozen=True, slots=True)
class Built:
    """What a constructor left behind in a world, under the assumptions that it asked for."""

    asked: dict[str, bool | None]
    choices: tuple[tuple[str, bool], ...]
    this: Instance
    attributes: dict[Place, Value]
    reads: dict[Place, Value]
    attribute_born: dict[Place, Marks]
    frozen: frozenset[str]
    eval_keys: dict[str, bool]
    visited: frozenset[Function]
    serial: int
    grad: bool | None
    contexts: tuple[str, ...]

    def holds(self, assumptions: Mapping[str, bool]) -> bool:
        return all(assumptions.get(key) == value for key, value in self.asked.items())


def instance_of(world: World, cls: Class) -> Instance:
    """`self` in a method of a class, whoever calls it."""
    known = world.project.constructed.setdefault(cls, [])
    for built in known:
        if built.holds(world.assumptions):
            return restored(world, built)
    bases = classes.base_names(world, cls)
    is_module = any(knowledge.MODULE_BASE.fullmatch(base) for base in bases)
    instance = Instance("self", cls=cls, is_module=is_module)
    constructor = classes.find_method(world, cls, "__init__")
    if constructor is None:
        return instance
    assumptions = world.assumptions = Consulted(world.assumptions)
    run_constructor(world, constructor, instance)
    world.assumptions = dict(assumptions)
    known.append(built_by(world, instance, assumptions.asked))
    return instance


def run_constructor(world: World, constructor: Function, instance: Instance) -> None:
    frame = Frame(constructor.module, constructor, this=instance)
    frame.names[first_argument(constructor)] = instance
    bind_unknown(world, frame, constructor)
    world.enter(frame)
    try:
        run_body(world, constructor.node.body)
    except Stop:
        if world.statements > MAX_STATEMENTS:
            raise
    finally:
        world.frames.pop()
        world.events.clear()
        world.loops.clear()
        world.guards.clear()
        world.calls.clear()


def built_by(world: World, instance: Instance, asked: dict[str, bool | None]) -> Built:
    memo: dict[int, Value] = {}
    this = twin(instance, memo)
    assert isinstance(this, Instance)
    return Built(
        asked,
        tuple(world.choices),
        this,
        twins(world.attributes, memo),
        twins(world.reads, memo),
        dict(world.attribute_born),
        frozenset(world.frozen),
        dict(world.eval_keys),
        frozenset(world.visited),
        world.serial,
        world.grad,
        tuple(world.contexts),
    )


def restored(world: World, built: Built) -> Instance:
    memo: dict[int, Value] = {}
    this = twin(built.this, memo)
    assert isinstance(this, Instance)
    world.attributes.update(twins(built.attributes, memo))
    world.reads.update(twins(built.reads, memo))
    world.attribute_born.update(built.attribute_born)
    world.frozen |= built.frozen
    world.eval_keys.update(built.eval_keys)
    world.visited |= built.visited
    world.serial, world.grad = built.serial, built.grad
    world.contexts[:] = built.contexts
    for key, choice in built.choices:
        world.assumptions.setdefault(key, choice)
        world.choices.append((key, choice))
    return this


def twins(values: dict[Place, Value], memo: dict[int, Value]) -> dict[Place, Value]:
    return {place: twin(value, memo) for place, value in values.items()}


def twin(value: Value, memo: dict[int, Value]) -> Value:
    """A copy of what a world may change: objects, containers, and what holds one of these."""
    known = memo.get(id(value))
    if known is not None:
        return known
    if not isinstance(value, (Instance, Container, Unknown, Callable, Either, Method, Super)):
        return value
    made = memo[id(value)] = replace(value)
    if isinstance(made, Instance):
        made.attributes = {name: twin(held, memo) for name, held in made.attributes.items()}
        made.born = dict(made.born)
    elif isinstance(made, Container):
        made.items = [twin(held, memo) for held in made.items]
        made.names = {name: twin(held, memo) for name, held in made.names.items()}
    elif isinstance(made, (Callable, Super)):
        made.this = twin(made.this, memo) if made.this is not None else None
    elif isinstance(made, Method):
        made.receiver = twin(made.receiver, memo) if made.receiver is not None else None
    elif isinstance(made, Either):
        made.options = tuple(twin(option, memo) for option in made.options)
    return made
