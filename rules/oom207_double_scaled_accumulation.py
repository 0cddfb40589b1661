"""OOM207: losses divided by hand where the framework divides them, too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis.answers import Node, finding, make_fix
from oomlint.analysis.framework_division import in_lightning, wrapped
from oomlint.analysis.modules import Module, written
from oomlint.analysis.remedies import lone_block
from oomlint.analysis.state import Event
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity


class DoubleScaledAccumulation(Rule):
    """
    ## What it does
    Checks for a loss that is divided by the number of micro-batches although Accelerate, DeepSpeed
    or Lightning divide it themselves.

    ## Why is this bad?
    `Accelerator.backward` divides by the `gradient_accumulation_steps` that it was built with,
    DeepSpeed's `engine.backward` by those of its configuration, Lightning by
    `accumulate_grad_batches`. With a division by hand the gradient at the step is N times too
    small: plain SGD learns N times slower, and clipping never takes hold.

    ## Example
    ```python
    from accelerate import Accelerator

    def train(model, loader, optimizer, criterion, accumulation_steps=4):
        accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps)
        model, loader, optimizer = accelerator.prepare(model, loader, optimizer)
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = criterion(model(inputs), targets)
                accelerator.backward(loss / accumulation_steps)
                optimizer.step()
                optimizer.zero_grad()
    ```

    Use instead:
    ```python
    from accelerate import Accelerator

    def train(model, loader, optimizer, criterion, accumulation_steps=4):
        accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps)
        model, loader, optimizer = accelerator.prepare(model, loader, optimizer)
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = criterion(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: gradients become N times larger, so a learning rate tuned for the small ones may not
    fit.

    ## Measured
    With four micro-batches the gradient norm at the first step is a quarter of its value after the
    fix.

    ## References
    - [Accelerate: gradient accumulation](https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation)
    """

    code = "OOM207"
    name = "double-scaled-accumulation"
    severity = Severity.ERROR
    tokens = (
        ("backward(", "training_step"),
        ("ccelerat", "deepspeed", "ightning"),
        ("/",),
    )
    claims = (Claim.GRADIENT_RISES,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for division, divisor, framework, event in (*wrapped(model), *in_lightning(model)):
            if id(division) in seen:
                continue
            seen.add(id(division))
            size = written(divisor)
            message = (
                f"the loss is divided by `{size}` here and again by {framework}: "
                "the gradient at the step is that many times too small"
            )
            path: list[tuple[Event | Node, str]] = [(division, "divided by hand")]
            if event is not None:
                path.append((event, f"{framework} divides and backpropagates"))
            yield finding(model, self, division, message, undivide(model.module, division), path)


def undivide(module: Module, division: Node) -> Fix | None:
    """`loss / n` becomes `loss`; a statement that does nothing else goes."""
    statement = module.statement_of(division)
    try:
        if is_only_division(statement, division):
            changes = [edits.delete(module, lone_block(module, statement))]
        elif isinstance(division, ast.BinOp) and isinstance(division.op, ast.Div):
            start, _ = module.span(division.right)
            _, end = module.span(division)
            slash = module.source.text.rindex("/", module.span(division.left)[1], start)
            kept = module.source.text[:slash].rstrip()
            changes = [Edit(len(kept), end, "")]
        else:
            return None
    except edits.NoFix:
        return None
    return make_fix("Leave the division to the framework", changes, Safety.UNSAFE)


def is_only_division(statement: ast.stmt, division: Node) -> bool:
    """Whether a statement is `loss /= n` or `loss = loss / n`."""
    if statement is division:
        return True
    if not isinstance(statement, ast.Assign) or not isinstance(division, ast.BinOp):
        return False
    targets = [written(target) for target in statement.targets]
    is_same = targets == [written(division.left)]
    return statement.value is division and isinstance(division.op, ast.Div) and is_same
