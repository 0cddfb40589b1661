"""OOM403: recovery from an out-of-memory error while its traceback still holds the tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, handling
from oomlint.analysis.answers import finding, short
from oomlint.analysis.recovering import emptied, forgets_traceback, remedy, retry
from oomlint.layout import HANDLER
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import AnyOf, Exactly, InOneBlock

EXCEPT = Exactly((b"except",))
TYPE = re.compile(rb"OutOfMemoryError|OOMError")
# The name of a helper, a comparison with a text, or `empty_cache()`.
ASKED_OR_FREED = re.compile(
    rb"(?<![a-zA-Z0-9])(?:oom_|out_of_(?:\w+_)?memory)|should_reduce_batch_size|_oom(?![a-zA-Z0-9])"
    rb"|empty_cache\(|\"\"[\s)]*(?:(?:not\s+)?in\b|[=!]=)|(?:\bin|[=!]=)[\s(]*\"\""
)


class OomRecoveryInExcept(Rule):
    """
    ## What it does
    Checks for a retry or an emptied cache inside the `except` block that caught an out-of-memory
    error.

    ## Why is this bad?
    Until the block ends, the traceback of the error refers to every frame between the `try` and
    the failed allocation, and these frames to their tensors. `empty_cache()` cannot give them
    back, and a retry finds the device as full as the failed attempt left it.

    `attempt` and `micro_batches` of `oomlint.guard` leave the block first, and then recover.

    ## Example
    ```python
    import torch

    def train_step(model, criterion, optimizer, inputs, targets):
        optimizer.zero_grad()
        try:
            criterion(model(inputs), targets).backward()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            for part, wanted in zip(inputs.chunk(2), targets.chunk(2)):
                (criterion(model(part), wanted) / 2).backward()
        optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train_step(model, criterion, optimizer, inputs, targets):
        optimizer.zero_grad()
        out_of_memory = False
        try:
            criterion(model(inputs), targets).backward()
        except torch.OutOfMemoryError:
            out_of_memory = True
        if out_of_memory:
            torch.cuda.empty_cache()
            for part, wanted in zip(inputs.chunk(2), targets.chunk(2)):
                (criterion(model(part), wanted) / 2).backward()
        optimizer.step()
    ```

    ## Fix safety
    Unsafe: the recovery runs after the block, where an error of its own has no context. No fix is
    offered where the recovery uses the exception.

    ## Measured
    The retry runs out of memory before and succeeds after.

    ## References
    - [PyTorch: my out of memory exception handler can't allocate memory](https://docs.pytorch.org/docs/stable/notes/faq.html#my-out-of-memory-exception-handler-can-t-allocate-memory)
    """

    code = "OOM403"
    name = "oom-recovery-in-except"
    severity = Severity.WARNING
    tokens = (("except",), ("torch", "accelerate", "lightning"))
    texts = handling.TEXTS
    # The type of the error, or what an `except` asks about it or frees.
    token_pattern = AnyOf((TYPE, InOneBlock(HANDLER, (EXCEPT, ASKED_OR_FREED))))
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for arm in handling.arms(module):
            if forgets_traceback(arm):
                continue
            again = retry(module, arm)
            flush = emptied(module, arm)
            node = again or flush
            if node is None or (again is None and not arm.sure):
                continue
            message = (
                f"`{short(module, node.node)}` retries while the error's traceback still holds "
                "the tensors of the failed attempt"
            )
            if again is None:
                message = (
                    f"`{short(module, node.node)}` cannot free the failed attempt: the error's "
                    "traceback holds its tensors until the block ends"
                )
            start = flush or node
            path = [(arm.handler.type or arm.handler.body[0], "the error is caught")]
            yield finding(model, self, node.node, message, remedy(module, arm, start, node), path)
