"""OOM603: a `no_sync` that is entered for the last micro-batch instead of the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, synchronisation
from oomlint.analysis.answers import finding
from oomlint.analysis.inverted_deferrals import (
    chosen_by,
    enters_once,
    is_last_of_loop,
    remedy,
    steps_with,
)
from oomlint.rule import Claim, Finding, Rule, Severity

LAST = "`no_sync` is entered for the last micro-batch: each rank steps with a gradient of its own"
ONE = (
    "`no_sync` is entered for one micro-batch of the window and the others are averaged: in a "
    "window of one, each rank steps with a gradient of its own"
)


class NoSyncInverted(Rule):
    """
    ## What it does
    Checks for `no_sync()` of a data-parallel model that is entered for the micro-batch after which
    the optimizer steps. Also for one that is entered for one micro-batch of the window, whichever,
    and not for the others.

    ## Why is this bad?
    The last backward of a window averages all that has piled up. If it is the one without an
    average, each rank steps with a gradient of its own, and their weights drift apart.

    ## Example
    ```python
    from contextlib import nullcontext

    def train(model, loader, optimizer, criterion, accumulation_steps):
        for i, (inputs, targets) in enumerate(loader):
            last = (i + 1) % accumulation_steps == 0
            with model.no_sync() if last else nullcontext():
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    ```

    Use instead:
    ```python
    from contextlib import nullcontext

    def train(model, loader, optimizer, criterion, accumulation_steps):
        for i, (inputs, targets) in enumerate(loader):
            last = (i + 1) % accumulation_steps == 0
            with nullcontext() if last else model.no_sync():
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: the ranks train on averaged gradients from now on.

    ## Measured
    Two ranks with gloo, four micro-batches: before the fix their gradients (norm 0.28) differ by
    0.28, after it they are equal, byte for byte.

    ## References
    - [PyTorch: DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync)
    """

    code = "OOM603"
    name = "no-sync-inverted"
    severity = Severity.ERROR
    tokens = (("no_sync", "no_backward_sync"), ("backward(",))
    claims = (Claim.RANKS_AGREE,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        told: set[ast.AST] = set()
        for site, _ in synchronisation.backwards(module):
            for deferral in synchronisation.deferrals_around(module, site.node, site.function):
                condition = chosen_by(module, deferral)
                if condition is None or deferral.block in told:
                    continue
                step = steps_with(module, site, condition)
                last = step is not None or is_last_of_loop(module, site, condition)
                step = step or enters_once(module, site, condition)
                if step is None and not last:
                    continue
                told.add(deferral.block)
                message = LAST if last else ONE
                path = [(site.node, "backward without an average")]
                if step is not None:
                    path.append((step.node, "the step that uses it"))
                # The other contexts for the same test would put off the average of the step.
                fix = remedy(module, deferral, step) if last else None
                yield finding(model, self, deferral.context, message, fix, path)
