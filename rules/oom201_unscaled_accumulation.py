"""OOM201: accumulated losses that are never divided by the number of micro-batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.modules import Class, written
from oomlint.analysis.questions import Window
from oomlint.analysis.reductions import is_opaque, reduction_of
from oomlint.analysis.state import Kind
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CALLS_BOTH


class UnscaledAccumulation(Rule):
    """
    ## What it does
    Checks for a mean-reduced loss that is backpropagated on every micro-batch of an accumulation
    window without being divided by the number of micro-batches.

    ## Why is this bad?
    The gradient at the step is the sum of the micro-batches' means: N times too large. Plain SGD
    takes steps that are N times too long, clipping bites N times too early; Adam hides it. Memory
    is the same with and without the division.

    ## Example
    ```python
    import torch

    def train(model, loader, accumulation_steps=4):
        criterion = torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (inputs, targets) in enumerate(loader):
            loss = criterion(model(inputs), targets)
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, accumulation_steps=4):
        criterion = torch.nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i, (inputs, targets) in enumerate(loader):
            loss = criterion(model(inputs), targets)
            (loss / accumulation_steps).backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: gradients become N times smaller, so a learning rate tuned for the wrong ones may not
    fit.

    ## Measured
    With four micro-batches the gradient norm at the step is 4.0 times its value after the fix;
    device memory does not differ by a byte.

    ## References
    - [PyTorch: gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "OOM201"
    name = "unscaled-accumulation"
    severity = Severity.ERROR
    tokens = (("backward(",), ("step(",))
    token_pattern = CALLS_BOTH
    claims = (Claim.GRADIENT_SHRINKS,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for window in ask.windows(world):
                if not undivided(window):
                    continue
                node = anchor(model, window.backward, window.step)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                size = window.size
                count = f"`{written(size)}`" if size is not None else "the window's size"
                message = (
                    "the loss of every micro-batch is backpropagated undivided: "
                    f"the gradient at the step is {count} times too large"
                )
                path = [
                    (window.backward, "backward of every micro-batch"),
                    (window.step, "one step for the whole window"),
                ]
                yield finding(model, self, node, message, divide(model, window), path)


def undivided(window: Window) -> bool:
    if not ask.is_accumulation(window) or ask.divided(window):
        return False
    loss, alone = window.backward.value, window.guard is not None
    reduction = reduction_of(loss, alone) if loss is not None else ""
    if reduction in ("sum", "mixed"):
        return False
    if window.guard is None and reduction != "mean":
        return False
    if reduction == "" and loss is not None and is_opaque(loss, alone):
        # What comes out of a call that cannot be followed may be divided already.
        return False
    if reduction == "" and network_sums(window):
        return False
    if ask.gradients_touched(window.world) or ask.divides_elsewhere(window):
        return False
    if "accumulate" in window.backward.contexts:
        return False
    # Erased on every micro-batch there is nothing to divide: that is another rule's.
    first, last = window.backward.index, window.step.index
    return not any(
        first < e.index < last and ask.concerns(e, window.optimizer)
        for e in window.world.of(Kind.ZERO_GRAD)
    ) and ask.only_backward(window)


SUMMED = re.compile(r"""reduction(: str)?\s*=\s*["']sum["']""")


def network_sums(window: Window) -> bool:
    """Whether a network that the file imports sums its loss over the samples."""
    module, project = window.backward.module, window.world.project
    found = (project.find(name, module) for name in module.imports.values())
    return any(
        isinstance(part, Class) and SUMMED.search(part.module.source.text) is not None
        for part in found
    )


def divide(model: Model, window: Window) -> Fix | None:
    """`(loss / n).backward()`, with `n` as the window itself calls it."""
    module, node = model.module, window.backward.node
    if (
        window.size is None
        or window.backward.module is not module
        or not isinstance(node, ast.Call)
    ):
        return None
    if window.backward.function is not window.step.function or not isinstance(
        node.func, ast.Attribute
    ):
        return None
    count = module.segment(window.size)
    if not isinstance(
        window.size, ast.Name | ast.Attribute | ast.Constant | ast.Subscript | ast.Call
    ):
        count = f"({count})"
    loss = node.func.value
    scaled = (
        isinstance(loss, ast.Call) and len(loss.args) == 1 and isinstance(loss.func, ast.Attribute)
    )
    if scaled and loss.func.attr == "scale":  # type: ignore[attr-defined]
        loss = loss.args[0]  # type: ignore[attr-defined]
        text = f"{bracketed(module.segment(loss), loss)} / {count}"
    else:
        # What is no name stands in brackets already.
        text = f"{bracketed(module.segment(loss), loss)} / {count}"
        text = f"({text})" if text[0] != "(" or isinstance(loss, ast.Call) else text
    edit = edits.replace(module, loss, text)
    return make_fix(f"Divide the loss by `{module.segment(window.size)}`", [edit], Safety.UNSAFE)


def bracketed(text: str, node: ast.expr) -> str:
    simple = (ast.Name, ast.Attribute, ast.Subscript, ast.Call)
    return text if isinstance(node, simple) else f"({text})"
