"""OOM414: calls about memory that do nothing, and emptied caches that are not needed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, allocator, cadence, edits, sites
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.modules import Function, Module
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AnyOf, InOneFunction, Lines, Times

FLUSHES = (b"empty_cache(", b"clear_device_cache(", b"release_memory(", b"free_memory(")
REPORT = (
    rb"(?<!\w)(?:(?:max_)?memory_(?:allocated|reserved|cached|stats|summary|snapshot|usage"
    rb"|stats_as_nested_dict)|mem_get_info|(?:current|driver)_allocated_memory|list_gpu_processes)"
)
# Bound to a plain name, whole and uncalled, alone or as one of several.
BOUND = rb"(?:(?<![\w.])\w+\s*(?::[^=]*)?|,[^=]*)(?<![=!<>])=(?!=)(?:[^=]*,)?[ \t(]*[\w.]*"


class IneffectiveMemoryCall(Rule):
    """
    ## What it does
    Checks for `torch.cuda.memory_allocated()`, `memory_reserved()` and their like whose result is
    dropped, and for functions that empty the cache after every `del` of a tensor.

    ## Why is this bad?
    The first only report: they reserve and free nothing. And the memory of a deleted tensor is
    free for the next one at once; `empty_cache()` in between gives it to the driver, from which
    the next operation has to ask for it again.

    ## Example
    ```python
    import torch

    def setup(model):
        torch.cuda.memory_reserved(0)
        return model.cuda()
    ```

    Use instead:
    ```python
    import torch

    def setup(model):
        return model.cuda()
    ```

    ## Fix safety
    Safe: the numbers stay the same.

    ## Measured
    Nothing changes without the call that drops its result. Without emptying the cache after each
    `del` of a forward, requests to the device fall from two a step to none.

    ## References
    - [PyTorch: memory management](https://docs.pytorch.org/docs/stable/notes/cuda.html#memory-management)
    """

    code = "OOM414"
    name = "ineffective-memory-call"
    severity = Severity.ADVICE
    tokens = (
        ("memory_", "mem_get_info", "empty_cache", "_allocated_memory", "list_gpu_processes"),
        ("torch",),
    )
    # A report that begins a statement, two flushes beside a `del`, or one under another name.
    token_pattern = AnyOf(
        (
            InOneFunction((Times(2, FLUSHES), re.compile(rb"\bdel\b"))),
            Lines(
                (
                    b"memory_allocated",
                    b"memory_reserved",
                    b"memory_cached",
                    b"memory_stats",
                    b"memory_summary",
                    b"memory_snapshot",
                    b"memory_usage",
                    b"mem_get_info",
                    b"_allocated_memory",
                    b"list_gpu_processes",
                    b"empty_cache",
                ),
                re.compile(
                    rb"(?:^|[;:])[ \t\f(]*[\w.]*" + REPORT + rb"\s*(?:\(|\\?$)"
                    rb"|(?:" + REPORT + rb"|empty_cache)\s+as\b"
                    rb"|" + BOUND + rb"(?:" + REPORT + rb"|(?<!\w)empty_cache)\s*(?:$|[,;)\\]|\"\")"
                ),
            ),
        )
    )
    claims = (Claim.DEVICE_ALLOCATIONS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        told: set[Function] = set()
        for site in sites.sites(module):
            statement = module.statement_of(site.node)
            if not isinstance(statement, ast.Expr) or statement.value is not site.node:
                continue
            if REPORTS.fullmatch(site.qualified):
                if is_shown(module) or is_probe(module, statement):
                    continue
                message = f"`{short(module, site.node)}` only reports, and its result is dropped"
                yield finding(model, self, site.node, message, removal(module, [statement]))
            elif allocator.is_flush(site) and site.function not in told:
                flushes = after_each_del(module, site)
                if not flushes or statement is not flushes[0] or site.function is None:
                    continue
                told.add(site.function)
                message = (
                    "the memory of a deleted tensor is free at once: after each `del` "
                    f"`{short(module, site.node)}` only takes it from the next operation"
                )
                yield finding(model, self, site.node, message, removal(module, flushes))


REPORTS = re.compile(
    r"torch\.(cuda|xpu|npu|mps)\.(memory\.)?(max_)?(memory_(allocated|reserved|cached|stats|summary"
    r"|snapshot|usage|stats_as_nested_dict)|mem_get_info|current_allocated_memory"
    r"|driver_allocated_memory|list_gpu_processes)"
)


def is_shown(module: Module) -> bool:
    """Whether a notebook may show the value of a statement."""
    return module.path.suffix == ".ipynb"


def is_probe(module: Module, statement: ast.stmt) -> bool:
    """Whether what the call raises is the question: is there such a device?"""
    child: ast.AST = statement
    for parent in module.enclosing(statement):
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        if isinstance(parent, ast.Try) and parent.handlers and child in parent.body:
            return True
        child = parent
    return False


def after_each_del(module: Module, site: Site) -> list[ast.stmt]:
    """The flushes of a function that deletes tensors and flushes again and again."""
    function = site.function
    if function is None or cadence.once_a_step(module, site.node, function):
        return []  # on every step it is OOM401
    if loads_models(module, function):
        return []
    found = [
        module.statement_of(other.node)
        for other in sites.sites(module)
        if other.function is function
        and allocator.is_flush(other)
        and cadence.is_unconditional(module, other.node)
        and not sites.loops_around(module, other.node)
    ]
    found = [statement for statement in found if follows_del(module, statement)]
    least = 2 if function.name == "forward" else 3
    return found if len(found) >= least else []


def follows_del(module: Module, statement: ast.stmt) -> bool:
    parent = module.parents[statement]
    body = getattr(parent, "body", None)
    if not isinstance(body, list) or statement not in body:
        return False
    index = body.index(statement)
    return index > 0 and isinstance(body[index - 1], ast.Delete)


LOADS = re.compile(r"load|pretrained|from_config|build|create|pipeline", re.IGNORECASE)


def loads_models(module: Module, function: Function) -> bool:
    """Whether what is deleted may be whole models, one after the other."""
    return any(
        site.function is function and LOADS.search(site.method) for site in sites.sites(module)
    )


def removal(module: Module, statements: list[ast.stmt]) -> Fix | None:
    try:
        removed = [edits.delete(module, statement) for statement in statements]
    except edits.NoFix:
        return None
    return make_fix("Remove it", removed, Safety.SAFE)
