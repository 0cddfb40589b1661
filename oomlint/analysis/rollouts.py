"""What a rollout stores of its steps with the graph, although nobody goes through it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import edits, keeping, knowledge, sites
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, anchor, make_fix, short
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Container, Tensor, Value, ancestors, members, options
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class StoredState:
    """A store that gets a state with its graph although the next step gets it without."""

    node: Node
    place: str
    state: str
    path: tuple[tuple[Event, str], ...]


def stored_states(model: Model) -> Iterator[StoredState]:
    trained = {key for world in model.worlds for key in ask.fed(world)}
    seen: set[int] = set()
    for world in model.worlds:
        cuts = [event for event in world.of(Kind.DETACH) if is_cut(event)]
        if not cuts or not world.of(Kind.ENVIRONMENT_STEP):
            continue
        for event, values in stores(world):
            for cut in cuts:
                state = stored_with_graph(world, event, values, cut)
                node = anchor(model, event) if state is not None else None
                if state is None or node is None or id(node) in seen or id(state) in trained:
                    continue
                seen.add(id(node))
                text = written(node.func) if isinstance(node, ast.Call) else "the store"
                name = name_of(node, cut)
                path = ((event, "stored with its graph"), (cut, "detached to be carried on"))
                yield StoredState(node, text, name, path)


def is_cut(event: Event) -> bool:
    node = event.node
    method = node.func.attr if isinstance(node, ast.Call) and hasattr(node.func, "attr") else ""
    return method in ("detach", "detach_")


STORING = frozenset({"store", "add", "append", "push", "insert", "put", "remember", "record"})


def stores(world: World) -> Iterator[tuple[Event, list[Value]]]:
    """Calls that store what they are given, as far as their names tell."""
    for event in world.of(Kind.OPAQUE_CALL, Kind.KEEP):
        node = event.node
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr not in STORING or not event.loops:
            continue
        passed = event.detail.get("passed")
        if event.kind is Kind.KEEP:
            yield event, [event.value] if event.value is not None else []
        elif isinstance(passed, list):
            yield event, passed


def stored_with_graph(world: World, event: Event, values: list[Value], cut: Event) -> Value | None:
    """The stored part of a forward's output, made with grad mode on, that `cut` detaches."""
    if cut.index < event.index or cut.value is None:
        return None
    if not any(
        (loop.serial, loop.iteration) == (event.loops[-1].serial, event.loops[-1].iteration)
        for loop in cut.loops
    ):
        return None
    made = {id(f.value) for f in world.of(Kind.FORWARD) if f.detail.get("mode") is True}
    detached = ancestors(cut.value)
    for value in values:
        for part in pieces(value):
            whole = part.parents[0] if isinstance(part, Tensor) and part.entry else part
            if id(whole) in made and id(part) in detached:
                return part
    return None


def pieces(value: Value) -> Iterator[Value]:
    """A value, or what is in it where it is a row that is stored."""
    for option in options(value):
        yield option
        if isinstance(option, Container):
            for item in members(option):
                yield from options(item)


def name_of(node: Node, cut: Event) -> str:
    """How the store writes the state: the name that the cut has too."""
    names = {n.id for n in ast.walk(cut.module.statement_of(cut.node)) if isinstance(n, ast.Name)}
    given = [n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id in names - {"self"}]
    return given[-1] if given else "state"


# what is detached only when it is read


@dataclass(frozen=True, slots=True)
class DetachedLate:
    """A list of log probabilities that is only read stacked and detached as a whole."""

    node: ast.Call
    place: str
    kept: ast.expr
    reading: ast.Call


def detached_late(model: Model) -> Iterator[DetachedLate]:
    module = model.module
    if ".log_prob(" not in model.source.text:
        return
    reads = detaching_reads(module)
    if not reads:
        return
    for site in sites.sites(module):
        if site.method != "append" or not isinstance(site.receiver, ast.Attribute):
            continue
        reading = reads.get(site.receiver.attr)
        if reading is None or len(site.node.args) != 1 or site.function is None:
            continue
        value = site.node.args[0]
        if is_log_prob(module, value, site.function) and has_grad_mode(module, site):
            yield DetachedLate(site.node, written(site.receiver), value, reading)


def detaching_reads(module: Module) -> dict[str, ast.Call]:
    """Attributes whose only reading use is `torch.stack(x.name).detach()`, and that use."""
    found: dict[str, ast.Call] = {}
    stacked: set[ast.AST] = set()
    for site in sites.sites(module):
        if site.method != "detach" or site.receiver is None:
            continue
        for part in ast.walk(site.receiver):
            joins = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
            if not joins or part.func.attr not in keeping.JOINING or not part.args:  # type: ignore[attr-defined]
                continue
            place = part.args[0]  # type: ignore[attr-defined]
            if isinstance(place, ast.Attribute):
                found.setdefault(place.attr, site.node)
                stacked.add(place)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr in found and node not in stacked:
            if isinstance(node.ctx, ast.Load) and not is_upkeep(module, node):
                found.pop(node.attr)
    return found


def is_upkeep(module: Module, node: ast.Attribute) -> bool:
    """Whether a list is filled, emptied or counted: nobody looks at what is in it."""
    parent = module.parents[node]
    if isinstance(parent, ast.Attribute):
        return parent.attr in ("append", "clear")
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Del)
    return isinstance(parent, ast.Call) and written(parent.func) == "len"


def is_log_prob(module: Module, node: ast.expr, function: Function) -> bool:
    """Whether it is `distribution.log_prob(...)` of this function, as it came."""
    if isinstance(node, ast.Name):
        found = sites.bindings(module, node.id, function)
        value = found[0] if len(found) == 1 else None
        return value is not None and is_log_prob(module, value, function)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "log_prob"
    )


def has_grad_mode(module: Module, site: sites.Site) -> bool:
    """Whether neither the function nor a caller in the file turns gradients off."""
    function = site.function
    places: list[tuple[ast.AST, Function | None]] = [(site.node, function)]
    if function is not None:
        places += [(s.node, s.function) for s in sites.sites(module) if s.method == function.name]
    return not any(
        turns_off(expression)
        for node, where in places
        for expression in (
            *sites.contexts_around(module, node),
            *(where.decorators if where is not None else ()),
        )
    )


def turns_off(expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    return bool(knowledge.NO_GRAD_NAME.search(written(called).rsplit(".", 1)[-1]))


def detach_early(model: Model, found: DetachedLate) -> Fix:
    edit = edits.append_call(model.module, found.kept, ".detach()")
    return make_fix(f"Keep `{short(model.module, found.kept)}.detach()`", edit, Safety.SAFE)
