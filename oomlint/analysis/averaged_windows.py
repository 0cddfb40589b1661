"""Windows whose every micro-batch averages the gradients over the ranks, and how to put it off."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import derivation, edits, sites, synchronisation
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import make_fix
from oomlint.analysis.modules import TEXTS, Function, Module, written
from oomlint.analysis.questions import Window
from oomlint.analysis.state import Event, Kind
from oomlint.analysis.synchronisation import Wrapped
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


def averaged(model: Model, window: Window) -> Event | None:
    """The forward of a data-parallel model in a window whose averages nobody puts off."""
    if window.guard is not None and not ask.is_accumulation(window):
        return None
    if "no_sync" in window.backward.contexts or "accumulate" in window.backward.contexts:
        return None
    first, last = window.backward.index, window.step.index
    if any(
        first < e.index < last and ask.concerns(e, window.optimizer)
        for e in window.world.of(Kind.ZERO_GRAD)
    ):
        return None
    if puts_off(model.module, window.backward):
        return None
    return next((e for e in forwards(window) if wrapping(model.module, e) is not None), None)


def forwards(window: Window) -> Iterator[Event]:
    """The forwards of the micro-batch that the window's first backward belongs to."""
    serial = window.loop.serial
    iteration = next(m.iteration for m in window.backward.loops if m.serial == serial)
    for event in window.world.of(Kind.FORWARD):
        if event.index > window.backward.index:
            return
        if event.grad is not False and any(
            m.serial == serial and m.iteration == iteration for m in event.loops
        ):
            yield event


def wrapping(module: Module, forward: Event) -> Wrapped | None:
    if forward.module is not module or not isinstance(forward.node, ast.Call):
        return None
    return synchronisation.wrapped(module, forward.node.func, forward.function)


PUTS_OFF = re.compile(r"no_sync|no_backward_sync|grad\w*_sync|sync_(grad|context)|comm_hook")


def puts_off(module: Module, backward: Event) -> bool:
    """Whether the code on the way to a backward speaks of averages at all."""
    functions = [backward.function, *(call.callee for call in backward.calls)]
    if backward.calls and module.function_of(backward.calls[0].node) is None:
        functions.append(None)
    if any(PUTS_OFF.search(text_around(module, function)) for function in functions):
        return True
    # A context or a generator of contexts that the file defines for its loops.
    made = (f.code for f in module.all_functions if "backward" not in f.words)
    return any(PUTS_OFF.search(code) for code in made)


def text_around(module: Module, function: Function | None) -> str:
    if function is None:
        return TEXTS.sub('""', module.source.text)
    function = function.outermost
    if function.owner is None:
        return function.code
    return "\n".join(method.code for method in function.owner.methods.values())


def remedy(module: Module, window: Window, forward: Event) -> Fix | None:
    """Forward and backward under `no_sync` unless the window ends, where the test can be told."""
    backward, node = window.backward, forward.node
    if backward.module is not module or backward.function is not forward.function:
        return None
    if wrapping(module, forward) is not Wrapped.ALWAYS or steps_again(module, window.step):
        return None
    if not isinstance(node, ast.Call):
        return None
    if not isinstance(node.func, ast.Name | ast.Attribute):
        return None
    statements = together(module, node, backward.node, window.loop.node)
    last = is_last(module, window, statements)
    if last is None:
        return None
    try:
        name, imports = edits.name_in_file(module, "contextlib.nullcontext")
        header = f"with {name}() if {last} else {written(node.func)}.no_sync():"
        changed = [*imports, *edits.wrap_in(module, statements, header)]
    except edits.NoFix:
        return None
    title = "Enter `no_sync()` for all but the last micro-batch"
    return make_fix(title, changed, Safety.UNSAFE)


def steps_again(module: Module, step: Event) -> bool:
    """Whether the function has a second step, for what is left of the last window."""
    if step.module is not module or not isinstance(step.node, ast.Call):
        return True
    text = written(step.node)
    return any(
        site.function is step.function and written(site.node) == text and site.node is not step.node
        for site in sites.sites(module)
    )


def together(module: Module, first: ast.AST, last: ast.AST, loop: ast.AST) -> list[ast.stmt]:
    """The statements of the loop's body from the one with the first node to that with the last."""
    body: list[ast.stmt] = getattr(loop, "body", [])
    ranks = [
        next((i for i, s in enumerate(body) if s is node or s in module.enclosing(node)), None)
        for node in (first, last)
    ]
    if ranks[0] is None or ranks[1] is None:
        return []
    return body[ranks[0] : ranks[1] + 1]


def is_last(module: Module, window: Window, statements: list[ast.stmt]) -> str | None:
    """The test for the window's last micro-batch, if it means the same before the forward."""
    loop = window.loop.node
    if not statements or any(holds_step(window, s, module) for s in statements):
        return None
    if window.guard is None:
        return last_of_range(loop)
    test = window.guard.test
    if window.guard.module is not module or isinstance(test, ast.NamedExpr | ast.IfExp):
        return None
    if window.step.function is not window.backward.function:
        return None
    names = {written(n) for n in ast.walk(test) if isinstance(n, ast.Name | ast.Attribute)}
    body: list[ast.stmt] = getattr(loop, "body", [])
    for statement in body[body.index(statements[0]) :]:
        for part in ast.walk(statement):
            if any(names & derivation.written_targets(t) for t, _ in derivation.bound(part)):
                return None
    text = " ".join(module.segment(test).split())
    return text if window.guard.truth else f"not ({text})"


def holds_step(window: Window, statement: ast.stmt, module: Module) -> bool:
    return statement in module.enclosing(window.step.node)


def last_of_range(loop: ast.AST) -> str | None:
    """`k == n - 1` for `for k in range(n)`."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Name):
        return None
    made = loop.iter
    if not isinstance(made, ast.Call) or written(made.func) != "range" or len(made.args) != 1:
        return None
    count = made.args[0]
    if isinstance(count, ast.Constant) and isinstance(count.value, int):
        return f"{loop.target.id} == {count.value - 1}"
    if not isinstance(count, ast.Name | ast.Attribute):
        return None
    return f"{loop.target.id} == {written(count)} - 1"
