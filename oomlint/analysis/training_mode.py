"""Training and evaluation mode of models: where a model is left in evaluation mode and trained."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import classes, knowledge
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, positions
from oomlint.analysis.modules import Class, Function
from oomlint.analysis.nodes import walk
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Instance, Thing, Value, ancestors, has_graph

MODES = frozenset({Kind.EVAL_MODE, Kind.TRAIN_MODE})


@dataclass(frozen=True, slots=True)
class Stuck:
    """Evaluation mode that lasts into training: who set it, what was evaluated, what trains."""

    mode: Event
    evaluated: tuple[Event, ...]
    forward: Event
    backward: Event


def stuck(world: World) -> Iterator[Stuck]:
    """Models that were in training mode, are evaluated inside the training loop and train on."""
    if any(key.endswith(".training") for key, _ in world.choices):
        # The code asks for the mode and puts back what it found.
        return
    switches = [e for e in world.events if e.kind is Kind.EVAL_MODE and e.loops]
    if not switches:
        return
    trained = trained_forwards(world)
    for mode in switches:
        if (
            mode.subject is None
            or restored_by_decorator(world, mode)
            or is_chosen_anew(world, mode)
        ):
            continue
        found = trained_in(world, mode, trained)
        if found is not None and mode_matters(world, mode.subject):
            yield found


def trained_forwards(world: World) -> dict[int, Event]:
    """Identities of the outputs that a backward walks, with the first backward that does."""
    found: dict[int, Event] = {}
    for event in world.events:
        if event.kind is Kind.BACKWARD and event.value is not None:
            for identity in ancestors(event.value):
                found.setdefault(identity, event)
    return found


def trained_in(world: World, mode: Event, trained: dict[int, Event]) -> Stuck | None:
    """The first forward of training after a switch to evaluation mode that nothing took back."""
    loops = {loop.serial for loop in mode.loops}
    evaluated: list[Event] = []
    for event in world.events[mode.index + 1 :]:
        if event.kind in MODES and concerns(event.subject, mode.subject):
            return None
        if event.kind is Kind.OPAQUE_CALL and may_restore(event, mode):
            return None
        if is_evaluation(event, mode):
            evaluated.append(event)
            continue
        if event.kind is not Kind.FORWARD or not concerns(event.subject, mode.subject):
            continue
        backward = trained.get(id(event.value))
        if backward is None or event.value is None or not has_graph(event.value):
            evaluated.append(event)
            continue
        if not evaluated or event.detail["eval_mode"] is not True or event.detail["frozen"]:
            return None
        if not any(loop.serial in loops for loop in event.loops):
            return None
        if not in_training_before(world, mode, trained) and not is_new(world, mode, backward):
            return None
        return Stuck(mode, tuple(evaluated), event, backward)
    return None


def trains_within(world: World, event: Event, node: Node) -> bool:
    """Whether the very run of a call that makes this forward makes one that trains, too."""
    return any(
        id(other.value) in ask.fed(world) and other.loops == event.loops
        for other in world.of(Kind.FORWARD)
        if any(part is node for _, part in positions(other))
    )


def concerns(one: Value | None, other: Value | None) -> bool:
    return one is not None and other is not None and ask.related(one.key, other.key)


def may_restore(event: Event, mode: Event) -> bool:
    """Whether a call that cannot be followed may set the mode of the model."""
    if not ask.may_touch(event, mode.subject) or not isinstance(event.node, ast.Call):
        return False
    name = (classes.dotted(event.node.func) or "").rsplit(".", 1)[-1]
    if ask.same(event.subject, mode.subject):
        return bool(MODE_NAME.search(name))
    return not READING.match(name)


# Methods of a model that may set its mode.
MODE_NAME = re.compile(r"train|eval|mode|fit|restore|reset|^call$", re.I)
# Functions that only read what they are given.
READING = re.compile(
    r"(save|log|print|write|dump|format|count|len|isinstance|hasattr|getattr|id|type|repr|str|copy|clip"
    r"|deepcopy|unwrap|summary|info|debug|sum|list|step|update_ema)",
)
# Methods of a model that evaluate it.
GENERATES = re.compile(
    r"(generate|sample|predict|infer|inference|translate|transcribe|decode|beam_search)(_\w+)?$"
)


def is_evaluation(event: Event, mode: Event) -> bool:
    """Whether the model is asked for samples or predictions."""
    if event.kind is not Kind.OPAQUE_CALL or not concerns(event.subject, mode.subject):
        return False
    called = event.node.func if isinstance(event.node, ast.Call) else None
    return isinstance(called, ast.Attribute) and bool(GENERATES.match(called.attr))


def in_training_before(world: World, mode: Event, trained: dict[int, Event]) -> bool:
    """Whether the author trains this model in training mode before it is evaluated."""
    pretrained = isinstance(mode.subject, Thing) and "from_pretrained" in mode.subject.qualified
    for event in world.events[: mode.index]:
        if not concerns(event.subject, mode.subject):
            continue
        if event.kind is Kind.TRAIN_MODE:
            return True
        if event.kind is Kind.FORWARD and not pretrained and id(event.value) in trained:
            if event.detail["eval_mode"] is not True and event.value and has_graph(event.value):
                return True
    return False


def is_new(world: World, mode: Event, backward: Event) -> bool:
    """Whether the code makes this model, and only this evaluation takes it out of training mode.

    Where a validation comes first, no training in training mode is seen before it.
    """
    model = mode.subject
    if not isinstance(model, Instance | Thing) or not MADE.search(model.key):
        return False
    if isinstance(model, Thing) and LOADED.search(model.qualified):
        return False
    switches = [e for e in world.of(Kind.EVAL_MODE) if concerns(e.subject, model)]
    if any(e.index < backward.index and e.node is not mode.node for e in switches):
        return False
    loops = {loop.serial for loop in backward.loops}
    return any(
        step.index > backward.index and any(loop.serial in loops for loop in step.loops)
        for step in ask.steps(world)
    )


# The key of an object says where it was made; what is loaded may be meant to stay as it is.
MADE = re.compile(r"@[^@]*:\d+:\d+:[^@]*\(\)$")
LOADED = re.compile(r"from_pretrained|load|hub")


def is_chosen_anew(world: World, mode: Event) -> bool:
    """Whether a loop around chooses the mode again: one branch trains, another one evaluates."""
    called = mode.node.func if isinstance(mode.node, ast.Call) else None
    if not isinstance(called, ast.Attribute):
        return False
    receiver = classes.dotted(called.value) or ""
    # Worlds go through the same loops again and again.
    memo = world.project.__dict__.setdefault("modes_chosen", {})
    for loop in mode.loops:
        key = id(mode.node), id(loop.node)
        if key not in memo:
            memo[key] = chooses_mode(loop.node, mode.node, receiver)
        if memo[key]:
            return True
    return False


def chooses_mode(loop: ast.AST, mode: ast.AST, receiver: str) -> bool:
    for node in walk(loop):
        if not isinstance(node, ast.If) or not node.orelse:
            continue
        arms = [modes_set(node.body, receiver), modes_set(node.orelse, receiver)]
        here = any(part is mode for part in walk(node))
        if not here and all(arms) and arms[0] | arms[1] == {"train", "eval"}:
            return True
    return False


def modes_set(block: list[ast.stmt], receiver: str) -> set[str]:
    """Which of `train` and `eval` a block calls on a model."""
    names = {f"{receiver}.{mode}": mode for mode in ("train", "eval")}
    calls = (n for part in block for n in ast.walk(part) if isinstance(n, ast.Call))
    return {names[text] for call in calls if (text := classes.dotted(call.func) or "") in names}


def restored_by_decorator(world: World, mode: Event) -> bool:
    """Whether a decorator of unknown effect is around the function that sets the mode."""
    functions: list[Function | None] = [mode.function, *(call.callee for call in mode.calls)]
    return any(
        not is_plain(function, decorator)
        for function in functions
        if function is not None
        for decorator in function.decorators
    )


def is_plain(function: Function, decorator: ast.expr) -> bool:
    """Whether a decorator is one of Python's or torch's own, which leave the mode alone."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    text = classes.dotted(called) or ""
    head = text.split(".")[0]
    target = function.module.imports.get(head, head)
    known = ("torch", "functools", "staticmethod", "classmethod", "property")
    return target.split(".")[0] in known or bool(knowledge.NO_GRAD_NAME.search(text))


# Layers that behave in another way in evaluation mode, and names that may stand for any layer.
MODE_WORDS = re.compile(
    r"[Dd]rop|Batch_?[Nn]orm|Instance_?[Nn]orm|SyncB|batch_?norm|\btraining\b|RReLU|rrelu|[Ss]pectral"
    r"|Transformer|MultiheadAttention|pretrained|torchvision|timm|models\.|hub\b|norm_layer"
)


def mode_matters(world: World, model: Value) -> bool:
    """False where the model is known whole and holds nothing that asks for the mode."""
    if isinstance(model, Thing) and model.qualified.startswith("torch.nn."):
        if model.qualified.endswith(".Sequential"):
            parts = model.arguments.values()
            return not parts or any(mode_matters(world, part) for part in parts)
        return bool(MODE_WORDS.search(model.qualified))
    if isinstance(model, Instance) and model.cls is not None:
        return class_matters(world, model.cls, set())
    return True


def class_matters(world: World, cls: Class, seen: set[Class]) -> bool:
    if cls in seen:
        return False
    seen.add(cls)
    bases = classes.base_names(world, cls)
    inside = {kin.name for kin in classes.lineage(world, cls)}
    if any(b.rsplit(".", 1)[-1] not in inside and b not in PLAIN_BASES for b in bases):
        return True
    for kin in classes.lineage(world, cls):
        if kin.module is not world.subject:
            # Of a network in another file only its header is read.
            return True
        if MODE_WORDS.search(kin.module.segment(kin.node)):
            return True
        for name in sorted(constructed(kin)):
            part = kin.module.class_(name)
            if part is not None and class_matters(world, part, seen):
                return True
            if part is None and is_foreign(kin, name):
                return True
    return False


PLAIN_BASES = frozenset({"torch.nn.Module", "torch.nn.modules.module.Module", "object"})


def constructed(cls: Class) -> set[str]:
    """Heads of the names that the class's methods call."""
    calls = (node for node in ast.walk(cls.node) if isinstance(node, ast.Call))
    names = (classes.dotted(call.func) for call in calls)
    return {name.split(".")[0] for name in names if name}


def is_foreign(cls: Class, name: str) -> bool:
    """Whether a name comes from another file or package than torch, so that it may be any layer."""
    target = cls.module.imports.get(name, "")
    return bool(target) and target.split(".")[0] not in classes.OUTSIDE | knowledge.NUMBER_MODULES
