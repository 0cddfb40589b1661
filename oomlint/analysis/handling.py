"""Where code handles that the device ran out of memory: by type, by text, by a helper."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import cadence, placement, sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site

WORDS = (
    "out of memory",
    "Out of memory",
    "Out Of Memory",
    "OUT OF MEMORY",
    "ALLOC_FAILED",
    "DefaultCPUAllocator",
)
# What a file must say somewhere for its handlers to be about memory.
TEXTS = (
    *WORDS,
    "OutOfMemory",
    "OOMError",
    "oom_",
    "_oom",
    "out_of_",
    "should_reduce_batch_size",
    "empty_cache",
)
MESSAGE = re.compile("|".join(WORDS))
TYPE = re.compile(r"(\w+\.)*_?OutOfMemoryError|(\w+\.)*OOMError")
HELPER = re.compile(r"(^|_)(oom_|out_of_(\w+_)?memory|should_reduce_batch_size)|_oom($|_)")
BROAD = re.compile(r"(RuntimeError|Exception|BaseException|torch\.AcceleratorError)")


@dataclass(frozen=True, slots=True)
class Arm:
    """Statements that run while an out-of-memory error is being handled.

    `block` is the list that holds them from `first` on; `test` is what tells the error apart,
    None where its type does. It is not `sure` where any error is handled by an emptied cache.
    """

    attempt: ast.Try
    handler: ast.ExceptHandler
    block: list[ast.stmt]
    first: int
    test: ast.expr | None
    function: Function | None
    sure: bool = True

    @property
    def statements(self) -> list[ast.stmt]:
        return self.block[self.first :]


def arms(module: Module) -> Iterator[Arm]:
    """Every place in a file that handles an out-of-memory error, in source order."""
    for node in module.index.by_kind[ast.Try]:
        if isinstance(node, ast.Try):
            function = module.function_of(node)
            for handler in node.handlers:
                yield from arms_of(module, node, handler, function)


def arms_of(
    module: Module, attempt: ast.Try, handler: ast.ExceptHandler, function: Function | None
) -> Iterator[Arm]:
    caught = caught_types(module, handler, function)
    if caught and all(TYPE.fullmatch(name) for name in caught):
        yield Arm(attempt, handler, handler.body, 0, None, function)
        return
    if caught and not any(BROAD.fullmatch(name) or TYPE.fullmatch(name) for name in caught):
        return
    for index, statement in enumerate(handler.body):
        if not isinstance(statement, ast.If):
            continue
        truth = means_oom(handler, statement.test)
        if truth is True:
            yield Arm(attempt, handler, statement.body, 0, statement.test, function)
        elif truth is False and statement.orelse:
            yield Arm(attempt, handler, statement.orelse, 0, statement.test, function)
        elif truth is False and leaves(statement.body):
            yield Arm(attempt, handler, handler.body, index + 1, statement.test, function)
        else:
            continue
        return
    if any("empty_cache(" in written(statement) for statement in handler.body):
        yield Arm(attempt, handler, handler.body, 0, None, function, sure=False)


def caught_types(
    module: Module, handler: ast.ExceptHandler, function: Function | None
) -> list[str]:
    """Qualified names of the types that a handler catches; its own words where nothing is known."""
    if handler.type is None:
        return []
    nodes = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [sites.qualified_name(module, node, function) or written(node) for node in nodes]


def means_oom(handler: ast.ExceptHandler, test: ast.expr) -> bool | None:
    """Whether a test is true of these errors only, False for the contrary, None for neither."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = means_oom(handler, test.operand)
        return None if inner is None else not inner
    if isinstance(test, ast.BoolOp):
        found = {means_oom(handler, value) for value in test.values} - {None}
        return found.pop() if len(found) == 1 else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return compared(test)
    if isinstance(test, ast.Call):
        return called(test)
    if isinstance(test, ast.Name):
        return assigned(handler, test.id)
    return None


def compared(test: ast.Compare) -> bool | None:
    if not is_message(test.left) and not any(is_message(part) for part in test.comparators):
        return None
    op = test.ops[0]
    if isinstance(op, ast.In | ast.Eq | ast.NotEq):
        return not isinstance(op, ast.NotEq)
    if isinstance(op, ast.NotIn):
        return False
    return None


def is_message(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and MESSAGE.search(node.value) is not None
    )


def called(test: ast.Call) -> bool | None:
    name = written(test.func)
    if name == "isinstance" and len(test.args) == 2:
        kinds = test.args[1].elts if isinstance(test.args[1], ast.Tuple) else [test.args[1]]
        return True if all(TYPE.fullmatch(written(kind)) for kind in kinds) else None
    if name == "any" and any(
        is_message(part) for part in ast.walk(test) if isinstance(part, ast.expr)
    ):
        return True
    if any(is_message(argument) for argument in test.args):
        return True
    return True if HELPER.search(name.rsplit(".", 1)[-1]) else None


def assigned(handler: ast.ExceptHandler, name: str) -> bool | None:
    """What a name of the handler says that was assigned such a test."""
    for statement in handler.body:
        if isinstance(statement, ast.Assign) and written(statement.targets[0]) == name:
            return means_oom(handler, statement.value)
    return None


def leaves(body: list[ast.stmt]) -> bool:
    """Whether a block certainly leaves the function or the iteration."""
    return isinstance(body[-1], ast.Raise | ast.Return | ast.Continue | ast.Break)


def runs_on_host(module: Module, arm: Arm, again: Site) -> bool:
    """Whether a second attempt is given what the handler moved to the host: it needs no device."""
    given = [*again.node.args, *(keyword.value for keyword in again.node.keywords)]
    if again.receiver is not None:
        given.append(again.receiver)
    places = {written(node): host for node, host in moved(module, arm, again)}
    for node in given:
        direct = isinstance(node, ast.Call) and goes_to_host(
            module, sites.site_of(module, node, arm.function)
        )
        if direct or places.get(written(node)) or names_host(module, node, again):
            return not moves_on(module, again)
    return places.get(written(again.node.func), False) and not moves_on(module, again)


def moved(module: Module, arm: Arm, again: Site) -> Iterator[tuple[ast.expr, bool]]:
    """What the handler moves before a call, in source order, and whether it goes to the host."""
    for statement in arm.handler.body:
        for node in (statement, *sites.own_nodes(statement)):
            if not isinstance(node, ast.Call) or node.lineno >= again.node.lineno:
                continue
            site = sites.site_of(module, node, arm.function)
            host = goes_to_host(module, site)
            if not host and placement.destination(module, site) is None:
                continue
            if site.receiver is not None:
                yield from ((goal, host) for goal in (site.receiver, *bound_to(module, node)))


def bound_to(module: Module, node: ast.Call) -> list[ast.expr]:
    statement = module.statement_of(node)
    if not isinstance(statement, ast.Assign):
        return []
    goals: list[ast.expr] = []
    for target in statement.targets:
        goals += target.elts if isinstance(target, ast.Tuple) else [target]
    if isinstance(statement.value, ast.Tuple) and node in statement.value.elts:
        return [goals[statement.value.elts.index(node)]] if len(goals) > 1 else goals
    return goals


def goes_to_host(module: Module, site: Site) -> bool:
    return site.receiver is not None and (
        site.method == "cpu" or placement.destination(module, site) is Place.HOST
    )


def names_host(module: Module, node: ast.expr, again: Site) -> bool:
    """`device="cpu"`: the second attempt is told to run on the host."""
    return placement.place(module, node, again.function) is Place.HOST


def moves_on(module: Module, again: Site) -> bool:
    """Whether what is called again moves its arguments to the device itself."""
    called = cadence.local_function(module, again)
    return called is not None and any(
        placement.destination(module, site) in (Place.DEVICE, Place.OPEN)
        for site in sites.found_in(module, called.node, called)
    )
