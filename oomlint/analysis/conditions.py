"""Conditions: which are known, which are the same, and where a world has to choose."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oomlint.analysis import classes, knowledge
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.modules import Function, LazyModule, Module, written
from oomlint.analysis.state import Kind, World
from oomlint.analysis.values import (
    Callable,
    ClassValue,
    Constant,
    Container,
    Either,
    External,
    GradContext,
    Instance,
    Number,
    Tensor,
    Thing,
    Value,
    shortened,
)

# Events whose order matters to a rule.
ORDERED = frozenset(
    {
        Kind.BACKWARD,
        Kind.ZERO_GRAD,
        Kind.UNSCALE,
        Kind.CLIP,
        Kind.STEP,
        Kind.SCALER_STEP,
        Kind.SCALER_UPDATE,
    }
)


@dataclass(frozen=True, slots=True)
class Atom:
    """A condition without `and`, `or`, `not`: known, or decided under its key."""

    key: str
    negated: bool
    known: bool | None


@dataclass(frozen=True, slots=True)
class Junction:
    conjunction: bool
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Negation:
    part: Condition


Condition = Atom | Junction | Negation


def read_condition(world: World, test: ast.expr) -> Condition:
    """Evaluates a test once; what it calls happens here."""
    if isinstance(test, ast.BoolOp):
        parts = tuple(read_condition(world, part) for part in test.values)
        return Junction(isinstance(test.op, ast.And), parts)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return Negation(read_condition(world, test.operand))
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return read_compare(world, test)
    return truthiness(world, evaluate(world, test))


def truthiness(world: World, value: Value) -> Condition:
    if isinstance(value, Constant):
        return Atom("", False, bool(value.value))
    if isinstance(value, (Thing, Instance, Callable, ClassValue, External, GradContext)):
        return Atom("", False, True)
    if isinstance(value, Either):
        known = {truthiness(world, option) for option in value.options}
        if len(known) == 1:
            return known.pop()
    if isinstance(value, Number):
        return comparison_atom(value.key)
    if world.assumptions.get(f"none:{value.key}") is True:
        return Atom("", False, False)
    # `if scaler` and `if scaler is not None` ask the same of an object.
    return Atom(f"none:{value.key}", True, None)


def comparison_atom(key: str) -> Atom:
    """`a == b` and `a != b` are one question."""
    for name, opposite in OPPOSITES.items():
        mark = f" {name}:"
        if key.startswith("cmp(") and mark in key and key.count(":") >= 1:
            return Atom(key.replace(mark, f" {opposite}:", 1), True, None)
    return Atom(key, False, None)


OPPOSITES = {"NotEq": "Eq", "NotIn": "In", "IsNot": "Is", "LtE": "Gt", "Lt": "GtE"}


def read_compare(world: World, test: ast.Compare) -> Condition:
    left, right = evaluate(world, test.left), evaluate(world, test.comparators[0])
    operator = test.ops[0]
    if isinstance(operator, (ast.Is, ast.IsNot, ast.Eq, ast.NotEq)):
        positive = isinstance(operator, (ast.Is, ast.Eq))
        for one, other in ((left, right), (right, left)):
            if isinstance(other, Constant) and other.value is None:
                return none_atom(one, positive)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Atom("", False, (left.value == right.value) is positive)
    if isinstance(operator, (ast.In, ast.NotIn)) and isinstance(left, Constant):
        if isinstance(right, Container) and all(isinstance(i, Constant) for i in right.items):
            held = any(i.value == left.value for i in right.items if isinstance(i, Constant))
            return Atom("", False, held is isinstance(operator, ast.In))
    name = type(operator).__name__
    return comparison_atom(shortened(f"cmp({left.key} {name}:{right.key})"))


def none_atom(value: Value, positive: bool) -> Atom:
    if isinstance(value, Constant):
        return Atom("", False, (value.value is None) is positive)
    if isinstance(
        value,
        (Thing, Instance, Callable, ClassValue, External, Container, Tensor, GradContext),
    ):
        return Atom("", False, not positive)
    return Atom(f"none:{value.key}", not positive, None)


def known_truth(world: World, condition: Condition) -> bool | None:
    """The truth of a condition as far as it follows from values and earlier choices."""
    if isinstance(condition, Negation):
        inner = known_truth(world, condition.part)
        return None if inner is None else not inner
    if isinstance(condition, Junction):
        truths = [known_truth(world, part) for part in condition.parts]
        if condition.conjunction:
            return False if False in truths else None if None in truths else True
        return True if True in truths else None if None in truths else False
    if condition.known is not None:
        return condition.known
    assumed = world.assumptions.get(condition.key)
    return None if assumed is None else assumed is not condition.negated


def decide(world: World, condition: Condition, preferred: bool) -> bool:
    """Settles a condition, choosing what is open; each choice is noted for the other world."""
    if isinstance(condition, Negation):
        return not decide(world, condition.part, not preferred)
    if isinstance(condition, Junction):
        if condition.conjunction:
            return all(decide(world, part, preferred) for part in condition.parts)
        return any(decide(world, part, preferred) for part in condition.parts)
    truth = known_truth(world, condition)
    if truth is not None:
        return truth
    assumed = preferred is not condition.negated
    world.assumptions[condition.key] = assumed
    world.choices.append((condition.key, assumed))
    return preferred


def keys_of(condition: Condition) -> str:
    if isinstance(condition, Negation):
        return keys_of(condition.part)
    if isinstance(condition, Junction):
        return " | ".join(keys_of(part) for part in condition.parts)
    return condition.key


def branch(
    world: World,
    test: ast.expr,
    body: Sequence[ast.AST],
    orelse: Sequence[ast.AST],
    condition: Condition | None = None,
) -> bool | None:
    """Which arm is taken; None where both are, because no event depends on it."""
    if condition is None:
        condition = read_condition(world, test)
    truth = known_truth(world, condition)
    if truth is not None:
        return truth
    module = world.frame.module
    if ends_in_raise(body):
        return False
    if ends_in_raise(orelse):
        return True
    eventful = is_eventful(world, module, body) or is_eventful(world, module, orelse)
    leaves, leaves_else = exits_memo(module, body), exits_memo(module, orelse)
    if not eventful and (leaves or leaves_else) and not open_events(world):
        if not leaves or not leaves_else:
            return not leaves
        return None
    if not eventful and not leaves and not leaves_else:
        return None
    # An arm with events that may only leave in its depth (early stopping) is the step itself.
    inside = leaves and not ends_in_exit(body) and is_eventful(world, module, body)
    preferred = inside or leaves_else or not leaves
    normal = is_normal(test)
    preferred = preferred if normal is None else normal
    if eventful and begins_window(world, test):
        # One world then shows a whole window: backward, backward, step.
        preferred = not preferred
    return decide(world, condition, preferred)


FAILING = re.compile(r"\b_?is_?(nan|inf)\b|overflow")


def is_normal(test: ast.expr) -> bool | None:
    """The truth of a test for numbers gone wrong when they have not; None for any other test."""
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    text = written(test.operand if isinstance(test, ast.UnaryOp) else test)
    if FAILING.search(text):
        return negated
    return not negated if "isfinite" in text else None


def begins_window(world: World, test: ast.expr) -> bool:
    """Whether a test of the place in an accumulation window is asked on its first micro-batch."""
    if not world.loops or world.loops[-1].iteration != 1 or len(world.loops) < 2:
        return False
    text = written(test)
    return "%" in text and knowledge.ACCUMULATION_NAME.search(text) is not None


def ends_in_exit(nodes: Sequence[ast.AST]) -> bool:
    last = nodes[-1] if nodes else None
    return isinstance(last, (ast.Return, ast.Continue, ast.Break, ast.Raise))


def ends_in_raise(nodes: Sequence[ast.AST]) -> bool:
    if not nodes:
        return False
    last = nodes[-1]
    if isinstance(last, ast.Raise):
        return True
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return classes.dotted(last.value.func) in ("sys.exit", "exit", "quit", "os._exit")
    return False


def exits_memo(module: Module, nodes: Sequence[ast.AST]) -> bool:
    if not nodes:
        return False
    memo = module.__dict__.setdefault("exits_memo", {})
    key = id(nodes[0])
    if key not in memo:
        memo[key] = exits(nodes)
    return bool(memo[key])


def exits(nodes: Iterable[ast.AST]) -> bool:
    """Whether control can leave the block: return, continue, break (of a loop outside it)."""
    for node in nodes:
        if isinstance(node, (ast.Return, ast.Continue, ast.Break, ast.Raise)):
            return True
        if isinstance(node, ast.If):
            if exits(node.body) or exits(node.orelse):
                return True
        elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)):
            if exits(node.body):
                return True
    return False


def open_events(world: World) -> bool:
    """Whether a training event has happened in this iteration, so that leaving it matters."""
    marks = world.marks
    for event in reversed(world.events[-40:]):
        if event.kind in ORDERED and event.marks[: len(marks)] == marks:
            return True
    return False


def is_eventful(world: World, module: Module, nodes: Iterable[ast.AST]) -> bool:
    return any(node_is_eventful(world, module, node) for node in nodes)


def node_is_eventful(world: World, module: Module, node: ast.AST) -> bool:
    """Whether training events can happen inside, in called functions of the project too."""
    memo = memo_of(module)
    known = memo.get(id(node))
    if known is not None:
        return known
    memo[id(node)] = False
    place = place_of(node)
    quiet: Place = module.__dict__.get("quiet_place", NOWHERE)
    if quiet[0] <= place[0] and place[1] <= quiet[1]:
        # It is inside of what was asked about last, in which nothing happens.
        return False
    found = mentions_event(world, module, node) and any(
        (isinstance(part, ast.Call) and call_is_eventful(world, module, part))
        or (isinstance(part, ast.Assign) and any(map(is_gradient, part.targets)))
        for part in ast.walk(node)
    )
    memo[id(node)] = found
    if not found:
        module.__dict__["quiet_place"] = place
    return found


Place = tuple[tuple[int, int], tuple[int, int]]
NOWHERE: Place = ((1, 0), (0, 0))


def place_of(node: ast.AST) -> Place:
    """Row and column of the start and of the end of a statement or an expression."""
    if not isinstance(node, (ast.stmt, ast.expr)):
        return NOWHERE[::-1]
    last, end = node.end_lineno or node.lineno, node.end_col_offset or 0
    return (node.lineno, node.col_offset), (last, end)


def is_gradient(target: ast.expr) -> bool:
    return isinstance(target, ast.Attribute) and target.attr == "grad"


CALLED = re.compile(r"\b([^\W\d]\w*)\s*\(")
# Calls that `call_is_eventful` looks at more closely.
TELLING_WORDS = knowledge.EVENT_WORDS | {"eval", "update", "GradScaler"}


def mentions_event(world: World, module: Module, node: ast.AST) -> bool:
    """Whether the rows of a node hold a word of an event: no, for most, without walking it."""
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", 0)
    if not first or not last:
        return True
    starts, text = module.source.line_starts, module.source.text
    begin, end = starts[first - 1], starts[last] if last < len(starts) else len(text)
    if text.find(".grad", begin, end) >= 0:
        return True
    called = set(CALLED.findall(text, begin, end))
    if not called.isdisjoint(TELLING_WORDS):
        return True
    quiet = world.project.quiet.setdefault(module, set())
    called -= quiet
    for name in called:
        if name_is_eventful(world, module, name):
            return True
        quiet.add(name)
    return False


def memo_of(module: Module) -> dict[int, bool]:
    memo: dict[int, bool] | None = module.__dict__.get("eventful_memo")
    if memo is None:
        memo = module.__dict__["eventful_memo"] = {}
    return memo


def call_is_eventful(world: World, module: Module, call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        if function.attr in world.project.taught_words:
            return True
        if function.attr == "step":
            receiver = last_name(function.value)
            role = knowledge.role_of_name(receiver)
            outside = (
                knowledge.Role.SCHEDULER,
                knowledge.Role.ENVIRONMENT,
                knowledge.Role.LOADER,
                knowledge.Role.MODEL,
            )
            return role not in outside and "prof" not in receiver.lower()
        if function.attr == "eval":
            # Which mode the model is in goes together with what is done to it later.
            return not call.args and not call.keywords
        if function.attr == "update":
            receiver = last_name(function.value)
            if receiver == "self":
                return name_is_eventful(world, module, "update")
            return knowledge.role_of_name(receiver) is knowledge.Role.SCALER
        if function.attr in knowledge.EVENT_WORDS or function.attr == "GradScaler":
            return True
        return name_is_eventful(world, module, function.attr)
    if isinstance(function, ast.Name):
        if function.id in knowledge.EVENT_WORDS or function.id == "GradScaler":
            return True
        return name_is_eventful(world, module, function.id)
    return False


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return ""


def name_is_eventful(world: World, module: Module, name: str) -> bool:
    taught = world.project.taught_words
    if name in taught or name in eventful_names(module, taught):
        return True
    if name not in module.imports or classes.is_outside(module.imports[name]):
        return False
    found = world.project.function(module.imports[name], module)
    return found is not None and found.name in eventful_names(found.module, taught)


def eventful_names(module: Module, taught: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names of the functions and methods of a module from which a training event can be reached."""
    known: frozenset[str] | None = module.__dict__.get("eventful_names")
    if known is not None:
        return known
    words = frozenset(
        "backward zero_grad unscale_ manual_backward first_step unscale_gradients".split()
    ).union(taught)
    if isinstance(module, LazyModule):
        from oomlint.analysis.outline import eventful_by_text

        found = eventful_by_text(module.source.text, words)
        module.__dict__["eventful_names"] = found
        return found
    names = {f.name for f in module.all_functions if f.words & words or is_stepping(f)}
    names.discard("__init__")
    changed = True
    while changed:
        more = {
            f.name
            for f in module.all_functions
            if f.name not in names and f.name != "__init__" and f.words & names
        }
        changed = bool(more)
        names |= more
    # Methods that every module has would make everything eventful.
    names -= {"forward", "train", "eval", "update", "step", "__call__", "run", "main"} - words
    names |= {
        f.name
        for f in module.all_functions
        if f.name in ("update", "step", "run", "main", "train", "__call__")
        and (f.words & words or is_stepping(f))
    }
    found = frozenset(names)
    module.__dict__["eventful_names"] = found
    return found


def is_stepping(function: Function) -> bool:
    return "step" in function.words and bool(
        function.words & {"optimizer", "opt", "optim", "scaler", "optimizers", "optimiser"}
    )
