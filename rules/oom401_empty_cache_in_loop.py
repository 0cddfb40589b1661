"""OOM401: the allocator's cache is emptied on every step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, allocator, cadence, edits, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import STEPS


class EmptyCacheInLoop(Rule):
    """
    ## What it does
    Checks for `torch.cuda.empty_cache()` and `gc.collect()` that run on every training or
    evaluation step, in the loop itself or in a function or hook that each step calls.

    ## Why is this bad?
    The cache is what makes the next step's allocations cheap. Emptying it frees no tensor that is
    still alive; it gives unused blocks back to the driver, which synchronises, and the next step
    asks the driver for the same blocks again. `gc.collect()` walks every object of the process.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion, optimizer):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            torch.cuda.empty_cache()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, optimizer):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    Safe: the numbers stay the same. A call once per epoch, after an out-of-memory error, above a
    threshold or every thousand steps is not reported.

    ## Measured
    Requests to the device fall from some in every step to none; the bytes of live tensors do not
    change. What a request costs in time only a GPU can show.

    ## References
    - [PyTorch: memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)
    """

    code = "OOM401"
    name = "empty-cache-in-loop"
    severity = Severity.WARNING
    tokens = (
        ("empty_cache", "gc.collect", "clear_device_cache", "release_memory", "free_memory"),
        ("torch", "accelerate"),
    )
    token_pattern = STEPS
    claims = (Claim.DEVICE_ALLOCATIONS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        told: set[ast.stmt] = set()
        names = allocator.NAMES | {function.name for function in allocator.flushers(module)}
        for site in sites.sites(module):
            if site.receiver is not None and site.method not in names:
                continue
            flush = allocator.is_flush(site) or allocator.flusher(module, site) is not None
            if not flush and not allocator.is_collect(site):
                continue
            if site.function in allocator.flushers(module):
                continue
            statement = module.statement_of(site.node)
            if statement in told or not is_plain(statement, site):
                continue
            if not cadence.once_a_step(module, site.node, site.function):
                continue
            group = neighbours(module, statement) if flush else [statement]
            if not flush and (manages_gc(module) or beside_flush(module, statement)):
                continue
            told.update(group)
            message = (
                f"`{called(site)}` on every step frees no live tensor; the next step asks the "
                "device for the same blocks again"
            )
            if not flush:
                message = f"`{called(site)}` on every step walks all objects of the process"
            yield finding(model, self, site.node, message, removal(module, group))


def called(site: Site) -> str:
    return f"{ast.unparse(site.node.func)}()"


def is_plain(statement: ast.stmt, site: Site) -> bool:
    return isinstance(statement, ast.Expr) and statement.value is site.node


def neighbours(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """The flush with the `gc.collect()`, `ipc_collect()` or second flush directly beside it."""
    parent = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        body = getattr(parent, name, None)
        if not isinstance(body, list) or statement not in body:
            continue
        first = last = body.index(statement)
        while first and belongs(module, body[first - 1]):
            first -= 1
        while last + 1 < len(body) and belongs(module, body[last + 1]):
            last += 1
        return list(body[first : last + 1])
    return [statement]


def belongs(module: Module, statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    site = sites.site_of(module, statement.value, module.function_of(statement))
    return (
        allocator.is_collect(site)
        or allocator.is_flush(site)
        or site.qualified.endswith(".ipc_collect")
    )


def beside_flush(module: Module, statement: ast.stmt) -> bool:
    """Whether the flush beside a `gc.collect()` speaks for both."""
    for other in neighbours(module, statement):
        if other is not statement and isinstance(other, ast.Expr):
            assert isinstance(other.value, ast.Call)
            site = sites.site_of(module, other.value, module.function_of(other))
            if allocator.is_flush(site):
                return True
    return False


def manages_gc(module: Module) -> bool:
    """Whether automatic collection is off, so that collecting by hand is the plan."""
    return any(site.qualified in ("gc.disable", "gc.freeze") for site in sites.sites(module))


def removal(module: Module, group: list[ast.stmt]) -> Fix | None:
    """Removes the statements; the `if` around them, too, where it holds nothing else."""
    parent = module.parents[group[0]]
    if isinstance(parent, ast.If) and not parent.orelse and len(parent.body) == len(group):
        outer = module.parents[parent]
        if isinstance(outer, ast.If) and parent in outer.orelse:
            return None
        group = [parent]
    try:
        removed: list[Edit] = [delete(module, statement, len(group)) for statement in group]
    except edits.NoFix:
        return None
    return make_fix("Remove it: the cache is kept for the next step", removed, Safety.SAFE)


def delete(module: Module, statement: ast.stmt, count: int) -> Edit:
    parent = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        body = getattr(parent, name, None)
        if isinstance(body, list) and statement in body and len(body) == count:
            raise edits.NoFix
    return edits.delete(module, statement)
