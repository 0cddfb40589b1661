"""Which losses outlive their iteration with their graph, and how to cut them off."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import edits, knowledge
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, make_fix, short
from oomlint.analysis.modules import written
from oomlint.analysis.state import Call, Event, Kind, Loop, World, once
from oomlint.analysis.terms import is_term
from oomlint.analysis.values import (
    Constant,
    Container,
    Either,
    Instance,
    Marks,
    Memo,
    Number,
    Tensor,
    Unknown,
    Value,
    ancestors,
    has_graph,
    may_have_graph,
    options,
)
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


@dataclass(frozen=True, slots=True)
class Retention:
    """One place that holds on to one loss."""

    event: Event
    node: Node
    # What is detached: an operand in the line of the finding.
    leaf: ast.expr | None
    place: str
    loss: str
    path: tuple[tuple[Event, str], ...]


def losses(model: Model) -> Iterator[Retention]:
    found = [
        retention
        for world in model.worlds
        for event, backward in carried_over(world)
        if (retention := describe(model, event, backward)) is not None
    ]
    seen = used_for_training(model, {id(n) for r in found for n in (r.event.node, r.node)})
    for retention in found:
        if id(retention.event.node) not in seen and id(retention.node) not in seen:
            seen.add(id(retention.node))
            yield retention


WALKED_BY_FRAMEWORK = ("training_step", "compute_loss", "create_supervised_trainer")


def says_training(text: str) -> bool:
    """Whether a file takes steps, or gives a framework the loss to do so; the gate's words."""
    own = "backward(" in text and "step" in text
    return own or any(word in text for word in WALKED_BY_FRAMEWORK)


def carried_over(world: World) -> Iterator[tuple[Event, Event]]:
    """What outlives an iteration with its graph, and the backward that goes through the graph."""
    if not world.of(*ask.STEPS, Kind.ENGINE_STEP):
        # A sum of gradients that no optimizer uses is a function's own business.
        return
    kept, backwards = world.of(Kind.KEEP), world.of(Kind.BACKWARD)
    if not backwards:
        return
    # Nothing changes once a world has been followed: what carries a graph is told once.
    memo: Memo = {}
    candidates = [event for event in kept if outlives(event, memo)]
    if not candidates:
        return
    walked = graphs_walked(backwards, memo)
    for event in candidates:
        backward = backward_of(event, walked, memo)
        if backward is not None:
            yield event, backward


def used_for_training(model: Model, asked: set[int]) -> set[int]:
    """Which of these statements fill what is itself backpropagated, in whatever world."""
    return {
        id(event.node)
        for world in model.worlds
        for event in world.of(Kind.KEEP)
        if id(event.node) in asked and is_fed(world, event, ask.fed(world))
    }


def graphs_walked(backwards: Sequence[Event], memo: Memo) -> list[tuple[Event, set[int]]]:
    """Each backward with the graph-carrying values that it goes through."""
    found = []
    for event in backwards:
        if event.value is not None:
            held = {key for key, value in ancestors(event.value).items() if has_graph(value, memo)}
            found.append((event, held))
    return found


def outlives(event: Event, memo: Memo) -> bool:
    value = event.value
    if value is None or not has_graph(value, memo) or not event.loops:
        return False
    if event.detail.get("how") == "total" and event.grad is False:
        return False
    return not reset_in_loop(event)


def backward_of(event: Event, walked: list[tuple[Event, set[int]]], memo: Memo) -> Event | None:
    """The backward that goes through the kept value's graph in the same iteration."""
    if event.value is None:
        return None
    held_values = ancestors(event.value)
    carriers = {key for key, value in held_values.items() if has_graph(value, memo)}
    own = any(key in carriers and is_loss(value) for key, value in held_values.items())
    own = own or is_loss_named(event)
    for backward, held in walked:
        if held & carriers and shares_iteration(backward, event):
            if (
                own
                or id(backward.value) in held_values
                or is_term(event, held_values, carriers, backward)
            ):
                return backward
    return None


def shares_iteration(backward: Event, event: Event) -> bool:
    """Whether the backward is in a loop whose iterations the kept value outlives."""
    marks = {(loop.serial, loop.iteration) for loop in crossed_loops(event)}
    return any((loop.serial, loop.iteration) in marks for loop in backward.loops)


def crossed_loops(event: Event) -> list[Loop]:
    """The loops under way that had not begun this iteration when the place was made."""
    held = event.detail.get("born")
    born: Marks = held if isinstance(held, tuple) else ()
    return [loop for loop in event.loops if (loop.serial, loop.iteration) not in born]


def is_loss(value: Value) -> bool:
    """A loss, or another scalar that the step's graph was reduced to."""
    return isinstance(value, Tensor) and (value.loss or value.reduction in ("mean", "sum"))


def is_loss_named(event: Event) -> bool:
    leaf = leaf_of(event)
    text = written(leaf) if leaf is not None else ""
    return bool(knowledge.LOSS_NAME.search(text))


def is_fed(world: World, event: Event, taken: frozenset[int]) -> bool:
    """Whether what is kept is itself backpropagated, or handed to somebody who may do so."""
    subject = event.subject
    if subject is None:
        return False
    if event.detail.get("how") == "total":
        if id(subject) in taken:
            return True
    elif isinstance(subject, Container):
        if id(subject) in taken or any(id(item) in taken for item in holders(world, subject)):
            return True
    return passed_on(world, event)


def holders(world: World, subject: Container) -> list[Value]:
    return [
        event.subject
        for event in world.of(Kind.KEEP)
        if event.subject is not None
        and event.subject.key == subject.key
        and event.subject is not subject
    ]


def passed_on(world: World, event: Event) -> bool:
    """Whether a later call that cannot be followed gets the total for a backward."""
    for later in opaque_backwards(world):
        passed = later.detail.get("passed")
        if later.index > event.index and isinstance(passed, list) and event.subject in passed:
            return True
    return False


@once
def opaque_backwards(world: World) -> list[Event]:
    """Calls that cannot be followed and say that they take gradients."""
    return [
        event
        for event in world.of(Kind.OPAQUE_CALL)
        if isinstance(event.node, ast.Call) and "backward" in written(event.node.func)
    ]


def reset_in_loop(event: Event) -> bool:
    """Whether the loop that the value crosses also empties the place, every so many iterations."""
    crossed = crossed_loops(event)
    place = place_of(event)
    for loop in crossed:
        known: dict[int, list[tuple[str, ast.AST]]] = loop.module.__dict__.setdefault("emptied", {})
        if id(loop.node) not in known:
            known[id(loop.node)] = list(emptied_places(loop.node))
        if any(name == place and node is not event.node for name, node in known[id(loop.node)]):
            return True
    return not crossed


def emptied_places(loop: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The names and attributes that a loop starts afresh or empties, and where."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and is_fresh(node.value):
            for target in node.targets:
                goals = target.elts if isinstance(target, ast.Tuple) else [target]
                yield from ((written(goal), node) for goal in goals)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("clear", "reset", "pop", "popleft"):
                yield written(node.func.value), node
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                base = target.value if isinstance(target, ast.Subscript) else target
                yield written(base), node


def is_fresh(value: ast.expr) -> bool:
    if isinstance(value, ast.Tuple):
        return all(is_fresh(part) for part in value.elts)
    if isinstance(value, ast.Constant | ast.List | ast.Dict):
        return True
    text = written(value)
    return text.startswith(("torch.zeros", "torch.tensor(0", "list(", "dict(", "[0"))


def place_of(event: Event) -> str:
    place = event.detail.get("place")
    if isinstance(place, str):
        return place
    node = event.node
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return written(node.func.value)
    if isinstance(node, ast.AugAssign):
        return written(node.target)
    return ""


def leaf_of(event: Event) -> ast.expr | None:
    """The operand that carries the graph; None where that is not one alone."""
    found = event.detail.get("leaves")
    if not isinstance(found, list):
        return None
    place = place_of(event)
    carrying = [
        leaf
        for leaf, value in found
        if written(leaf) != place
        and (value is None or any(has_graph(option) for option in options(value)))
        and not isinstance(value, Number | Constant)
    ]
    # Where another operand may carry a graph too, cutting one is not enough.
    unsure = any(
        written(leaf) != place and leaf not in carrying and may_have_graph(value)
        for leaf, value in found
        if isinstance(value, Tensor | Either)
    )
    return carrying[0] if len(carrying) == 1 and not unsure else None


def describe(model: Model, event: Event, backward: Event) -> Retention | None:
    """Where to point: at the storing line, or at the call where the store is another object's."""
    index = len(event.calls)
    while index > 0:
        call = event.calls[index - 1]
        foreign = isinstance(call.this, Instance) and call.this is not call.caller_this
        outside = event.module is not model.module and index == len(event.calls)
        if (not foreign and not outside) or (not outside and not hands_over(call, event)):
            break
        index -= 1
    path = ((backward, "backward"), (event, "kept beyond the iteration"))
    if index == len(event.calls):
        if event.module is not model.module:
            return None
        leaf = leaf_of(event)
        text = short(event.module, leaf) if leaf is not None else kept_text(event)
        return Retention(event, event.node, leaf, place_of(event), text, path)
    call = event.calls[index]
    if call.module is not model.module or not isinstance(call.node, ast.Call):
        return None
    leaf = argument_of(call.node)
    if leaf is None:
        return None
    index = call.node.args.index(leaf) if leaf in call.node.args else -1
    given = call.arguments[index] if 0 <= index < len(call.arguments) else None
    starred = any(isinstance(part, ast.Starred) for part in call.node.args)
    fixable = not starred and given is not None and is_one_tensor(given)
    callee = written(call.node.func)
    text = short(model.module, leaf)
    return Retention(event, call.node, leaf if fixable else None, callee, text, path)


def hands_over(call: Call, event: Event) -> bool:
    """Whether a call may have been given what is kept: else it was made inside of the call."""
    if not isinstance(call.node, ast.Call) or call.node.keywords or event.value is None:
        return True
    held = ancestors(event.value)
    return any(
        id(part) in held and has_graph(part) for given in call.arguments for part in options(given)
    )


def whole_value(retention: Retention) -> ast.expr | None:
    """The whole of what is added or appended, where more than one operand carries a graph."""
    node = retention.node
    if retention.event.detail.get("how") == "element":
        return node if isinstance(node, ast.expr) else None
    if isinstance(node, ast.AugAssign):
        return node.value if not isinstance(node.value, ast.List | ast.Tuple) else None
    if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Attribute):
        return node.args[-1] if node.func.attr != "extend" else None
    return None


def kept_text(event: Event) -> str:
    node = event.node
    if isinstance(node, ast.expr) and event.detail.get("how") == "element":
        return short(event.module, node)
    if isinstance(node, ast.Call) and node.args:
        return short(event.module, node.args[-1])
    value = getattr(node, "value", None)
    return short(event.module, value) if isinstance(value, ast.expr) else "loss"


def argument_of(call: ast.Call) -> ast.expr | None:
    """The argument that is the loss, as far as names tell; else the first that is no literal."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    candidates = [part for part in given if not isinstance(part, ast.Constant | ast.JoinedStr)]
    named = [part for part in candidates if knowledge.LOSS_NAME.search(written(part))]
    chosen = named or candidates
    return chosen[0] if chosen else None


def is_one_tensor(value: Value) -> bool:
    """Whether `.detach()` may be written behind a value: it is no dict, list or tuple."""
    return all(
        isinstance(option, Tensor) or (isinstance(option, Unknown) and option.proven)
        for option in options(value)
    )


def is_tensor_here(event: Event, leaf: ast.expr) -> bool:
    """Whether an operand of a storing line is a tensor: itself, or as all that is stored."""
    found = event.detail.get("leaves")
    for operand, value in found if isinstance(found, list) else []:
        if operand is leaf and value is not None:
            return is_one_tensor(value)
    return event.value is not None and is_one_tensor(event.value)


def detach(model: Model, retention: Retention) -> Fix | None:
    here = retention.node is retention.event.node
    leaf = retention.leaf or (whole_value(retention) if here else None)
    if leaf is None or (here and not is_tensor_here(retention.event, leaf)):
        return None
    backward = retention.path[0][0].value
    if backward is not None and retention.event.value in backward.parents[:1]:
        if isinstance(retention.event.value, Unknown):
            return None  # What a step returned, `loss` being one entry of it, is no tensor.
    target = leaf
    # `loss.cpu()` becomes `loss.detach().cpu()`: cut first, then copy.
    while (
        isinstance(target, ast.Call)
        and isinstance(target.func, ast.Attribute)
        and target.func.attr in ("cpu", "to", "float", "half", "double", "clone", "cuda")
    ):
        target = target.func.value
    if isinstance(target, ast.Starred | ast.Dict | ast.List | ast.Tuple):
        return None
    edit = edits.append_call(model.module, target, ".detach()")
    title = f"Keep `{short(model.module, target)}.detach()`"
    return make_fix(title, edit, Safety.SAFE)
