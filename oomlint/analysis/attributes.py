"""Parts of a value: its attributes, its elements, the methods that are bound to it."""

from __future__ import annotations

import ast

from oomlint.analysis import classes, knowledge
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.following import bind_unknown, follow
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Class, Function
from oomlint.analysis.names import definition
from oomlint.analysis.state import Frame, World
from oomlint.analysis.values import (
    Callable,
    ClassValue,
    Constant,
    Container,
    External,
    Instance,
    Number,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    settled,
    shortened,
    unknown,
)

NO_PART_OF_A_TENSOR = frozenset({Role.OPTIMIZER, Role.SCALER, Role.SCHEDULER})


def attribute(world: World, receiver: Value, name: str) -> Value:
    receiver = settled(receiver)
    if isinstance(receiver, Instance):
        return instance_attribute(world, receiver, name)
    if isinstance(receiver, External):
        qualified = f"{receiver.qualified}.{name}"
        found = None
        if not classes.is_outside(receiver.qualified):
            found = world.project.find(qualified, world.frame.module)
        return definition(found, qualified) if found else External(qualified, qualified=qualified)
    if isinstance(receiver, ClassValue) and receiver.cls is not None:
        method = classes.find_method(world, receiver.cls, name)
        if method is not None:
            kinds = {d.id for d in method.decorators if isinstance(d, ast.Name)}
            owner = receiver if "classmethod" in kinds else None
            return Callable(f"{receiver.key}.{name}", function=method, this=owner)
        return unknown(f"{receiver.key}.{name}", name)
    if isinstance(receiver, Tensor):
        return tensor_attribute(world, receiver, name)
    if (
        isinstance(receiver, Thing)
        and receiver.role is Role.MODEL
        and name in ("module", "_orig_mod")
    ):
        return receiver
    if isinstance(receiver, Container) and name in receiver.names:
        return receiver.names[name]
    place = (receiver.key, name)
    known = world.attributes.get(place) or world.reads.get(place)
    if known is not None:
        return known
    value = unknown(f"{receiver.key}.{name}", name)
    if isinstance(receiver, Unknown) and receiver.role is Role.MODEL and name == "module":
        return receiver
    if isinstance(receiver, Unknown):
        value.parents = (receiver,) if name == "loss" or receiver.proven else ()
    world.reads[place] = value
    return value


def tensor_attribute(world: World, receiver: Tensor, name: str) -> Value:
    if name in ("data", "detach"):
        return Tensor(f"{receiver.key}.{name}", graph=False)
    if name in ("T", "mT", "real", "imag", "H"):
        return Tensor(f"{receiver.key}.{name}", parents=(receiver,))
    if name in knowledge.CUTTING:
        return Number(f"{receiver.key}.{name}")
    certain = bool(knowledge.LOSS_NAME.search(name)) or name in ("logits", "last_hidden_state")
    if knowledge.role_of_name(name) in NO_PART_OF_A_TENSOR:
        # What a call returned that was not followed: `policy = make(); policy.optimizer`.
        place = (receiver.key, name)
        known = world.attributes.get(place) or world.reads.get(place)
        if known is None:
            known = world.reads[place] = unknown(f"{receiver.key}.{name}", name)
        return known
    return Tensor(
        f"{receiver.key}.{name}",
        parents=(receiver,),
        opaque=not certain,
        barrier=certain,
        loss=bool(knowledge.LOSS_NAME.search(name)),
        # The losses that Hugging Face models return are means.
        reduction="mean" if name == "loss" else "",
    )


def instance_attribute(world: World, receiver: Instance, name: str) -> Value:
    if name in receiver.attributes:
        return receiver.attributes[name]
    cls = receiver.cls
    if cls is None:
        return unknown(f"{receiver.key}.{name}", name)
    method = classes.find_method(world, cls, name)
    if method is not None:
        return bound_method(world, method, receiver)
    constant = class_constant(world, cls, name)
    if constant is not None:
        return constant
    assigned = assigned_elsewhere(world, cls, name, receiver)
    value = assigned or unknown(f"{receiver.key}.{name}", name)
    receiver.attributes[name] = value
    return value


def bound_method(world: World, method: Function, receiver: Value) -> Value:
    kinds = {d.id for d in method.decorators if isinstance(d, ast.Name)}
    key = f"{receiver.key}.{method.name}"
    if "staticmethod" in kinds:
        return Callable(key, function=method)
    if "property" in kinds or "cached_property" in kinds:
        return follow(world, Callable(key, function=method, this=receiver), [], {}, method.node)
    return Callable(key, function=method, this=receiver)


def class_constant(world: World, cls: Class, name: str) -> Value | None:
    for kin in classes.lineage(world, cls):
        if name in kin.constants:
            expression = kin.constants[name]
            if isinstance(expression, ast.Constant) and is_dataclass(kin):
                # The default of an option: whoever makes the object may give another.
                key = f"{kin.name}.{name}"
                return unknown(key, name) if expression.value is None else Number(key)
            if isinstance(expression, ast.Constant):
                return Constant(repr(expression.value), value=expression.value)
            dotted = classes.dotted(expression)
            qualified = kin.module.qualified(dotted) if dotted is not None else ""
            others = (other for other in kin.module.classes.values() if other is not kin)
            chosen = any(name in other.constants for other in others) or is_dataclass(kin)
            if qualified.startswith("torch.") and not chosen:
                return External(qualified, qualified=qualified)
            return None
    return None


def is_dataclass(cls: Class) -> bool:
    return any("dataclass" in ast.unparse(part) for part in cls.node.decorator_list)


def held_after(world: World, receiver: Instance, name: str, value: Value) -> Value:
    """What an attribute holds once a constant was assigned: either one, if under a condition.

    Both arms of a condition without events are followed; what they assign to `self` is joined
    there, and what they assign to other objects here.
    """
    if not isinstance(value, Constant) or receiver is world.frame.this:
        return value
    if all(is_settled(world, guard.key) for guard in world.guards):
        return value
    old = instance_attribute(world, receiver, name)
    if isinstance(old, Constant) and old.value == value.value:
        return value
    either = isinstance(old, (Constant, Number)) and old.key != "None" and value.value is not None
    key = f"{receiver.key}.{name}"
    return Number(key) if either else unknown(key, name)


def is_settled(world: World, key: str) -> bool:
    return any(part in world.assumptions for part in key.split(" | ")) or not key


def assigned_elsewhere(world: World, cls: Class, name: str, receiver: Instance) -> Value | None:
    """What a method that was not followed (setup, configure ...) assigns to `self.name`."""
    for kin in classes.lineage(world, cls):
        if not is_assigned_later(kin, name):
            continue
        for expression, method in kin.assigned.get(name, ()):
            if method.name == "__init__" or not isinstance(expression, ast.Call):
                continue
            if len(world.frames) > 30:
                return None
            receiver.attributes[name] = unknown(f"{receiver.key}.{name}", name)
            frame = Frame(method.module, method, this=receiver)
            bind_unknown(world, frame, method)
            frame.names[first_argument(method)] = receiver
            world.enter(frame)
            loops, world.loops = world.loops, []
            events = len(world.events)
            try:
                return evaluate(world, expression)
            finally:
                del world.events[events:]
                world.loops = loops
                world.frames.pop()
    return None


def is_assigned_later(cls: Class, name: str) -> bool:
    """Whether another method than the constructor may assign an attribute, by its text."""
    known: set[str] | None = cls.__dict__.get("assigned_later")
    if known is None:
        known = cls.__dict__["assigned_later"] = set()
        for method in cls.methods.values():
            if method.name != "__init__":
                known |= method.assignable
    return name in known


def first_argument(method: Function) -> str:
    arguments = method.node.args.posonlyargs + method.node.args.args
    return arguments[0].arg if arguments else ""


def element(world: World, receiver: Value, index: Value) -> Value:
    key = shortened(f"{receiver.key}[{index.key}]")
    if isinstance(receiver, Container):
        return container_element(world, receiver, index, key)
    if isinstance(receiver, Tensor):
        name = index.value if isinstance(index, Constant) else None
        certain = name == 0 or not isinstance(name, (int, str))
        if isinstance(name, str):
            certain = bool(knowledge.LOSS_NAME.search(name)) or receiver.loss
        if receiver.key.endswith(".indexed()") and name == 1:
            return Tensor(key, graph=False)
        found = Tensor(key, parents=(receiver,), opaque=not certain, entry=True)
        found.loss = receiver.loss or (isinstance(name, str) and certain)
        return found
    if isinstance(receiver, (Number, Constant)):
        return Number(key)
    if isinstance(receiver, External):
        return External(receiver.key, qualified=receiver.qualified)
    place = (receiver.key, f"[{index.key}]")
    known = world.attributes.get(place) or world.reads.get(place)
    if known is not None:
        return known
    name = index.value if isinstance(index, Constant) and isinstance(index.value, str) else ""
    value = unknown(key, name or getattr(receiver, "name", ""))
    # A mask or a slice of a tensor is a tensor; an entry of a dict or tuple may be anything.
    is_part = isinstance(receiver, Unknown) and not isinstance(index, Constant)
    # The loss of a step's dict, as `.loss` of its outputs: whoever keeps that keeps its graph.
    is_loss = isinstance(receiver, Unknown) and name == "loss"
    value.parents = (receiver,) if is_part or is_loss else ()
    world.reads[place] = value
    return value


def container_element(world: World, receiver: Container, index: Value, key: str) -> Value:
    bound = world.attributes.get((receiver.key, f"[{index.key}]"))
    if bound is not None and not index.key.startswith("-"):
        return bound
    if isinstance(index, Constant):
        if isinstance(index.value, str) and index.value in receiver.names:
            return receiver.names[index.value]
        if isinstance(index.value, int) and receiver.kind in ("tuple", "list"):
            if -len(receiver.items) <= index.value < len(receiver.items):
                return receiver.items[index.value]
    held = [*receiver.items, *receiver.names.values()]
    if "#" in index.key:
        others = bound_beside(world, receiver, index)
        held = [value for value in held if id(value) not in others]
    if not held:
        return unknown(key, "")
    if receiver.kind == "dict" and not receiver.items:
        if isinstance(index, Constant) and isinstance(index.value, str):
            # What another dict brought in by `update` is none of the entries that are known.
            return unknown(key, index.value)
    result = held[0]
    for value in held[1:4]:
        result = join(result, value)
    return result


def bound_beside(world: World, receiver: Container, index: Value) -> set[int]:
    """What this run of a loop bound at its other indices: it is not at this one."""
    run, dot, _ = index.key.rpartition(".")
    if not dot:
        return set()
    return {
        id(value)
        for (key, name), value in world.attributes.items()
        if key == receiver.key and name.rpartition(".")[0] == f"[{run}"
    }
