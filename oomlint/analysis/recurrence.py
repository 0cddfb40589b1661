"""Recurrent state that a training loop hands from one backward to the next with its graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import classes, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, anchor, make_fix
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.state import Event, Kind, Loop, World
from oomlint.analysis.values import (
    Container,
    Either,
    Instance,
    Tensor,
    Thing,
    Value,
    ancestors,
    members,
    options,
    settled,
)
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class Carry:
    """A state that the second of two backwards follows into the graph of the first."""

    forward: Event
    backward: Event
    # The backward of the iteration before.
    earlier: Event
    node: Node
    # The names that are read and written by the forward's statement.
    names: tuple[str, ...]
    # The network's forward, where that keeps the state on the network.
    holder: Function | None = None

    @property
    def retained(self) -> bool:
        return bool(self.earlier.detail.get("retain"))

    @property
    def path(self) -> tuple[tuple[Event, str], ...]:
        return (
            (self.earlier, "backward frees this graph"),
            (self.forward, "forward from a state of that graph"),
            (self.backward, "backward goes through both"),
        )


def carries(model: Model) -> Iterator[Carry]:
    seen: set[int] = set()
    for world in model.worlds:
        for carry in carried_in(model, world):
            if id(carry.node) not in seen:
                seen.add(id(carry.node))
                yield carry


def carried_in(model: Model, world: World) -> Iterator[Carry]:
    backwards = world.of(Kind.BACKWARD)
    steps = world.of(*ask.STEPS, Kind.ENGINE_STEP)
    forwards = [event for event in world.of(Kind.FORWARD) if event.detail.get("mode") is True]
    if not backwards or not steps or not forwards:
        return
    made = {id(event.value) for event in forwards}
    walked = [(b, ancestors(b.value).keys()) for b in backwards if b.value is not None]
    for forward in forwards:
        parents = forward.value.parents if forward.value is not None else ()
        sources = uncut(parents, made, cut_in_place(world, forward, made))
        for other in forwards[: forwards.index(forward)]:
            carried = id(other.value) in sources
            loop = crossed(other, forward)
            if loop is None or not (carried or other.node is forward.node):
                continue
            first, second = walking(walked, other, loop), walking(walked, forward, loop)
            if first is None or second is None or first is second:
                continue
            if not any(mark.serial == loop.serial for step in steps for mark in step.loops):
                continue
            if not carried:
                yield from kept_by_network(model, world, forward, second, first, loop)
                continue
            node = anchor(model, forward)
            if node is not None and not cuts_what_it_returns(forward):
                yield Carry(forward, second, first, node, carried_names(forward))
    yield from kept_by_trainer(model, world)


def crossed(earlier: Event, later: Event) -> Loop | None:
    """The loop of which the two events are in different iterations."""
    for one, other in zip(earlier.loops, later.loops, strict=False):
        if one.serial != other.serial:
            return None
        if one.iteration != other.iteration:
            return other
    return None


def walking(
    walked: Sequence[tuple[Event, Collection[int]]], forward: Event, loop: Loop
) -> Event | None:
    """The first backward through a forward in the iteration of `loop` that the forward is in."""
    iteration = next(mark.iteration for mark in forward.loops if mark.serial == loop.serial)
    for backward, through in walked:
        if backward.index > forward.index and id(forward.value) in through:
            if any(
                mark.serial == loop.serial and mark.iteration == iteration
                for mark in backward.loops
            ):
                return backward
    return None


def cuts_what_it_returns(forward: Event) -> bool:
    """Whether the network knows of detaching: then the state that it returns may be cut."""
    subject = settled(forward.subject) if forward.subject is not None else None
    cls = subject.cls if isinstance(subject, Instance) else None
    if cls is None:
        return False
    # Of most networks in other files no method is read.
    return bool(GRAPH_CUTS & words_of(cls)) or (
        not cls.methods and "detach" in cls.module.source.text
    )


def carried_names(forward: Event) -> tuple[str, ...]:
    """The names that a forward's statement both reads as arguments and assigns."""
    statement = forward.module.statement_of(forward.node)
    if not isinstance(statement, ast.Assign) or not isinstance(forward.node, ast.Call):
        return ()
    written_to = {text for target in statement.targets for text in targets_in(target)}
    read = [text for part in given(forward.node) for text in targets_in(part)]
    return tuple(dict.fromkeys(text for text in read if text in written_to))


def targets_in(node: ast.expr) -> Iterator[str]:
    """The names and attributes that a target or an argument is or holds."""
    if isinstance(node, ast.Tuple | ast.List):
        for part in node.elts:
            yield from targets_in(part)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield written(node)


def given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


# state that a network keeps on itself


def kept_by_network(
    model: Model, world: World, forward: Event, backward: Event, earlier: Event, loop: Loop
) -> Iterator[Carry]:
    """`out, self.hidden = self.rnn(x, self.hidden)` in the network, which nobody resets."""
    subject = forward.subject
    if not isinstance(subject, Instance) or subject.cls is None:
        return
    cls = subject.cls
    method = classes.find_method(world, cls, "forward")
    if method is None or method.owner is None or CUTTING & words_of(method.owner):
        return
    for name, statement in own_state(method):
        if is_reset(method.owner, name, forward, loop):
            continue
        here = method.module is model.module
        node = statement if here else anchor(model, forward)
        if node is not None:
            names = (f"self.{name}",)
            yield Carry(forward, backward, earlier, node, names, method if here else None)


GRAPH_CUTS = frozenset({"detach", "detach_", "no_grad", "repackage_hidden"})
CUTTING = GRAPH_CUTS | {"data", "item"}


def words_of(cls: Class) -> set[str]:
    return {word for method in cls.methods.values() for word in method.words}


def own_state(method: Function) -> Iterator[tuple[str, ast.Assign]]:
    """The attributes that a method hands to a call and gets back from it, each written once."""
    counts: dict[str, list[ast.Assign]] = {}
    for node in ast.walk(method.node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for text in targets_in(target):
                    counts.setdefault(text, []).append(node)
    for text, assigns in counts.items():
        head, _, name = text.partition(".")
        if len(assigns) != 1 or head != "self" or "." in name:
            continue
        value = assigns[0].value
        # `out, state = self.rnn(x, self.state)` and then `self.state = state`.
        sources = [node for part in targets_in(value) for node in counts.get(part, ())]
        calls = [node.value for node in sources] if sources else [value]
        if any(isinstance(call, ast.Call) and takes(call, text) for call in calls):
            yield name, assigns[0]


def takes(call: ast.Call, text: str) -> bool:
    return any(text in targets_in(part) for part in given(call))


def is_reset(cls: Class, name: str, forward: Event, loop: Loop) -> bool:
    """Whether the loop, or what it calls on the way to the forward, starts the state afresh."""
    resetting = {
        method.name
        for method in cls.methods.values()
        if method.name not in ("forward", "__init__") and name in assigned_names(method.node)
    }
    callees = [call.callee.node for call in forward.calls if call.callee is not None]
    for part in (loop.node, *callees):
        if name in assigned_names(part) or calls_any(part, resetting):
            return True
    return False


def assigned_names(node: ast.AST) -> set[str]:
    return {
        text.rpartition(".")[2]
        for part in ast.walk(node)
        if isinstance(part, ast.Assign)
        for target in part.targets
        for text in targets_in(target)
        if "." in text
    }


def calls_any(node: ast.AST, names: Collection[str]) -> bool:
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and (part.func.attr in names or part.func.attr.startswith(("reset", "init_")))
        for part in ast.walk(node)
    )


# state that a trainer keeps on itself, one call of its step after the other


STEP_NAME = re.compile(r"train|step|update|learn|fit|batch|optimi[sz]e")


def kept_by_trainer(model: Model, world: World) -> Iterator[Carry]:
    """A method that trains from `self.state` and leaves there what the forward gave back."""
    root = world.root
    if root is None or root.owner is None or len(world.frames) < 2:
        return
    this = world.frames[1].this
    if not isinstance(this, Instance) or not STEP_NAME.search(root.name):
        return
    for forward in world.of(Kind.FORWARD):
        if forward.detail.get("mode") is not True or forward.module is not model.module:
            continue
        if not isinstance(forward.node, ast.Call):
            continue
        for text in {text for part in given(forward.node) for text in targets_in(part)}:
            name = text.removeprefix("self.")
            if name == text or assigned_beside(root.owner, name, forward):
                continue
            if forward.value is None or not flows(this.attributes.get(name), forward.value):
                continue
            if cut_in_place(world, forward, ()) & {id(part) for part in forward.value.parents}:
                continue
            backward = next(
                (
                    event
                    for event in world.of(Kind.BACKWARD)
                    if event.value is not None
                    and event.index > forward.index
                    and id(forward.value) in ancestors(event.value)
                ),
                None,
            )
            if backward is not None:
                yield Carry(forward, backward, backward, forward.node, (text,))


def assigned_beside(cls: Class, name: str, forward: Event) -> bool:
    """Whether another method starts the state afresh: its caller may do so before each step."""
    return any(
        method is not forward.function
        and method.name != "__init__"
        and name in assigned_names(method.node)
        for method in cls.methods.values()
    )


def flows(value: Value | None, source: Value | None) -> bool:
    """Whether a value is made from a source with nothing on the way that cuts the graph."""
    return value is not None and source is not None and id(source) in uncut([value], set())


def cut_in_place(world: World, forward: Event, made: Collection[int]) -> set[int]:
    """The values that `detach_` has cut before a forward, and those of whose parts it cut one."""
    found: set[int] = set()
    for event in world.of(Kind.DETACH):
        call = event.node
        if event.index > forward.index or event.value is None or not isinstance(call, ast.Call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr == "detach_":
            for value in options(event.value):
                found.add(id(value))
                if isinstance(value, Tensor) and len(value.parents) == 1 and not value.made_by:
                    found.update(id(whole) for whole in value.parents if id(whole) not in made)
    return found


def uncut(
    values: Iterable[Value], borders: Collection[int], severed: Collection[int] = ()
) -> set[int]:
    """What values are made from, as far as a graph surely goes back and up to the borders."""
    visited: set[int] = set()
    stack = list(values)
    while stack:
        value = stack.pop()
        if id(value) in visited or id(value) in severed:
            continue
        visited.add(id(value))
        if id(value) in borders:
            continue
        if isinstance(value, Container | Either) or (
            isinstance(value, Tensor)
            and value.graph is not False
            and (value.entry or not value.opaque)
        ):
            stack.extend(members(value))
    return visited


# the fix


def cut_after_backward(model: Model, carry: Carry) -> Fix | None:
    """`state = state.detach()` behind the backward, part by part where it may be a tuple."""
    module, backward = model.module, carry.backward
    if carry.holder is not None:
        return cut_in_network(module, carry)
    same = backward.module is module and backward.function is carry.forward.function
    if not carry.names or not same or carry.forward.module is not module:
        return None
    if not {*carry.names} <= {*carried_names(carry.forward)}:
        # It gets its new value somewhere else.
        return None
    kind = kind_of_state(carry)
    lines = [cut(name, kind) for name in carry.names]
    try:
        edit = edits.insert_after(module, module.statement_of(backward.node), lines)
    except edits.NoFix:
        return None
    return make_fix(f"Detach `{carry.names[0]}` after the backward", [edit], Safety.UNSAFE)


def cut_in_network(module: Module, carry: Carry) -> Fix | None:
    method, name = carry.holder, carry.names[0]
    if method is None or not isinstance(carry.node, ast.stmt):
        return None
    last = carry.node.end_lineno or carry.node.lineno
    if any(
        isinstance(part, ast.Attribute) and written(part) == name and part.lineno > last
        for part in ast.walk(method.node)
    ):
        # What follows in the forward may need the graph of this step.
        return None
    kind = kind_of_module(method.owner, carry.node)
    try:
        edit = edits.insert_after(module, carry.node, [cut(name, kind)])
    except edits.NoFix:
        return None
    return make_fix(f"Detach `{name}` once the step is computed", [edit], Safety.UNSAFE)


def cut(name: str, kind: str) -> str:
    parts = f"tuple(part.detach() for part in {name})"
    if kind == "tuple":
        return f"{name} = {parts}"
    if kind == "tensor":
        return f"{name} = {name}.detach()"
    return f"{name} = {parts} if isinstance({name}, tuple) else {name}.detach()"


def kind_of_state(carry: Carry) -> str:
    """`tuple` for an LSTM's, `tensor` where several names or the module say so, else empty."""
    if len(carry.names) > 1:
        return "tensor"
    subject = settled(carry.forward.subject) if carry.forward.subject is not None else None
    if isinstance(subject, Thing):
        return KINDS.get(subject.qualified.rpartition(".")[2], "")
    if isinstance(subject, Instance) and subject.cls is not None:
        return kind_of_words(words_of(subject.cls))
    return ""


def kind_of_module(cls: Class | None, node: ast.stmt) -> str:
    return kind_of_words(words_of(cls)) if cls is not None else ""


KINDS = {
    "LSTM": "tuple",
    "GRU": "tensor",
    "RNN": "tensor",
    "GRUCell": "tensor",
    "RNNCell": "tensor",
}


def kind_of_words(words: Collection[str]) -> str:
    found = {KINDS[word] for word in words if word in KINDS}
    return found.pop() if len(found) == 1 and "LSTMCell" not in words else ""
