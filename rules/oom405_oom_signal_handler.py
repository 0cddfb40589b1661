"""OOM405: a signal handler that waits for an out-of-memory error, which is no signal."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, allocator, sites
from oomlint.analysis.answers import finding
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Finding, Rule, Severity


class OomSignalHandler(Rule):
    """
    ## What it does
    Checks for handlers of SIGSEGV, SIGABRT, SIGBUS and SIGKILL that are meant for an exhausted
    device: they empty the cache, or speak of memory.

    ## Why is this bad?
    CUDA out of memory is a Python exception, `torch.OutOfMemoryError`. No signal is sent, and the
    handler is never called for it. Of the host's memory the kernel ends a process by SIGKILL,
    which no handler can catch.

    ## Example
    ```python
    import signal

    import torch

    def out_of_memory(number, frame):
        torch.cuda.empty_cache()

    signal.signal(signal.SIGSEGV, out_of_memory)
    ```

    Use instead:
    ```python
    import torch

    def fits(step, batch):
        try:
            step(batch)
        except torch.OutOfMemoryError:
            return False
        return True
    ```

    ## Measured
    The run ends with an OutOfMemoryError that the handler never sees; with an `except` it goes on.

    ## References
    - [Python: signal.signal](https://docs.python.org/3/library/signal.html#signal.signal)
    - [PyTorch: my model reports out of memory](https://docs.pytorch.org/docs/stable/notes/faq.html#my-model-reports-cuda-runtime-error-2-out-of-memory)
    """

    code = "OOM405"
    name = "oom-signal-handler"
    severity = Severity.WARNING
    tokens = (("SIGSEGV", "SIGABRT", "SIGBUS", "SIGKILL"), ("torch",))
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in sites.sites(module):
            handler = site.argument(1, "handler")
            if site.qualified != "signal.signal" or handler is None:
                continue
            number = signal_of(module, site)
            if number is None or not means_memory(module, handler, site.function):
                continue
            message = (
                f"the device being full is an exception, not {number}: this handler never runs for "
                "it"
            )
            yield finding(model, self, site.node, message)


FATAL = re.compile(r"SIG(SEGV|ABRT|BUS|KILL)")


def signal_of(module: Module, site: Site) -> str | None:
    """The signal of a call, where it is one that a crash sends; of several the first."""
    given = site.argument(0, "signalnum")
    if given is None:
        return None
    texts = [written(given)]
    for parent in module.enclosing(site.node):
        if isinstance(parent, ast.For) and written(parent.target) == written(given):
            texts.append(written(parent.iter))
    found = FATAL.search(" ".join(texts))
    return found[0] if found else None


MEMORY = re.compile(
    r"(^|[^a-z])oom([^a-z]|$)|out[ _]of[ _](\w+[ _])?memory|memory[ _](error|full|exhaust)"
    r"|(cuda|gpu|device)[ _]memory",
    re.IGNORECASE,
)


def means_memory(module: Module, handler: ast.expr, function: Function | None) -> bool:
    """Whether a handler's name, code or docstring says that it is there for memory."""
    name = written(handler)
    if MEMORY.search(name):
        return True
    found = handler_function(module, handler, function)
    if found is None:
        return isinstance(handler, ast.Lambda) and "empty_cache" in name
    flushes = any(
        allocator.is_flush(site) for site in sites.sites(module) if site.function is found
    )
    return flushes or any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and MEMORY.search(node.value) is not None
        for node in ast.walk(found.node)
    )


def handler_function(
    module: Module, handler: ast.expr, function: Function | None
) -> Function | None:
    if isinstance(handler, ast.Name):
        nested = (f for f in module.all_functions if f.parent is function and f.name == handler.id)
        return next(nested, None) or module.functions.get(handler.id)
    owner = sites.class_of(function)
    if isinstance(handler, ast.Attribute) and owner is not None:
        return owner.methods.get(handler.attr)
    return None
