"""Handlers of an out-of-memory error that try again or free memory while the traceback holds it."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import allocator, cadence, edits, handling, knowledge, sites
from oomlint.analysis.answers import make_fix
from oomlint.analysis.handling import Arm
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.rule import Edit, Fix, Safety

# Calls that a handler may share with its `try` without trying again.
TRIVIAL = re.compile(
    r"(^|[._])(log\w*|print\w*|warn\w*|info|debug|error|report\w*|append|update|format|time|item|str"
    r"|len|range|close|write|save\w*|stop|start|zero_grad|reset\w*|add|get|set\w*|pop|items|keys"
    r"|clear|join|to|cuda|cpu|size|int|float|max|min|synchronize|sleep|dict|list|tqdm|eval|train"
    r"|is_available|empty_cache|collect|isinstance|getattr|setattr|hasattr|memory\w*|max_memory\w*|sync\w*|barrier)$"
)


def retry(module: Module, arm: Arm) -> Site | None:
    """The first call of the recovery that does again what failed."""
    tried = {written(site.node.func) for site in calls(module, arm.attempt.body, arm.function)}
    for site in calls(module, arm.statements, arm.function):
        name = written(site.node.func)
        if TRIVIAL.search(name) or (site.qualified and not is_own(module, site)):
            continue
        again = is_self_call(site) or site.method == "backward"
        if again or (name in tried and is_heavy(module, site)):
            if not handling.runs_on_host(module, arm, site):
                return site
    return None


def is_self_call(site: Site) -> bool:
    """Whether the function calls itself, with less this time."""
    function = site.function
    return function is not None and cadence.local_function(function.module, site) is function


def is_own(module: Module, site: Site) -> bool:
    return cadence.local_function(module, site) is not None


def is_heavy(module: Module, site: Site) -> bool:
    """Whether a call may allocate: of a model, a criterion, a function of this file or a name."""
    text = written(site.node.func)
    role = knowledge.role_of_name(text)
    if role in (Role.MODEL, Role.CRITERION) or is_own(module, site):
        return True
    return isinstance(site.node.func, ast.Name) or text.startswith("self.")


def emptied(module: Module, arm: Arm) -> Site | None:
    """The first emptied cache of a recovery that goes on; before a `raise` it does not matter."""
    ends = (arm.block[-1], arm.handler.body[-1])
    if any(isinstance(end, ast.Raise) for end in ends) or not holds_frames(module, arm):
        return None
    for site in calls(module, arm.statements, arm.function):
        if allocator.is_flush(site) or allocator.flusher(module, site) is not None:
            return site
    return None


def holds_frames(module: Module, arm: Arm) -> bool:
    """Whether the attempt calls something whose frames can hold tensors."""
    for site in calls(module, arm.attempt.body, arm.function):
        if site.method == "backward" or not site.qualified or is_own(module, site):
            if not TRIVIAL.search(written(site.node.func)):
                return True
    return False


def forgets_traceback(arm: Arm) -> bool:
    """Whether the handler itself drops what the traceback holds."""
    text = "\n".join(written(statement) for statement in arm.handler.body)
    return (
        "clear_frames" in text
        or re.search(r"__traceback__ = None|with_traceback\(None", text) is not None
    )


def calls(module: Module, body: list[ast.stmt], function: Function | None) -> list[Site]:
    """Calls of a block in source order, those of nested definitions left out."""
    found = [
        sites.site_of(module, node, function)
        for statement in body
        for node in (statement, *sites.own_nodes(statement))
        if isinstance(node, ast.Call)
    ]
    return sorted(found, key=lambda site: (site.node.lineno, site.node.col_offset))


FLAG = "out_of_memory"


def remedy(module: Module, arm: Arm, start: Site, node: Site) -> Fix | None:
    """The handler only notes what happened; what it did runs behind the `try`."""
    if arm.attempt.finalbody or FLAG in module.source.text:
        return None
    moved = from_statement(module, arm, min(start, node, key=lambda site: site.node.lineno))
    if moved is None:
        return None
    step = edits.unit(module, arm.attempt.body[0])
    try:
        lines = [line for statement in moved for line in edits.lines_of(module, statement)]
        first = module.source.line_starts[edits.first_row(moved[0]) - 1]
        last = edits.after_line(module, moved[-1].end_lineno or moved[-1].lineno)
        inner = edits.indentation(module, moved[0].lineno)
        newline = module.source.newline
        changes = [
            edits.insert_before(module, arm.attempt, [f"{FLAG} = False"]),
            Edit(first, last, f"{inner}{FLAG} = True{newline}"),
            edits.insert_after(
                module,
                arm.attempt,
                [f"if {FLAG}:", *(step + line if line.strip() else line for line in lines)],
            ),
        ]
    except edits.NoFix:
        return None
    if changes[1].end == changes[2].start:
        changes[1:] = [Edit(first, last, changes[1].content + changes[2].content)]
    return make_fix("Only note the error here, recover behind the `try`", changes, Safety.UNSAFE)


def from_statement(module: Module, arm: Arm, site: Site) -> list[ast.stmt] | None:
    """The statements from the one that holds a call to the end of the block, if all may move."""
    holders = [module.statement_of(site.node), *module.enclosing(site.node)]
    index = next((i for i, s in enumerate(arm.block) if s in holders), None)
    if index is None:
        return None
    moved = arm.block[index:]
    while index > arm.first and prepares(module, arm.block[index - 1]):
        index -= 1
        moved = arm.block[index:]
    holder = arm.handler
    if arm.block is not holder.body:
        outer = next(
            s for s in holder.body if isinstance(s, ast.If) and arm.block in (s.body, s.orelse)
        )
        if outer is not holder.body[-1]:
            return None
        if arm.block is outer.orelse and outer.orelse[0].col_offset == outer.col_offset:
            return None
    for statement in moved:
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and part.id == holder.name:
                return None
            if isinstance(part, ast.Raise) and part.exc is None:
                return None
    return moved


def prepares(module: Module, statement: ast.stmt) -> bool:
    """Whether a statement belongs to the recovery behind it."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        site = sites.site_of(module, statement.value, module.function_of(statement))
        return allocator.is_collect(site)
    return isinstance(statement, ast.Delete | ast.AugAssign)
