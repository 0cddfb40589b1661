"""Assignments: what a target holds, what it is bound to, which of them keep a total."""

from __future__ import annotations

import ast

from oomlint.analysis import knowledge
from oomlint.analysis.attributes import attribute, element, held_after, instance_attribute
from oomlint.analysis.dispatch import Signal, evaluate
from oomlint.analysis.keeping import JOINING, crosses, graph_leaves, joins, keep_in_total
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import written
from oomlint.analysis.operations import binary
from oomlint.analysis.roles import role_of
from oomlint.analysis.state import Kind, World
from oomlint.analysis.values import (
    Constant,
    Container,
    Either,
    Instance,
    Marks,
    Tensor,
    Thing,
    Unknown,
    Value,
    ancestors,
    may_have_graph,
    settled,
    unknown,
)

COMPREHENSIONS = frozenset((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))


def run_assign(world: World, node: ast.Assign) -> Signal:
    if type(node.value) in COMPREHENSIONS:
        node.value.__dict__.setdefault("collected_in", written(node.targets[0]))
    value = evaluate(world, node.value)
    for target in node.targets:
        assign(world, target, value, node, node.value)
    return None


def run_annotated(world: World, node: ast.AnnAssign) -> Signal:
    if node.value is not None:
        assign(world, node.target, evaluate(world, node.value), node, node.value)
    return None


def run_augmented(world: World, node: ast.AugAssign) -> Signal:
    old, born, place = current(world, node.target)
    value = evaluate(world, node.value)
    if isinstance(node.target, ast.Attribute) and node.target.attr in ("grad", "data"):
        if node.target.attr == "grad" or ".grad" in written(node.target):
            world.emit(Kind.GRADIENT_TOUCHED, node)
            return None
    if old is None:
        old = unknown(place, place)
    if isinstance(old, Container):
        extend(world, node, old, value)
        return None
    total = binary(world, node.op, old, value, node.value)
    if isinstance(node.op, (ast.Add, ast.Sub)) and isinstance(total, Tensor):
        keep_in_total(world, node, place, old, value, born, total)
        bind(world, node.target, total, born)
        return None
    bind(world, node.target, total)
    return None


def assign(world: World, target: ast.expr, value: Value, node: ast.stmt, source: ast.expr) -> None:
    if isinstance(target, (ast.Tuple, ast.List)):
        if isinstance(source, (ast.Tuple, ast.List)) and len(source.elts) == len(target.elts):
            parts: list[Value] = []
            if isinstance(value, Container) and len(value.items) == len(target.elts):
                parts = value.items
            for i, goal in enumerate(target.elts):
                part = parts[i] if parts else element(world, value, Constant(str(i), value=i))
                assign(world, goal, part, node, source.elts[i])
            return
        unpack(world, target, value)
        return
    if may_be_total(target, value, source):
        old, born, place = current(world, target)
        if old is not None and id(old) in ancestors(value):
            keep_in_total(world, node, place, old, added(value, old), born, value)
            bind(world, target, value, born)
            return
    if isinstance(target, ast.Attribute) and target.attr == "grad":
        evaluate(world, target.value)
        gradient_assigned(world, node, value, evaluate(world, target.value))
        return
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        freeze_parameter(world, node, target, value)
        return
    if isinstance(target, ast.Subscript):
        bind_item(world, target, value, node, source)
        return
    bind(world, target, named_object(target, value, source))


# What a call of unknown code returns is such an object where its name and its use say so.
MADE_BY_FACTORIES = frozenset({Role.MODEL, Role.OPTIMIZER, Role.SCALER, Role.SCHEDULER})


def named_object(target: ast.expr, value: Value, source: ast.expr) -> Value:
    """`model = build_model(config)`: an object with the role of its name, not a tensor."""
    if not isinstance(source, ast.Call) or not isinstance(target, (ast.Name, ast.Attribute)):
        return value
    made = made_by_call(value)
    return value if made is None else made_by_factory(target, value, made)


# Methods of networks that give back the network.
CASTS = frozenset("to cuda cpu float half double bfloat16 train eval requires_grad_".split())


def made_by_call(value: Value) -> Value | None:
    """What a call out of sight returned, before it was cast; None for what is no such result."""
    while isinstance(value, Tensor) and value.made_by in CASTS and value.parents:
        value = value.parents[0]
    if isinstance(value, Tensor):
        return value if value.opaque and not value.entry else None
    made = isinstance(value, Unknown) and value.role is None and bool(value.made_of)
    return value if made else None


def made_by_factory(target: ast.Name | ast.Attribute, value: Value, made: Value) -> Value:
    """The object that a name says, unless the name says nothing."""
    found = unknown(value.key, target.id if isinstance(target, ast.Name) else target.attr)
    # What a network's method returns is no network: `policy = actor.act(x)`.
    known = MADE_BY_FACTORIES if isinstance(made, Tensor) else MADE_BY_FACTORIES - {Role.MODEL}
    if found.role not in known:
        return value
    found.made_of = made.made_of if isinstance(made, Unknown) else made.parents
    return found


def may_be_total(target: ast.expr, value: Value, source: ast.expr) -> bool:
    """Whether a new value may be the old one with something added, mixed in or put beside it."""
    if not isinstance(source, (ast.BinOp, ast.IfExp)):
        if not isinstance(source, ast.Call) or not joins(source):
            return False
    if not isinstance(target, (ast.Name, ast.Attribute)) or not isinstance(value, (Tensor, Either)):
        return False
    known: bool | None = target.__dict__.get("goes_on")
    if known is None:
        kind, text = type(target), written(target)
        parts = (part for part in ast.walk(source) if type(part) is kind)
        known = target.__dict__["goes_on"] = any(written(part) == text for part in parts)
    return known


def added(value: Value, old: Value) -> Value:
    """The part of a total that is not the old total."""
    operation = isinstance(value, Tensor) and value.made_by not in JOINING
    if operation and len(value.parents) == 2:
        for one, other in (value.parents, value.parents[::-1]):
            if one is old:
                return other
            if id(old) in ancestors(one) and id(old) not in ancestors(other):
                return other
    return value


def gradient_assigned(world: World, node: ast.stmt, value: Value, parameter: Value) -> None:
    kind = (
        Kind.ZERO_GRAD
        if isinstance(value, Constant) and value.value is None
        else (Kind.GRADIENT_TOUCHED)
    )
    # `for p in model.parameters(): p.grad = None` is `model.zero_grad()`.
    model = None
    if isinstance(parameter, Unknown) and parameter.name == "parameter" and parameter.made_of:
        model = parameter.made_of[0]
    world.emit(kind, node, model if kind is Kind.ZERO_GRAD else None)


def freeze_parameter(world: World, node: ast.stmt, target: ast.Attribute, value: Value) -> None:
    """`p.requires_grad = False` in a loop over `model.parameters()` freezes the model."""
    receiver = evaluate(world, target.value)
    off = isinstance(value, Constant) and value.value is False
    key = receiver.key.split(".parameters()")[0].split(".named_parameters()")[0]
    if off and ".parameters()" in receiver.key:
        if not is_chosen_by_name(world):
            world.frozen.add(key)
    elif isinstance(value, Constant) and value.value is True and "parameters()" in receiver.key:
        unfreeze(world, key)
    elif (
        isinstance(value, Constant) and value.value is True and ".parameters()" not in receiver.key
    ):
        world.emit(Kind.GRADIENT_TAKEN, node, None, receiver, what="requires_grad")


def is_chosen_by_name(world: World) -> bool:
    """Whether only some parameters of the loop are meant: `if "adapter" not in name`."""
    loop = world.loops[-1].node if world.loops else None
    if not isinstance(loop, ast.For):
        return False
    targets = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
    return any(
        isinstance(part, ast.Name) and part.id in targets
        for guard in world.guards
        for part in ast.walk(guard.test)
    )


def unfreeze(world: World, key: str) -> None:
    """A part that is trained makes a graph in the whole."""
    world.frozen -= {
        one for one in world.frozen if key == one or key.startswith((f"{one}.", f"{one}["))
    }


def unpack(world: World, target: ast.Tuple | ast.List, value: Value) -> None:
    value = settled(value)
    for i, goal in enumerate(target.elts):
        if isinstance(goal, ast.Starred):
            bind(world, goal.value, unknown(f"{value.key}[*]", ""))
            continue
        index = Constant(str(i), value=i)
        part = element(world, value, index)
        if isinstance(value, Tensor) and isinstance(goal, ast.Name):
            if knowledge.LOSS_NAME.search(goal.id) and isinstance(part, Tensor):
                part.opaque, part.loss = value.opaque and not value.proven, True
            if isinstance(part, Tensor) and value.key.endswith(".indexed()") and i == 0:
                part.opaque = False
        if isinstance(part, Unknown) and part.role is None and isinstance(goal, ast.Name):
            part = unknown(part.key, goal.id)
            part.parents = (value,) if isinstance(value, Unknown) else ()
        if isinstance(part, Tensor) and part.opaque and isinstance(goal, (ast.Name, ast.Attribute)):
            part = made_by_factory(goal, part, part)
        bind(world, goal, part)


def bind(world: World, target: ast.expr, value: Value, born: Marks | None = None) -> None:
    """Gives a target its value; `born` keeps the time of a total that goes on."""
    when = world.marks if born is None else born
    if isinstance(target, ast.Name):
        frame = world.frame
        if isinstance(value, Unknown) and value.role is None:
            # Another name for the same thing may say more: `for optimizer in (first, second)`.
            role = knowledge.role_of_name(target.id)
            if role in (Role.OPTIMIZER, Role.SCALER):
                value.role, value.evidence = role, Evidence.NAMED
        if target.id in frame.outer:
            scope = frame.parent
            while scope is not None and target.id not in scope.names:
                scope = scope.parent
            script = world.frames[0]
            if scope is not None:
                frame = scope
            elif world.root is None and script.module is frame.module:
                frame = script
            else:
                world.attributes[("global:" + frame.module.name, target.id)] = value
                return
        frame.names[target.id] = value
        frame.born[target.id] = when
    elif isinstance(target, ast.Attribute):
        receiver = settled(evaluate(world, target.value))
        if isinstance(value, (Thing, Instance)) and role_of(world, value) is Role.MODEL:
            # `model.fc = nn.Linear(n, 2)`: the new layer is trained.
            unfreeze(world, receiver.key)
        if isinstance(receiver, Instance):
            receiver.attributes[target.attr] = held_after(world, receiver, target.attr, value)
            receiver.born[target.attr] = when
        else:
            world.attributes[(receiver.key, target.attr)] = value
            world.attribute_born[(receiver.key, target.attr)] = when
    elif isinstance(target, ast.Subscript):
        bind_item(world, target, value)
    elif isinstance(target, (ast.Tuple, ast.List)):
        unpack(world, target, value)
    elif isinstance(target, ast.Starred):
        bind(world, target.value, value)


def bind_item(
    world: World,
    target: ast.Subscript,
    value: Value,
    node: ast.stmt | None = None,
    source: ast.expr | None = None,
) -> None:
    receiver = settled(evaluate(world, target.value))
    index = evaluate(world, target.slice)
    if isinstance(receiver, Container):
        if isinstance(index, Constant) and isinstance(index.value, str):
            receiver.names[index.value] = value
            return
        put_item(world, receiver, index, value)
        # A key that changes with the loop makes an entry in every iteration.
        grows = "#" in index.key and not receiver.bounded and crosses(receiver.born, world.marks)
        if grows and source is not None and may_have_graph(value):
            leaf = graph_leaves(world, source)
            world.emit(
                Kind.KEEP,
                node or target,
                receiver,
                value,
                how="container",
                born=receiver.born,
                leaves=leaf,
                place=written(target.value),
            )
    else:
        if isinstance(receiver, Tensor) and node is not None and "#" in index.key:
            # `bank[i] = output`: the tensor's graph grows by each one that is written into it.
            _, born, place = current(world, target.value)
            keep_in_total(world, node, place, receiver, value, born, receiver)
        world.attributes[(receiver.key, f"[{index.key}]")] = value
        world.attribute_born[(receiver.key, f"[{index.key}]")] = world.marks


def put_item(world: World, container: Container, index: Value, value: Value) -> None:
    """Binds an entry; what was bound at the same index is no longer held."""
    place = (container.key, f"[{index.key}]")
    before = world.attributes.get(place)
    world.attributes[place] = value
    for i, held in enumerate(container.items):
        if held is before:
            container.items[i] = value
            return
    if len(container.items) < 8:
        container.items.append(value)


def current(world: World, target: ast.expr) -> tuple[Value | None, Marks, str]:
    """What a target holds now, since when, and the name of the place."""
    if isinstance(target, ast.Name):
        frame = world.frame
        if target.id not in frame.names and (frame.function is None or target.id in frame.outer):
            scope = frame.parent
            while scope is not None and target.id not in scope.names:
                scope = scope.parent
            frame = scope or frame
        return frame.names.get(target.id), frame.born.get(target.id, ()), target.id
    if isinstance(target, ast.Attribute):
        receiver = settled(evaluate(world, target.value))
        place = f"{written(target)}"
        if isinstance(receiver, Instance):
            held = receiver.attributes.get(target.attr)
            if held is None:
                held = instance_attribute(world, receiver, target.attr)
            return held, receiver.born.get(target.attr, ()), place
        key = (receiver.key, target.attr)
        held = world.attributes.get(key) or world.reads.get(key)
        if held is None:
            held = attribute(world, receiver, target.attr)
        return held, world.attribute_born.get(key, ()), place
    if isinstance(target, ast.Subscript):
        held = evaluate(world, target)
        receiver = settled(evaluate(world, target.value))
        if isinstance(receiver, Container):
            return held, receiver.born, written(target)
        # A part of a tensor is as old as the tensor.
        return held, current(world, target.value)[1], written(target)
    return None, (), ""


def extend(world: World, node: ast.AugAssign, old: Container, value: Value) -> None:
    given = value.items if isinstance(value, Container) else [value]
    if len(old.items) < 8:
        old.items.extend(given)
    if old.bounded or not crosses(old.born, world.marks):
        return
    leaf = graph_leaves(world, node.value)
    for item in given:
        world.emit(Kind.KEEP, node, old, item, how="container", born=old.born, leaves=leaf)
