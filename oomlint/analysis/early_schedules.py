"""Schedules that advance before the optimizer has stepped, and how to put them behind it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oomlint.analysis import edits
from oomlint.analysis import questions as ask
from oomlint.analysis.accumulation import targets_of
from oomlint.analysis.answers import common, make_fix, positions
from oomlint.analysis.modules import Module, written
from oomlint.analysis.remedies import lone_block, move, statement, step_end
from oomlint.analysis.schedules import advances, by_progress, may_count_itself, steps_of
from oomlint.analysis.state import Event, Kind, Loop, World
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model


def too_early(world: World) -> Iterator[tuple[Event, Event]]:
    """Advances of a schedule with no step of its optimizer before them, and the step behind."""
    for advance in world.events:
        if not advances(advance) or is_expected(advance):
            continue
        steps = steps_of(world, advance.subject)
        if any(step.index < advance.index for step in steps) or stepped_unseen(world, advance):
            continue
        loops = own_loops(advance)
        marks = loops[-1].marks if loops else ()
        step = next((s for s in steps if s.marks[: len(marks)] == marks), None)
        if step is None or step.detail.get("stepper"):
            continue
        if not loops and advances_again(world, advance):
            # Before all loops it may be brought to where an earlier run ended.
            continue
        if not by_progress(advance, step) and not may_count_itself(world, advance):
            yield advance, step


def advance_with(advance: Event, step: Event) -> bool:
    """Whether a schedule advances under the very condition under which the optimizer steps."""
    conditions = [guard.test for guard in step.guards if "%" in guard.key]
    return bool(conditions) and all(
        any(guard.test is test for guard in advance.guards) for test in conditions
    )


def own_loops(advance: Event) -> tuple[Loop, ...]:
    """The loops around an advance without one that goes through the schedulers themselves."""
    node, loops = advance.node, advance.loops
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = written(node.func.value)
        while loops and name in targets_of(loops[-1].node):
            loops = loops[:-1]
    return loops


# Calls that are given an optimizer and do not step it: they set it up, wrap, read or save it.
NO_STEP = re.compile(
    r"(^|_)(init\w*|prepare|wrap\w*|setup|load|resume|restore|save|get|build|make|create|log|print"
    r"|broadcast|register|distribut\w+|clip\w*|master_params|watch|count|summary"
    r"|(un)?freeze\w*)(_|$)"
)


def stepped_unseen(world: World, advance: Event) -> bool:
    """Whether an optimizer may have stepped where it cannot be seen."""
    return any(
        e.kind is Kind.ENGINE_STEP
        or (
            e.kind is Kind.OPAQUE_CALL
            and any(ask.may_touch(e, s.subject) for s in steps)
            and not NO_STEP.search(called(e))
        )
        for steps in [steps_of(world, advance.subject)]
        for e in world.events[: advance.index]
    )


def called(event: Event) -> str:
    function = event.node.func if isinstance(event.node, ast.Call) else event.node
    return written(function).rsplit(".", 1)[-1]


def advances_again(world: World, advance: Event) -> bool:
    return any(
        advances(e) and e.node is not advance.node and ask.same(e.subject, advance.subject)
        for e in world.events
    )


def is_expected(advance: Event) -> bool:
    """Whether the function knows: the warning is silenced, or the schedule's position set."""
    function = advance.function
    text = function.code if function is not None else advance.module.source.text
    return bool(re.search(r"simplefilter|filterwarnings|\.last_epoch\s*=[^=]|_step_count", text))


def remedy(model: Model, world: World, advance: Event, step: Event) -> Fix | None:
    """The scheduler moves behind the step, or behind the loop or call that steps."""
    module = model.module
    depth = common(advance.calls, step.calls)
    if advance.module is not module or len(advance.calls) != depth:
        return None
    place_module, node = positions(step)[depth]
    if place_module is not module or not isinstance(node, ast.expr | ast.stmt):
        return None
    moved = lone_block(module, statement(advance))
    if len(own_loops(advance)) < len(advance.loops):
        loop = module.parents[moved]
        if not isinstance(loop, ast.For) or loop.body != [moved] or loop.orelse:
            return None
        moved = lone_block(module, loop)
    target = sibling(module, moved, module.statement_of(node))
    if target is None:
        return None
    if node is step.node and target is statement(step):
        target = step_end(world, step)
    changes = move(module, moved, target, behind=True)
    title = "Step the scheduler after the optimizer"
    return make_fix(title, changes, Safety.UNSAFE) if changes else None


def sibling(module: Module, moved: ast.stmt, inner: ast.stmt) -> ast.stmt | None:
    """The statement of the same block as `moved` that holds `inner`."""
    parent = module.parents[moved]
    blocks = [block for _, block in ast.iter_fields(parent) if isinstance(block, list)]
    block = next((block for block in blocks if moved in block), [])
    for node in (inner, *module.enclosing(inner)):
        if node in block and isinstance(node, ast.stmt):
            return node if edits.first_row(node) > edits.first_row(moved) else None
    return None
