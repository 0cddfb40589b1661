"""OOM209: a learning-rate schedule that advances on every micro-batch of a window."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.questions import Window
from oomlint.analysis.remedies import here, lone_block, move, statement, step_end
from oomlint.analysis.schedules import advances, by_progress, counts_micro_batches, may_belong
from oomlint.analysis.state import Event, Kind
from oomlint.analysis.windows import counted_windows, same_test
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CALLS_BOTH


class SchedulerPerMicroBatch(Rule):
    """
    ## What it does
    Checks for a learning-rate scheduler that is stepped on every micro-batch of an accumulation
    window, although the optimizer steps once in a window.

    ## Why is this bad?
    The schedule is written in updates: warm-up, decay and the end of a cycle come N times too
    early, and the last part of the training runs at the final learning rate, often zero. A schedule
    whose length is counted in micro-batches, as `len(loader) * epochs` without a division, is right
    and not reported.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion, epochs, accumulation_steps=4):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        updates = epochs * len(loader) // accumulation_steps
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
        for epoch in range(epochs):
            for i, (inputs, targets) in enumerate(loader):
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                scheduler.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, epochs, accumulation_steps=4):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        updates = epochs * len(loader) // accumulation_steps
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
        for epoch in range(epochs):
            for i, (inputs, targets) in enumerate(loader):
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
                if (i + 1) % accumulation_steps == 0:
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: the schedule becomes N times slower, as it is written.

    ## Measured
    With four micro-batches the schedule advances four times for a step before the fix and once
    after.

    ## References
    - [PyTorch: how to adjust the learning rate](https://docs.pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate)
    """

    code = "OOM209"
    name = "scheduler-per-micro-batch"
    severity = Severity.ERROR
    tokens = (("backward(",), ("step(",), ("sched", "Sched"))
    token_pattern = CALLS_BOTH
    claims = (Claim.SCHEDULE_PER_STEP,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for window in (*ask.windows(world), *counted_windows(world)):
                for advance in per_micro_batch(window):
                    node = anchor(model, advance, window.step)
                    if node is None or id(node) in seen:
                        continue
                    seen.add(id(node))
                    size = window.size
                    times = f"`{ast.unparse(size)}` times" if size is not None else "many times"
                    message = (
                        "the scheduler advances on every micro-batch, the optimizer once in a "
                        f"window: the schedule runs {times} too fast"
                    )
                    path = [
                        (window.backward, "backward of every micro-batch"),
                        (advance, "scheduler advances on every micro-batch"),
                        (window.step, "one step for the whole window"),
                    ]
                    yield finding(model, self, node, message, remedy(model, window, advance), path)


def per_micro_batch(window: Window) -> Iterator[Event]:
    """Advances of the schedule in an iteration of the window in which the optimizer does not step.

    A backward of the same window comes behind them: they are not the one that goes with the step.
    """
    if not ask.is_accumulation(window):
        return
    for advance in window.world.events[window.backward.index : window.step.index]:
        if not advances(advance) or "accumulate" in advance.contexts:
            continue
        inside = any(mark.serial == window.loop.serial for mark in advance.loops)
        if not inside or not may_belong(advance.subject, window.step):
            continue
        if is_placed(window, advance) or by_progress(advance, window.step):
            continue
        following = ask.first_after(
            window.world, advance, lambda e: e.kind is Kind.BACKWARD or e is window.step
        )
        if following is window.step or following is None:
            continue
        if not counts_micro_batches(window, advance):
            yield advance


def is_placed(window: Window, advance: Event) -> bool:
    """Whether the advance looks at the place in the window, in a test that is not the step's, too.

    A resumed run skips what it has seen, the step and the schedule alike.
    """
    return any(
        ask.is_window(guard)
        for guard in advance.guards
        if (window.guard is not None and same_test(guard, window.guard))
        or not any(same_test(guard, other) for other in window.step.guards)
    )


def remedy(model: Model, window: Window, advance: Event) -> Fix | None:
    """The scheduler moves behind the step, inside the condition that the step is under."""
    module, step = model.module, window.step
    if not here(module, advance, step):
        return None
    target = statement(step)
    ends = window.loop.node if window.guard is not None else module.parents[window.loop.node]
    for parent in module.enclosing(target):
        is_arm = window.guard is not None and isinstance(parent, ast.If)
        if parent is ends or (is_arm and parent.test is window.guard.test):  # type: ignore
            break
        if isinstance(parent, ast.stmt):
            target = parent
    target = step_end(window.world, step) if target is statement(step) else target
    changes = move(module, lone_block(module, statement(advance)), target, behind=True)
    title = "Step the scheduler where the optimizer steps"
    return make_fix(title, changes, Safety.UNSAFE) if changes else None
