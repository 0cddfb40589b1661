"""Windows whose losses are added up and wait, graphs and all, for one backward at the end."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import edits, knowledge
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, anchor, make_fix
from oomlint.analysis.modules import written
from oomlint.analysis.nodes import walk
from oomlint.analysis.recurrence import crossed
from oomlint.analysis.state import Event, Kind, Loop, World
from oomlint.analysis.values import Container, Either, Tensor, Thing, Value, ancestors, members
from oomlint.rule import Edit, Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class Postponed:
    """One backward for the forwards of several iterations that know nothing of each other."""

    world: World
    backward: Event
    node: Node
    loop: Loop
    path: tuple[tuple[Event, str], ...]


def postponed(model: Model) -> Iterator[Postponed]:
    seen: set[int] = set()
    for world in model.worlds:
        if not world.of(*ask.STEPS, Kind.ENGINE_STEP):
            continue
        for backward in world.of(Kind.BACKWARD):
            found = window_of(world, backward)
            node = anchor(model, backward) if found is not None else None
            if found is not None and node is not None and id(node) not in seen:
                first, loop = found
                seen.add(id(node))
                path = ((first, "forward of every micro-batch"), (backward, "one backward for all"))
                yield Postponed(world, backward, node, loop, path)


def window_of(world: World, backward: Event) -> tuple[Event, Loop] | None:
    """The first forward and the loop of a window that could be backpropagated part by part."""
    if backward.value is None or len(world.of(Kind.FORWARD)) < 2 or takes_one(world, backward):
        return None
    held = ancestors(backward.value)
    forwards = [
        event
        for event in world.of(Kind.FORWARD)
        if id(event.value) in held and event.detail.get("mode") is True
    ]
    forwards = [event for event in forwards if waits_for(world, event, backward)]
    for i, later in enumerate(forwards):
        for first in forwards[:i]:
            loop = crossed(first, later) if first.node is later.node else None
            if loop is None or not same_model(first, later):
                continue
            if not is_window(world, loop, first, later) or handed_on(world, first, later, backward):
                continue
            if is_separable(backward, forwards, loop):
                return first, loop
    return None


def takes_one(world: World, backward: Event) -> bool:
    """`losses[i].backward()` in a loop over `i`: a backward for each of what was collected."""
    call, loop = backward.node, backward.loops[-1].node if backward.loops else None
    if not isinstance(call, ast.Call) or not isinstance(loop, ast.For):
        return False
    # Every world asks this of the same calls.
    memo = world.project.__dict__.setdefault("backwards_of_one", {})
    if (id(call), id(loop)) not in memo:
        memo[id(call), id(loop)] = is_of_one(call, loop)
    return bool(memo[id(call), id(loop)])


def is_of_one(call: ast.Call, loop: ast.For) -> bool:
    receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
    given = [*call.args[:1], *([receiver] if receiver is not None else [])]
    named = [
        part.value
        for part in walk(loop)
        if isinstance(part, ast.Assign)
        and {written(goal) for goal in part.targets} & {written(value) for value in given}
    ]
    counters = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
    return any(
        isinstance(value, ast.Subscript)
        and any(isinstance(n, ast.Name) and n.id in counters for n in ast.walk(value.slice))
        for value in (*given, *named)
    )


def waits_for(world: World, forward: Event, backward: Event) -> bool:
    """Whether this is the first backward through a forward: the next ones find no graph."""
    if forward.index > backward.index:
        # A list that was emptied since, and filled again.
        return False
    return not any(
        forward.index < event.index < backward.index
        and event.value is not None
        and id(forward.value) in ancestors(event.value)
        for event in world.of(Kind.BACKWARD)
    )


def same_model(first: Event, later: Event) -> bool:
    one, other = first.subject, later.subject
    if isinstance(one, Thing) and knowledge.WITHOUT_PARAMETERS.fullmatch(one.qualified):
        return False
    return one is not None and other is not None and one.key == other.key


# The same sample seen several times, or several parts of a model: few, and all of one step.
PARTS = re.compile(
    r"scale|view|crop|aug|head|layer|level|stage|expert|model|net\b|nets|time|mc_|roll"
    r"|sample(?!s?\)?$)"
    r"|horizon|length|unroll|bptt|frame|\.(keys|items|values)\(\)",
    re.IGNORECASE,
)
# Calls that say that a model has a memory of its own, which runs through the loop.
STATEFUL = re.compile(r"\b(reset\w*|init_(hidden|state\w*)|detach_?\w*hidden|repackage\w*)\s*\(")


def is_window(world: World, loop: Loop, first: Event, later: Event) -> bool:
    """Whether the loop runs over micro-batches, each with data of its own."""
    node = loop.node
    clause = node.generators[0] if isinstance(node, ast.ListComp | ast.GeneratorExp) else node
    if isinstance(clause, ast.For | ast.comprehension):
        head = f"{written(clause.target)} {written(clause.iter)}"
        if isinstance(clause.iter, ast.Tuple | ast.List) or PARTS.search(head):
            return False
    elif not isinstance(clause, ast.While):
        return False
    acting = (Kind.ENVIRONMENT_STEP, Kind.GRADIENT_TAKEN)
    if any(mark.serial == loop.serial for event in world.of(*acting) for mark in event.loops):
        return False
    function = loop.module.function_of(node)
    text = function.code if function is not None else loop.module.source.text
    given = [value.parents if value is not None else () for value in (first.value, later.value)]
    return not STATEFUL.search(text) and {id(v) for v in given[0]} != {id(v) for v in given[1]}


def handed_on(world: World, first: Event, later: Event, backward: Event) -> bool:
    """Whether somebody unknown gets what several iterations made: it may bring them together."""
    for event in world.of(Kind.OPAQUE_CALL):
        passed = event.detail.get("passed")
        if later.index < event.index < backward.index and isinstance(passed, list):
            for value in passed:
                held = ancestors(value)
                if id(first.value) in held and id(later.value) in held:
                    return True
    return False


# Operations after which a gradient is still the sum of the parts' gradients.
LINEAR = frozenset(
    "+ - * / neg add add_ sub sum mean stack cat concat hstack div div_ true_divide mul mul_"
    " to cpu cuda float double squeeze view reshape flatten scale".split()
)


def is_separable(backward: Event, forwards: list[Event], loop: Loop) -> bool:
    """Whether the backward's value is a sum of terms, each of one iteration of the loop."""
    iterations: dict[int, int] = {}
    for event in forwards:
        mark = next((mark for mark in event.loops if mark.serial == loop.serial), None)
        iterations[id(event.value)] = mark.iteration if mark is not None else 0
    known: dict[int, frozenset[int]] = {}

    def reached(value: Value) -> frozenset[int]:
        if id(value) not in known:
            held = ancestors(value)
            known[id(value)] = frozenset(iterations[key] for key in held if key in iterations)
        return known[id(value)]

    stack = [backward.value] if backward.value is not None else []
    seen: set[int] = set()
    terms = 0
    while stack:
        value = stack.pop()
        if id(value) in seen or not reached(value):
            continue
        seen.add(id(value))
        if len(reached(value)) == 1:
            terms += 1
            continue
        parts = list(members(value))
        if isinstance(value, Tensor):
            mixed = [part for part in parts if reached(part)]
            product = value.made_by in ("*", "/", "mul", "mul_", "div", "div_", "true_divide")
            scaled = bool(value.scaled)
            if not scaled and (value.made_by not in LINEAR or value.opaque or value.barrier):
                return False
            if product and len(mixed) > 1:
                return False
        elif not isinstance(value, Container | Either):
            return False
        stack.extend(parts)
    return terms > 1


# the fix


def backward_per_part(model: Model, window: Postponed) -> Fix | None:
    """The sum's own line runs the backward of its term and adds what is detached."""
    total = sum_of(window)
    if total is None:
        return None
    place, statement, term = total
    module, backward = model.module, window.backward
    last = module.statement_of(backward.node)
    if not isinstance(last, ast.Expr) or not is_divided_total(last.value, place, window.loop):
        return None
    if module.parents[last] is not module.parents[window.loop.node] or not follows(window, last):
        return None
    names = {n.id for n in ast.walk(module.tree) if isinstance(n, ast.Name)}
    name = term.id if isinstance(term, ast.Name) else "micro_loss"
    if not isinstance(term, ast.Name) and name in names:
        return None
    text = module.segment(last)
    start, _ = module.span(last)
    use = next(n for n in ast.walk(last) if isinstance(n, ast.Name) and n.id == place)
    at, end = module.span(use)
    # Its comment goes along.
    row = last.end_lineno or last.lineno
    tail = module.source.line(row)[module.span(last)[1] - module.source.line_starts[row - 1] :]
    call = (text[: at - start] + name + text[end - start :] + tail).rstrip()
    lines = [] if isinstance(term, ast.Name) else [f"{name} = {module.segment(term)}"]
    if "\n" in call or any("\n" in line for line in lines):
        return None
    added = (
        f"{place} += {name}.detach()"
        if isinstance(statement, ast.AugAssign)
        else f"{place} = {place} + {name}.detach()"
    )
    try:
        edits.stands_alone(module, statement)
        indent = edits.indentation(module, statement.lineno)
        joint = f"{module.source.newline}{indent}"
        changes: list[Edit] = [
            edits.replace(module, statement, joint.join([*lines, call, added])),
            edits.delete(module, last),
        ]
    except edits.NoFix:
        return None
    return make_fix("Run the backward of each micro-batch in the loop", changes, Safety.UNSAFE)


def written_name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def sum_of(window: Postponed) -> tuple[str, ast.stmt, ast.expr] | None:
    """`total += term` in the loop's own body: the name, the statement and the term."""
    held = ancestors(window.backward.value) if window.backward.value is not None else {}
    for event in window.world.of(Kind.KEEP):
        node, place = event.node, event.detail.get("place")
        if event.detail.get("how") != "total" or not isinstance(place, str):
            continue
        if id(event.subject) not in held or not place.isidentifier():
            continue
        if event.module.parents.get(node) is not window.loop.node:
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
            return place, node, node.value
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            plus = isinstance(node.value.op, ast.Add)
            if plus and written_name(node.value.left) == place and len(node.targets) == 1:
                return place, node, node.value.right
    return None


def is_divided_total(call: ast.expr, place: str, loop: Loop) -> bool:
    """`(total / n).backward()` and its relatives, where `n` is known before the loop."""
    uses = [node for node in ast.walk(call) if written_name(node) == place]
    divisions = [
        node
        for node in ast.walk(call)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Div)
        and written_name(node.left) == place
    ]
    if len(uses) != 1 or len(divisions) != 1:
        return False
    changed = {
        part.id
        for node in ast.walk(loop.node)
        if isinstance(node, ast.Assign | ast.AugAssign | ast.For)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for part in ast.walk(target)
        if isinstance(part, ast.Name)
    }
    return not any(written_name(node) in changed for node in ast.walk(divisions[0].right))


def follows(window: Postponed, last: ast.stmt) -> bool:
    """Whether nothing clears the gradients between the loop and the backward behind it."""
    return not any(
        event.index < window.backward.index
        and window.loop.node.lineno <= event.node.lineno <= last.lineno  # type: ignore[attr-defined]
        for event in window.world.of(Kind.ZERO_GRAD)
    )
