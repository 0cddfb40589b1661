"""What an expression can be while the training step is followed: values with an identity."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oomlint.analysis.knowledge import Evidence, Role, role_of_name

if TYPE_CHECKING:
    import ast

    from oomlint.analysis.modules import Class, Function
    from oomlint.analysis.state import Frame

# The loop iterations under way: (serial number of the loop's run, iteration).
Marks = tuple[tuple[int, int], ...]


@dataclass(eq=False, slots=True)
class Value:
    """Anything; two values with the same key are the same object or provably equal."""

    key: str
    # What it was computed from.
    parents: tuple[Value, ...] = ()
    # A backward started from it, or from what was computed from it alone.
    proven: bool = False


# What a call is given; keyword arguments by name.
Arguments = list[Value]
Keywords = dict[str, Value]


@dataclass(eq=False, slots=True)
class Unknown(Value):
    """An object of which only the name or the origin is known."""

    name: str = ""
    role: Role | None = None
    evidence: Evidence | None = None
    # What the call that made it was given; it need not carry any of it.
    made_of: tuple[Value, ...] = ()
    # Its class outside the project, where an annotation or a taught constructor says it.
    qualified: str = ""


@dataclass(eq=False, slots=True)
class Constant(Value):
    value: Any = None


@dataclass(eq=False, slots=True)
class Number(Value):
    """A Python number, string or boolean whose value is not known."""


@dataclass(eq=False, slots=True)
class Tensor(Value):
    """A tensor; `graph` is True or False where that is certain, None where the parents decide."""

    graph: bool | None = None
    # The result of a call that may return anything: parents are no proof of a graph.
    opaque: bool = False
    # A loss or a model's output: what lies before it says nothing about its own scale.
    barrier: bool = False
    loss: bool = False
    reduction: str = ""
    divided: bool = False
    # What made it: an operator's sign, a function's or a method's last name; empty for a model.
    made_by: str = ""
    # An entry of what a call returned: it may be anything, but nobody has changed it.
    entry: bool = False
    # Key of the gradient scaler that scaled it.
    scaled: str = ""
    scaler: Value | None = None


@dataclass(eq=False, slots=True)
class Thing(Value):
    """An object with a role in the training step."""

    role: Role = Role.MODEL
    evidence: Evidence = Evidence.CONSTRUCTED
    # optimizer: keys of the models whose parameters it holds; criterion: its reduction; ...
    models: frozenset[str] = frozenset()
    reduction: str = ""
    qualified: str = ""
    arguments: dict[str, Value] = field(default_factory=dict)
    # The call that made it, in whatever file that is.
    made: ast.Call | None = None


@dataclass(eq=False, slots=True)
class Instance(Value):
    """An object of a class of the project."""

    cls: Class | None = None
    attributes: dict[str, Value] = field(default_factory=dict)
    born: dict[str, Marks] = field(default_factory=dict)
    is_module: bool = False


@dataclass(eq=False, slots=True)
class Callable(Value):
    """A function of the project, bound to its closure and to `self` where it is a method."""

    function: Function | None = None
    frame: Frame | None = None
    this: Value | None = None
    lambda_node: ast.Lambda | None = None
    # What `functools.partial` gave it already.
    given: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)
    # The grad mode that `torch.no_grad()(f)` runs it in.
    mode: bool | None = None


@dataclass(eq=False, slots=True)
class ClassValue(Value):
    cls: Class | None = None


@dataclass(eq=False, slots=True)
class External(Value):
    """A module, function or class outside the project, by its qualified name."""

    qualified: str = ""
    # What `functools.partial` gave it already.
    given: tuple[Value, ...] = ()
    named: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class Method(Value):
    """A method taken from a value without being called."""

    receiver: Value | None = None
    name: str = ""


@dataclass(eq=False, slots=True)
class Super(Value):
    this: Value | None = None
    cls: Class | None = None


@dataclass(eq=False, slots=True)
class Container(Value):
    """A list, tuple, set or dict; what is in it in any order, dict entries with their names."""

    items: list[Value] = field(default_factory=list)
    names: dict[str, Value] = field(default_factory=dict)
    born: Marks = ()
    kind: str = "list"
    bounded: bool = False


@dataclass(eq=False, slots=True)
class Sequence(Value):
    """What a loop runs over: enumerate, zip, range and the like around other values."""

    kind: str = ""
    parts: tuple[Value, ...] = ()


@dataclass(eq=False, slots=True)
class GradContext(Value):
    """`no_grad()` and its relatives; None where the mode cannot be told."""

    mode: bool | None = None


@dataclass(eq=False, slots=True)
class Context(Value):
    """A context manager with a meaning: autocast, accumulate, no_sync, scale_loss."""

    kind: str = ""
    inner: Value | None = None


@dataclass(eq=False, slots=True)
class Either(Value):
    """One of several values, where branches without training events met."""

    options: tuple[Value, ...] = ()


NONE = Constant("None", value=None)


def options(value: Value) -> Iterator[Value]:
    if isinstance(value, Either):
        for option in value.options:
            yield from options(option)
    else:
        yield value


def settled(value: Value) -> Value:
    """The option of an Either that can do something: the first that is no constant."""
    if type(value) is not Either:
        return value
    found = list(options(value))
    for wanted in (Thing, Instance, Callable, Tensor, Container, GradContext):
        for option in found:
            if isinstance(option, wanted):
                return option
    for option in found:
        if not isinstance(option, Constant):
            return option
    return found[0]


def join(first: Value, second: Value) -> Value:
    if first is second or (
        first.key == second.key and type(first) is type(second) and not isinstance(first, Tensor)
    ):
        return first
    found: list[Value] = []
    for option in (*options(first), *options(second)):
        if not any(option is known for known in found):
            found.append(option)
    if len(found) > 6:
        found = found[:6]
    return Either(first.key, options=tuple(found))


def members(value: Value) -> Iterator[Value]:
    """The values that a value stands for or holds, one level down."""
    if isinstance(value, Either):
        yield from value.options
    elif isinstance(value, Container):
        yield from value.items
        yield from value.names.values()
    elif isinstance(value, Sequence):
        yield from value.parts
    yield from value.parents


def ancestors(value: Value) -> dict[int, Value]:
    """Everything a value was computed from, itself included, by identity."""
    found: dict[int, Value] = {}
    stack = [value]
    while stack:
        current = stack.pop()
        if id(current) in found:
            continue
        found[id(current)] = current
        stack.extend(members(current))
        if isinstance(current, Unknown):
            stack.extend(current.made_of)
    return found


Memo = dict[int, bool]


def has_graph(value: Value, memo: Memo | None = None) -> bool:
    """Whether the value certainly carries an autograd graph."""
    memo = {} if memo is None else memo
    known = memo.get(id(value))
    if known is None:
        # Until it is known, a value that leads back to itself adds nothing.
        memo[id(value)] = False
        known = memo[id(value)] = carries(value, memo)
    return known


def carries(value: Value, memo: Memo) -> bool:
    if isinstance(value, Either):
        return all(has_graph(option, memo) for option in value.options)
    if isinstance(value, Container):
        return any(has_graph(item, memo) for item in (*value.items, *value.names.values()))
    if isinstance(value, Tensor):
        if value.graph is not None:
            return value.graph
        if value.proven:
            return True
        return not value.opaque and any(has_graph(part, memo) for part in value.parents)
    if isinstance(value, Unknown):
        return value.proven or any(has_graph(part, memo) for part in value.parents)
    return False


def may_have_graph(value: Value, memo: Memo | None = None) -> bool:
    """Whether the value may be a tensor with a graph (names and numbers excluded)."""
    memo = {} if memo is None else memo
    known = memo.get(id(value))
    if known is None:
        memo[id(value)] = False
        known = memo[id(value)] = may_carry(value, memo)
    return known


def may_carry(value: Value, memo: Memo) -> bool:
    if isinstance(value, Either):
        return any(may_have_graph(option, memo) for option in value.options)
    if isinstance(value, Container):
        return any(may_have_graph(item, memo) for item in (*value.items, *value.names.values()))
    if isinstance(value, Tensor):
        return value.graph is not False
    return isinstance(value, (Unknown, Instance))


def terms(value: Value) -> Iterator[Value]:
    """A loss and what it was computed from, as far as its own scale goes, nearest first."""
    seen: set[int] = set()
    pending: deque[Value] = deque([value])
    while pending:
        current = pending.popleft()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if not (isinstance(current, Tensor) and current.barrier):
            pending.extend(members(current))


def is_divided(value: Value) -> bool:
    """Whether the value, or a term of it, was divided on the way from the loss."""
    return any(isinstance(term, Tensor) and term.divided for term in terms(value))


def scaler_of(value: Value) -> Value | None:
    """The gradient scaler that scaled this loss."""
    for term in terms(value):
        if isinstance(term, Tensor) and term.scaler is not None:
            return term.scaler
    return None


def shortened(key: str) -> str:
    """Keys stay comparable but bounded."""
    if len(key) <= 200:
        return key
    return key[:120] + "~" + hashlib.blake2b(key.encode(), digest_size=12).hexdigest()


def unknown(key: str, name: str) -> Unknown:
    role = role_of_name(name)
    return Unknown(shortened(key), name=name, role=role, evidence=Evidence.NAMED if role else None)
