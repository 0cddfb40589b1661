"""Why a statement was not followed: no way leads there, or one that was not taken."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, classes, exploration, knowledge
from oomlint.analysis.conditions import eventful_names
from oomlint.analysis.dispatch import MAX_STATEMENTS
from oomlint.analysis.following import EVENT_NAMES, MAX_DEPTH, SMALL, SMALL_ELSEWHERE
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.observation import Observation, last_name
from oomlint.analysis.roots import BACKWARD, Reading, judged
from oomlint.analysis.state import World
from oomlint.analysis.wording import clipped

# Callers that are named where a function was not followed.
MAX_CALLERS = 3


def reasons(
    model: Model, observation: Observation, statement: ast.stmt, function: Function | None
) -> Iterator[str]:
    """Sentences, the most telling first."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        yield "the line is part of a text, and no code"
        return
    reading = Reading(model.project, model.module)
    if function is None:
        yield from script_reasons(observation, reading, statement)
        return
    if is_entered(observation, function) and function.node is not statement:
        yield from way_not_taken(model, observation, statement, function)
        return
    if is_entered(observation, function):
        yield "the row only names the function; its body is followed: explain a row of it"
        return
    yield from function_reasons(model, observation, reading, function)


def is_entered(observation: Observation, function: Function) -> bool:
    return any(part in observation.reached for part in function.node.body)


def script_reasons(
    observation: Observation, reading: Reading, statement: ast.stmt
) -> Iterator[str]:
    if reading.script() is None:
        said, _ = reading.reach(reading.read(frozenset(reading.script_words())))
        yield f"the script's own statements are not followed: {missing_words(said)}"
    elif any(isinstance(node, ast.ClassDef) for node in reading.module.enclosing(statement)):
        yield "statements in the body of a class are not followed, only its methods"
    else:
        yield "the script ends, or goes another way, before this line"


def missing_words(said: int) -> str:
    if said & BACKWARD:
        return (
            "its words and those of what it calls mention a `backward`, but nothing that steps,"
            " updates or collects (`step`, `update`, `append`, `extend`), so no rule could judge"
            " their order"
        )
    return (
        "its words and those of what it calls mention no `backward`, no evaluation (`eval`,"
        " `train(False)`) and no environment, so there is no order of events to judge"
    )


def way_not_taken(
    model: Model, observation: Observation, statement: ast.stmt, function: Function
) -> Iterator[str]:
    """The function was followed, this statement was not."""
    module = model.module
    inner: ast.AST = statement
    for node in module.enclosing(statement):
        if node in observation.reached or node is function.node:
            yield from branch_reason(module, node, inner, function)
            break
        inner = node
    if any(too_long(world) for world in model.worlds):
        yield f"a world ended early: it had more than {MAX_STATEMENTS} statements"


def too_long(world: World) -> bool:
    return world.statements > MAX_STATEMENTS


def branch_reason(
    module: Module, node: ast.AST, inner: ast.AST, function: Function
) -> Iterator[str]:
    row = getattr(node, "lineno", 0)
    if isinstance(node, ast.If):
        truth = "false" if inner in node.orelse else "true"
        test = clipped(written(node.test))
        body = node.orelse if inner in node.orelse else node.body
        if isinstance(body[-1], ast.Raise) or ends_program(body[-1]):
            yield f"the arm of `if {test}` (line {row}) ends the program, so it is not taken"
            return
        yield (
            f"`{test}` (line {row}) is {truth} in no world that was followed: its value is known"
            " from what the code assigns or passes, an earlier test has settled it, or nothing"
            " before it in the same round would be lost on the other arm"
        )
    elif isinstance(node, ast.Try) and inner in node.handlers:
        yield (
            f"a handler runs only where the body of its `try` (line {row}) certainly raises:"
            " exceptions are not modelled"
        )
    elif isinstance(node, ast.Match):
        yield f"this `case` of the `match` in line {row} is chosen in no world that was followed"
    elif node is function.node:
        yield (
            f"`{function.qualname}` is followed, but every way that was followed leaves it"
            " (`return`, `raise`, `sys.exit`) before this line"
        )
    else:
        yield (
            f"the statement in line {row} is followed, but every way leaves its block"
            " (`return`, `raise`, `continue`, `break`) before this line"
        )


def ends_program(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return written(statement.value.func) in ("sys.exit", "exit", "quit", "os._exit")


def function_reasons(
    model: Model, observation: Observation, reading: Reading, function: Function
) -> Iterator[str]:
    """The function that holds the statement was never entered."""
    name = function.qualname
    if is_inside_network(model, function):
        yield (
            f"`{name}` is a part of a network: what a network does inside is not followed,"
            " a call of it is one `forward`"
        )
        return
    if function.is_generator:
        yield f"`{name}` is a generator: only those that make a backward are followed"
        return
    refused = list(refusals(model.module, observation, function))
    yield from refused
    if function.parent is not None and not refused:
        yield (
            f"`{name}` is defined inside of `{function.parent.qualname}`, and no call of it was"
            " followed"
        )
        return
    chosen = {root.function for root in reading.roots()}
    if function in chosen:
        yield (
            f"the budget of this file was used up before `{name}`: at most"
            f" {exploration.FILE_BUDGET} statements over all worlds are followed"
        )
        return
    said, _ = reading.reach(reading.mentioned(function))
    if not judged(said) and function.name != "__init__":
        yield f"following does not start at `{name}`: {missing_words(said)}"
    yield from callers(model.module, observation, function, bool(refused))


def is_inside_network(model: Model, function: Function) -> bool:
    if function.owner is None or function.name not in ("__init__", "forward"):
        return False
    world = World(model.project, model.module)
    bases = classes.base_names(world, function.owner)
    return any(
        knowledge.MODULE_BASE.fullmatch(base) and not knowledge.LIGHTNING_MODULE.fullmatch(base)
        for base in bases
    )


def refusals(module: Module, observation: Observation, function: Function) -> Iterator[str]:
    """Calls that were met and not followed into the function, with the reason."""
    for call, under_way in list(observation.calls.items())[:MAX_CALLERS]:
        where = f"the call in line {call.lineno} does not lead there"
        reason = refusal(module, function)
        if function in under_way:
            yield f"{where}: `{function.name}` is already under way there"
        elif len(under_way) > MAX_DEPTH:
            yield f"{where}: it is deeper than {MAX_DEPTH} calls in each other"
        elif reason:
            yield f"{where}: {reason}"
        elif isinstance(call.func, ast.Attribute):
            held = clipped(written(call.func.value))
            yield f"{where}: it is not known that `{held}` has this `{function.name}`"


def refusal(module: Module, function: Function) -> str:
    """Why calls of a function are never worth following; empty where that depends on the call."""
    if function.is_generator:
        return f"`{function.name}` is a generator, and only those that make a backward are followed"
    most = SMALL if function.module is module else SMALL_ELSEWHERE
    telling = function.words & (EVENT_NAMES | knowledge.MODE_WORDS)
    if telling or function.name in eventful_names(function.module) or function.size <= most:
        return ""
    return (
        f"`{function.name}` mentions no training event and has {function.size} statements (more"
        f" than {most} are not worth following)"
    )


def callers(
    module: Module, observation: Observation, function: Function, refused: bool
) -> Iterator[str]:
    calls = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and last_name(node.func) == function.name
    ]
    unmet = [call for call in calls if call not in observation.calls]
    if unmet:
        rows = ", ".join(str(call.lineno) for call in unmet[:MAX_CALLERS])
        yield f"the calls in line {rows} are not followed either: explain them to see why"
    elif not calls and not refused:
        yield f"nothing in this file calls `{function.name}` by name"
