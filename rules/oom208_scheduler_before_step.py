"""OOM208: a learning-rate scheduler that advances before the optimizer has stepped."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding
from oomlint.analysis.early_schedules import advance_with, remedy, too_early
from oomlint.rule import Claim, Finding, Rule, Severity


class SchedulerBeforeStep(Rule):
    """
    ## What it does
    Checks for a learning-rate scheduler that is stepped before the first step of its optimizer: at
    the start of the epoch, or before `optimizer.step()` in the loop.

    ## Why is this bad?
    A scheduler is built at its first learning rate. When it advances before the optimizer has
    stepped once, that rate is never used and every later one comes a step or an epoch early;
    PyTorch warns about it at run time. Schedulers that are told the epoch (`scheduler.step(epoch)`)
    are not concerned.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion, epochs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
        for epoch in range(epochs):
            scheduler.step()
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, epochs):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10)
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                optimizer.step()
            scheduler.step()
    ```

    ## Fix safety
    Unsafe: every learning rate is used one step, or one epoch, later than before.

    ## Measured
    Before the fix the schedule has advanced once when the optimizer takes its first step, after it
    not at all; PyTorch's warning is gone.

    ## References
    - [PyTorch: how to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """

    code = "OOM208"
    name = "scheduler-before-step"
    severity = Severity.ERROR
    tokens = (("step(",), ("sched", "Sched"))
    token_pattern = re.compile(rb"\.step\((?:\s|\"\")*\)")
    claims = (Claim.SCHEDULE_FROM_START,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        # On every micro-batch of a window it is another rule's.
        micro = {id(w.loop.node) for world in model.worlds for w in ask.windows(world)}
        for world in model.worlds:
            for advance, step in too_early(world):
                node = anchor(model, advance)
                on_each = not advance_with(advance, step)
                if (
                    node is None
                    or id(node) in seen
                    or (on_each and any(id(m.node) in micro for m in advance.loops))
                ):
                    continue
                seen.add(id(node))
                path = [(advance, "scheduler advances"), (step, "first step of the optimizer")]
                message = (
                    "the scheduler advances before the optimizer steps: "
                    "the first learning rate of the schedule is never used"
                )
                yield finding(model, self, node, message, remedy(model, world, advance, step), path)
