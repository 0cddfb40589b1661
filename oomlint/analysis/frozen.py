"""Forwards in a training step whose graph serves nobody: teachers, targets, frozen encoders."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import callers, classes, edits, knowledge, sites
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, anchor, make_fix
from oomlint.analysis.modules import TEXTS, Class, Function, Module, written
from oomlint.analysis.parameterless import in_full
from oomlint.analysis.project import Definition
from oomlint.analysis.recurrence import uncut
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Instance, Tensor, Thing, Unknown, ancestors, options
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class Wasted:
    """A forward with grad mode on whose graph is dropped, or leads to what nobody trains."""

    forward: Event
    node: Node
    path: tuple[tuple[Event, str], ...]
    # The output is detached; else its gradient goes to parameters that no optimizer holds.
    detached: bool


def wasted(model: Model) -> Iterator[Wasted]:
    used, passing = used_forwards(model)
    seen: set[int] = set()
    for world in model.worlds:
        if not world.of(Kind.BACKWARD) or not world.of(*ask.STEPS, Kind.ENGINE_STEP):
            continue
        for event in world.of(Kind.FORWARD):
            nodes = places_of(model, event)
            if not builds_a_graph(event) or (nodes & used and nodes & passing):
                continue
            found = detached(world, event) if not nodes & used else untrained(world, event)
            if found is None:
                continue
            node = anchor(model, event)
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            if found[0] or not frozen_elsewhere(model, world, event):
                yield Wasted(event, node, found[1], found[0])


def places_of(model: Model, event: Event) -> set[int]:
    """The forward itself and where the file reaches it: what a finding would point at."""
    return {id(event.node), id(anchor(model, event))}


def used_forwards(model: Model) -> tuple[set[int], set[int]]:
    """The places of forwards that a gradient is taken through, and of those that pass one on to
    what they were given."""
    used: set[int] = set()
    passing: set[int] = set()
    for world in model.worlds:
        made = {id(event.value) for event in world.of(Kind.FORWARD)}
        for event in world.of(Kind.FORWARD):
            value = event.value
            if value is None:
                continue
            nodes = places_of(model, event)
            if id(value) in ask.fed(world):
                used |= nodes
            held = {key for part in value.parents for key in ancestors(part)}
            if event.detail.get("inputs_graph") or held & made:
                passing |= nodes
    return used, passing


def builds_a_graph(event: Event) -> bool:
    value, subject = event.value, event.subject
    if not isinstance(value, Tensor) or value.graph is not True or event.detail.get("frozen"):
        return False
    if isinstance(subject, Thing) and knowledge.WITHOUT_PARAMETERS.fullmatch(subject.qualified):
        return False
    return event.detail.get("mode") is True


Found = tuple[bool, tuple[tuple[Event, str], ...]]


def detached(world: World, event: Event) -> Found | None:
    """The output is only used detached, while another forward's graph waits for its backward."""
    cut = next(
        (
            other
            for other in world.of(Kind.DETACH)
            if other.value is not None
            and is_detach(other.node)
            and id(event.value) in ancestors(other.value)
        ),
        None,
    )
    if cut is None or escapes(world, event):
        return None
    backward = next((b for b in world.of(Kind.BACKWARD) if b.index > event.index), None)
    if backward is None or backward.value is None or not beside(event, backward):
        return None
    held = ancestors(backward.value)
    if trained_in_another_phase(world, event, held) and not stays_bound(event):
        return None
    if is_dropped_at_once(event, cut, backward):
        # It matters where the graph of another forward is there already.
        if not any(o.index < event.index and id(o.value) in held for o in world.of(Kind.FORWARD)):
            return None
    return True, ((event, "forward with grad mode on"), (cut, "only used detached"))


def is_dropped_at_once(event: Event, cut: Event, backward: Event) -> bool:
    """Whether the graph is gone before the backward: cut where it is made, or when a call ends."""
    module = event.module
    if module is cut.module and module.statement_of(event.node) is module.statement_of(cut.node):
        return True
    return runs_inside(cut, event) and not runs_inside(backward, event)


def runs_inside(one: Event, other: Event) -> bool:
    """Whether an event happens before the function of another one has ended."""
    depth = len(other.calls)
    return [call.node for call in one.calls[:depth]] == [call.node for call in other.calls]


def stays_bound(event: Event) -> bool:
    """Whether a name holds the output, and so its graph, until the next iteration."""
    module = event.module
    statement = module.statement_of(event.node)
    if not isinstance(statement, ast.Assign) or statement.value is not event.node:
        return False
    name = written(statement.targets[0])
    scope = event.function.node if event.function is not None else module.tree
    others = (part for part in sites.own_nodes(scope) if isinstance(part, ast.Name))
    bound = [part for part in others if part.id == name and not isinstance(part.ctx, ast.Load)]
    return isinstance(statement.targets[0], ast.Name) and len(bound) == 1


def trained_in_another_phase(world: World, event: Event, held: Collection[int]) -> bool:
    """Whether the model is trained by a backward of its own: that step needs more memory."""
    key = ask.key_of(event.subject)
    used = [
        other.value
        for other in world.of(Kind.FORWARD)
        if builds_a_graph(other)
        and id(other.value) in ask.fed(world)
        and ask.related(ask.key_of(other.subject), key)
    ]
    return bool(used) and not any(id(value) in held for value in used)


def is_detach(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (
        isinstance(node.func, ast.Attribute) and node.func.attr in ("detach", "detach_")
    )


def beside(event: Event, backward: Event) -> bool:
    """Whether the backward belongs to the iteration of the forward."""
    marks = [(loop.serial, loop.iteration) for loop in event.loops]
    other = [(loop.serial, loop.iteration) for loop in backward.loops]
    shared = min(len(marks), len(other))
    return marks[:shared] == other[:shared]


def escapes(world: World, event: Event) -> bool:
    """Whether somebody who is not followed may take a gradient of the output."""
    held = [other.value for other in world.of(Kind.KEEP)]
    held.append(world.returned)
    held.extend(world.attributes.values())
    for frame in world.frames[:2]:
        if isinstance(frame.this, Instance):
            held.extend(frame.this.attributes.values())
    for other in world.of(Kind.OPAQUE_CALL):
        passed = other.detail.get("passed")
        if other.index > event.index and isinstance(passed, list):
            held.extend(passed)
    return any(value is not None and id(event.value) in uncut([value], ()) for value in held)


TEACHER = re.compile(
    r"teacher|target_?(net|model|q|critic|encoder|network)|(net|model|q|critic)_?target|ema(_|$)|_ema"
    r"|momentum_?(encoder|model)|ref(erence)?_?(model|policy|net)|frozen|pretrained|old_?(model|policy)",
    re.IGNORECASE,
)


def untrained(world: World, event: Event) -> Found | None:
    """Its gradient goes to parameters of a model in evaluation that no optimizer steps on."""
    subject = event.subject
    if subject is None or event.detail.get("eval_mode") is False:
        return None
    if world.of(Kind.GRADIENT_TAKEN, Kind.GRADIENT_TOUCHED):
        return None
    trained = trained_models(world)
    called = written(event.node.func) if isinstance(event.node, ast.Call) else ""
    named = bool(TEACHER.search(called.removesuffix(".forward").rsplit(".", 1)[-1]))
    # Transformers hands out what it loads in evaluation mode.
    loaded = "from_pretrained" in subject.key
    evaluated = loaded or event.detail.get("eval_mode") is True
    known = trained is not None and not any(ask.related(subject.key, key) for key in trained)
    if trained is not None and not known:
        return None
    if evaluated + named + known < 2:
        return None
    for backward in world.of(Kind.BACKWARD):
        held = ancestors(backward.value) if backward.value is not None else {}
        if id(event.value) not in held:
            continue
        for other in world.of(Kind.FORWARD):
            if id(other.value) in held and is_trained(other, event, trained):
                start = mode_event(world, event)
                path = ((event, "forward with grad mode on"), (backward, "backward goes through"))
                return False, ((start, "evaluation mode"), *path) if start else path
    return None


def mode_event(world: World, event: Event) -> Event | None:
    if event.detail.get("eval_mode") is not True:
        return None
    return ask.last_before(
        world,
        event,
        lambda e: (
            e.kind is Kind.EVAL_MODE
            and ask.related(ask.key_of(e.subject), ask.key_of(event.subject))
        ),
    )


def trained_models(world: World) -> set[str] | None:
    """The models that the world's optimizers step on; None where that is not known of one."""
    found: set[str] = set()
    for step in world.of(*ask.STEPS, Kind.ENGINE_STEP):
        models = ask.models_of(step.subject)
        if not models:
            return None
        found |= models
    return found


def is_trained(other: Event, event: Event, trained: set[str] | None) -> bool:
    """Whether another forward of the same loss is of a model that is trained."""
    one, subject = other.subject, event.subject
    if one is None or subject is None or ask.related(one.key, subject.key):
        return False
    if trained is None:
        return other.detail.get("eval_mode") is not True
    return any(ask.related(one.key, key) for key in trained)


# models that have no gradient although their grad mode is on

# A condition that only asks for `p.requires_grad` freezes nothing.
FREEZING = re.compile(
    r"requires_grads?(_?\(|\s*=(?!=))|freez|stop_grad|set_grad|no_weight_grad", re.IGNORECASE
)


def frozen_elsewhere(model: Model, world: World, event: Event) -> bool:
    """Whether the file, the constructor, what makes a model or who hands it over may freeze it."""
    if freezes(model.module) or freezes(event.module):
        return True
    for option in options(event.subject) if event.subject is not None else ():
        if isinstance(option, Instance) and option.cls is not None:
            if freezes_itself(world, option.cls):
                return True
    if any(freezes_what_it_makes(world, found) for found in makers(model)):
        return True
    function = world.root
    if function is None or function.parent is not None or not isinstance(event.subject, Unknown):
        return False
    asked = constructor(function.owner) or function
    return any(freezes(module) for module, _ in callers.call_sites(model.project, asked, True))


def freezes(module: Module) -> bool:
    known: bool | None = module.__dict__.get("freezes")
    if known is None:
        found = FREEZING.search(TEXTS.sub("", module.source.text))
        known = module.__dict__["freezes"] = found is not None
    return known


def constructor(cls: Class | None) -> Function | None:
    return cls.methods.get("__init__") if cls is not None else None


def freezes_itself(world: World, cls: Class) -> bool:
    """Whether the constructor of a network freezes a part of it."""
    kin = [in_full(one) for one in classes.lineage(world, cls)]
    built = (one for one in kin if "__init__" in one.methods)
    methods = (method for one in built for method in classes.reached_from(one, "__init__"))
    return any(FREEZING.search(method.code) for method in methods)


def freezes_what_it_makes(world: World, found: Definition) -> bool:
    if isinstance(found, Class):
        return freezes_itself(world, found)
    if isinstance(found, Module):
        return freezes(found)
    helpers = (found.module.function(word) for word in sorted(found.words))
    return any(FREEZING.search(one.code) for one in (found, *helpers) if one is not None)


def makers(model: Model) -> Iterator[Definition]:
    """The project's functions, classes and files that the file imports."""
    for target in dict.fromkeys(model.module.imports.values()):
        if classes.is_outside(target):
            continue
        found = model.project.find(target, model.module)
        if found is not None:
            yield found


# the fix


def without_graph(model: Model, found: Wasted) -> Fix | None:
    """The forward's statement under `no_grad`, where it does nothing else."""
    module, node = model.module, found.node
    if found.forward.node is not node:
        return None
    statement = module.statement_of(node)
    if not isinstance(statement, ast.Assign) or not is_spine(statement.value, node):
        return None
    name, imports = edits.name_in_file(module, "torch.no_grad")
    try:
        changes = edits.wrap_in(module, [statement], f"with {name}():")
    except edits.NoFix:
        return None
    return make_fix(f"Run this forward under `{name}()`", [*imports, *changes], Safety.SAFE)


def is_spine(expression: ast.expr, call: Node) -> bool:
    """Whether an expression is the call with methods, functions and items around it, no more."""
    if expression is call:
        return True
    if isinstance(expression, ast.Attribute | ast.Subscript):
        return is_spine(expression.value, call)
    if isinstance(expression, ast.BinOp):
        return isinstance(expression.right, ast.Constant) and is_spine(expression.left, call)
    if not isinstance(expression, ast.Call):
        return False
    given = [*expression.args, *(keyword.value for keyword in expression.keywords)]
    if isinstance(expression.func, ast.Attribute) and is_spine(expression.func.value, call):
        return all(isinstance(part, ast.Constant) for part in given)
    plain = all(isinstance(part, ast.Constant) for part in given[1:])
    return bool(given) and plain and is_spine(given[0], call)
