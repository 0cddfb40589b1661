"""Forwards whose graph nobody uses: evaluation, inference and rollouts with grad mode on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import callers, classes, knowledge, parameterless, rollouts
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, positions
from oomlint.analysis.driven import is_called_by_engine
from oomlint.analysis.keeping import crosses
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.state import Event, Kind, World, once
from oomlint.analysis.training_mode import trains_within
from oomlint.analysis.values import Instance, Tensor, Unknown, Value, ancestors, has_graph

if TYPE_CHECKING:
    from oomlint.analysis import Model

TRAINING = (Kind.BACKWARD, Kind.GRADIENT_TAKEN, *ask.STEPS, Kind.ENGINE_STEP)
STORING = frozenset("store add append push insert put remember record extend save".split())


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of evaluation: the forward to point at, and where gradients can be turned off."""

    event: Event
    node: Node
    function: Function | None
    reason: str
    path: tuple[tuple[Event, str], ...]
    kept: str
    # Training runs the same lines: only a condition on the mode can turn gradients off.
    shared: bool = False


def regions(model: Model) -> Iterator[Region]:
    """One region for each function or script loop that evaluates with grad mode on."""
    if "volatile=True" in model.module.source.text:
        # torch 0.3: such a Variable had no graph, whatever the grad mode.
        return
    candidates = [
        (world, event, reason)
        for world in model.worlds
        for event in world.of(Kind.FORWARD)
        if (reason := evaluated(world, event)) is not None
    ]
    if not candidates or calls_for_older_torch(model):
        return
    wanted, in_eval = differentiated(model)
    best: dict[int, tuple[tuple[int, int, int], Region]] = {}
    for world, event, reason in candidates:
        region = region_of(model, world, event, reason, wanted, in_eval)
        if region is None:
            continue
        place = id(region.function.node) if region.function else id(outermost_loop(event))
        rank = (-len(event.loops), region.node.lineno, region.node.col_offset)
        if place not in best or rank < best[place][0]:
            best[place] = (rank, region)
    for _, region in sorted(best.values(), key=lambda pair: pair[1].node.lineno):
        if not excused(model, region):
            yield region


def calls_for_older_torch(model: Model) -> bool:
    """Whether the file gets its batches from a function that marks them volatile."""
    for qualified in model.module.imports.values():
        home, _, name = qualified.rpartition(".")
        found = model.project.find(home, model.module) if home else None
        if isinstance(found, Module):
            _, _, rest = found.source.text.partition(f"\ndef {name}(")
            if "volatile=" in rest.partition("\ndef ")[0]:
                return True
    return False


def differentiated(model: Model) -> tuple[set[int], set[int]]:
    """Nodes on the way to forwards whose graph some world uses: all, and those in eval mode."""
    found: set[int] = set()
    in_eval: set[int] = set()
    for world in model.worlds:
        taken = ask.fed(world)
        for event in world.of(Kind.FORWARD):
            if event.value is not None and id(event.value) in taken:
                nodes = [id(node) for _, node in positions(event)]
                found.update(nodes)
                if event.detail.get("eval_mode") is not False:
                    in_eval.update(nodes)
    return found, in_eval


Reason = tuple[Event, str]


def evaluated(world: World, event: Event) -> Reason | None:
    """Why a forward with grad mode on in a loop is no training, where nobody uses its graph."""
    value, detail = event.value, event.detail
    if detail.get("mode") is not True or detail.get("frozen") or "profile" in event.contexts:
        return None
    if not isinstance(value, Tensor) or value.graph is not True:
        return None
    if not event.loops and not answers_at_once(world, event):
        return None
    if id(value) in ask.fed(world) or becomes_array(world, value):
        return None
    reason = reason_of(world, event)
    if reason is None:
        return None
    # Where the loop itself switches to evaluation, its other forwards may train.
    switched = reason[0].kind is Kind.EVAL_MODE and event.loops[-1:] == reason[0].loops[-1:]
    return reason if switched or not trains_beside(world, event) else None


# Functions that are there for one answer, which is read where the forward is.
ANSWERING = re.compile(
    r"(^|_)(predict|infer|inference|classify|recogni[sz]e|detect|segment|caption|translate"
    r"|transcribe|evaluate|score)(_|$)",
    re.IGNORECASE,
)


def answers_at_once(world: World, event: Event) -> bool:
    """Whether a forward outside of any loop is for an answer that is read as numbers."""
    function = event.function
    if function is None or function.words & GRADIENT_WORDS:
        return False
    if is_called_by_engine(function):
        return True
    return bool(ANSWERING.search(function.name)) and any(
        later.index > event.index
        and later.function is function
        and later.value is not None
        and id(event.value) in ancestors(later.value)
        for later in world.of(Kind.DETACH)
    )


def becomes_array(world: World, value: Value) -> bool:
    """Whether `.numpy()` is called on it without a detach: that raises where there is a graph.

    What a distribution samples has none.
    """
    return any(
        event.value is not None
        and ".sample(" not in event.value.key
        and isinstance(event.node, ast.Call)
        and isinstance(event.node.func, ast.Attribute)
        and event.node.func.attr == "numpy"
        and has_graph(event.value)
        and id(value) in ancestors(event.value)
        for event in world.of(Kind.DETACH)
    )


def region_of(
    model: Model,
    world: World,
    event: Event,
    reason: Reason,
    wanted: set[int],
    in_eval: set[int],
) -> Region | None:
    if is_warm_up(event) or is_hooked(event) or differentiates(model, event):
        return None
    if has_no_parameters(world, event):
        return None
    node = place_of(model, event, reason[0], wanted)
    shared = node is None
    if node is None:
        # The same lines train: in training mode, never in this one.
        node = place_of(model, event, reason[0], in_eval)
    if node is None or (shared and trains_within(world, event, node)):
        return None
    function = model.module.function_of(node)
    mode, why = reason
    kept = kept_by(world, event)
    if function is not None and escapes(world, event, function):
        # What switches to evaluation and then collects outputs is for whoever reads them.
        collects = bool(kept) and mode.kind is Kind.EVAL_MODE and mode.function is function
        if not collects or differentiated_by_callers(model, function):
            return None
    path = ((mode, why), (event, "forward with grad mode on"))
    return Region(event, node, function, why, path, kept, shared)


def is_warm_up(event: Event) -> bool:
    """`_ = model(inputs)`: run for its time or its side effects, one batch at a time."""
    statement = (
        event.module.statement_of(event.node) if event.node in event.module.parents else None
    )
    return (
        isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == "_"
    )


def has_no_parameters(world: World, event: Event) -> bool:
    """Whether nothing in the network asks for a gradient: as its class shows, or else its name."""
    subject = event.subject
    if isinstance(subject, Unknown):
        return bool(knowledge.STATISTICS_NAME.search(subject.key))
    return isinstance(subject, Instance) and parameterless.is_plain(world, subject)


def is_hooked(event: Event) -> bool:
    """Whether hooks of the same function take what the forward makes, its graph with it."""
    return event.function is not None and "register_forward_hook" in event.function.words


GRADIENT_WORDS = frozenset(
    {"autograd", "backward", "requires_grad_", "requires_grad", "enable_grad"}
)


def differentiates(model: Model, event: Event) -> bool:
    """Whether the model takes gradients inside its own forward: grad mode must stay on for it."""
    subject = event.subject
    if isinstance(subject, Instance) and subject.cls is not None:
        return any(words & GRADIENT_WORDS for words in words_of_forward(subject.cls))
    return any(
        function.name == "forward" and function.words & (GRADIENT_WORDS - {"requires_grad"})
        for function in model.module.all_functions
    )


def words_of_forward(cls: Class) -> Iterator[frozenset[str]]:
    """The words of a network's methods: only those of its forward where that is written here.

    What a constructor freezes, or a method of its own, says nothing about the forward.
    """
    methods = cls.methods
    if "forward" not in methods:
        yield from (method.words for method in methods.values())
        return
    yield from (method.words for method in classes.reached_from(cls, "forward"))


def reason_of(world: World, event: Event) -> Reason | None:
    """Why the forward is no training: the model is in evaluation mode, or a rollout only acts."""
    if event.detail.get("eval_mode") is True and event.subject is not None:
        key = ask.key_of(event.subject)
        for mode in reversed(world.of(Kind.EVAL_MODE)):
            if mode.index < event.index and ask.related(ask.key_of(mode.subject), key):
                return mode, "evaluation mode"
        return None
    if not event.loops:
        return None
    loop = event.loops[-1]
    acting = [
        e for e in world.of(Kind.ENVIRONMENT_STEP) if any(m.serial == loop.serial for m in e.loops)
    ]
    if acting and only_acts(world, event):
        return acting[0], "environment step"
    return None


def only_acts(world: World, event: Event) -> bool:
    """Whether everything made from a rollout's forward is detached before it is used or stored."""
    detached = False
    for later in world.of(Kind.DETACH, Kind.KEEP, Kind.OPAQUE_CALL):
        if later.index < event.index:
            continue
        if later.kind is Kind.DETACH and later.value is not None:
            detached = detached or id(event.value) in ancestors(later.value)
        elif later.kind is Kind.KEEP and later.value is not None:
            if id(event.value) in ancestors(later.value) and not read_detached(later):
                return False
        elif later.kind is Kind.OPAQUE_CALL and stores(later):
            passed = later.detail.get("passed")
            values = passed if isinstance(passed, list) else []
            if any(id(event.value) in ancestors(v) and has_graph(v) for v in values):
                return False
    return detached


def read_detached(keep: Event) -> bool:
    """Whether a list on an object is only ever read stacked and detached as a whole."""
    node = keep.node
    place = node.func.value if isinstance(node, ast.Call) and hasattr(node.func, "value") else None
    if not isinstance(place, ast.Attribute):
        return False
    return place.attr in rollouts.detaching_reads(keep.module)


def stores(event: Event) -> bool:
    node = event.node
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in STORING
    )


def trains_beside(world: World, event: Event) -> bool:
    """Whether gradients are taken in the loop of the forward."""
    if not event.loops:
        return any(other.function is event.function for other in world.of(*TRAINING))
    return event.loops[-1].serial in training_loops(world)


@once
def training_loops(world: World) -> frozenset[int]:
    """The serial numbers of the loops in which gradients are taken."""
    return frozenset(loop.serial for event in world.of(*TRAINING) for loop in event.loops)


def place_of(model: Model, event: Event, mode: Event, wanted: set[int]) -> Node | None:
    """The innermost node on the way to the forward whose function is about evaluation.

    That is the function which sets the mode or holds the loop; what training passes through too
    is not it.
    """
    loop = event.loops[-1] if event.loops else None
    places = (
        {id(mode.function.node) if mode.function else 0} if mode.module is model.module else set()
    )
    if loop is None and event.function is not None and event.module is model.module:
        places.add(id(event.function.node))
    elif loop is not None and loop.module is model.module:
        owner = model.module.function_of(loop.node)
        places.add(id(owner.node) if owner else 0)
    for module, node in reversed(positions(event)):
        if module is not model.module or not isinstance(node, ast.expr | ast.stmt):
            continue
        function = module.function_of(node)
        if id(node) not in wanted and (id(function.node) if function else 0) in places:
            return node
    return None


def escapes(world: World, event: Event, function: Function) -> bool:
    """Whether the output leaves the code that is followed with its graph: a caller may use it."""
    if world.root is not function or world.returned is None:
        return False
    if id(event.value) not in ancestors(world.returned) or is_called_by_engine(function):
        return False
    evaluates = knowledge.EVALUATION_NAME.search(function.name)
    return has_graph(world.returned) and not evaluates


def differentiated_by_callers(model: Model, function: Function) -> bool:
    """Whether a function of the project that calls this one mentions gradients."""
    for module, node in callers.call_sites(model.project, function):
        caller = module.function_of(node)
        words = caller.words if caller is not None else frozenset(module.source.text.split())
        if words & GRADIENT_WORDS:
            return True
    return False


def kept_by(world: World, event: Event) -> str:
    """What holds on to the outputs, so that graphs pile up."""
    for later in world.of(Kind.KEEP):
        if later.index < event.index or later.value is None:
            continue
        if has_graph(later.value):
            if id(event.value) in ancestors(later.value) and outlives(later, event):
                place = later.detail.get("place")
                if isinstance(place, str):
                    return place
                node = later.node
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    return written(node.func.value)
    return ""


def outlives(keep: Event, event: Event) -> bool:
    """Whether what keeps was there before the iteration of a forward."""
    born = keep.detail.get("born")
    return not isinstance(born, tuple) or crosses(born, event.marks)


def outermost_loop(event: Event) -> ast.AST:
    return event.loops[0].node


def excused(model: Model, region: Region) -> bool:
    """Whether callers elsewhere turn gradients off, or a framework is the one who calls."""
    function = region.function
    top = function
    if region.event.calls:
        return False
    if top is None:
        return False
    if top.parent is not None:
        return False
    if region.shared:
        return bool(callers.any_without_grad(model.project, top)) or is_hook(model, top)
    known = callers.all_without_grad(model.project, top)
    if known is None:
        return is_hook(model, top)
    return known


def is_hook(model: Model, function: Function) -> bool:
    """Whether a framework is the one who calls a method: nobody in its file does."""
    if function.owner is None or not knowledge.FRAMEWORK_HOOK.match(function.name):
        return False
    return not any(
        function.name in other.words
        for other in model.module.all_functions
        if other is not function and other.parent is None
    )
