"""OOM110: one backward for a window of micro-batches whose graphs all wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, postponed
from oomlint.analysis.answers import finding
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import CALLS_BOTH


class GraphOverWindow(Rule):
    """
    ## What it does
    Checks for losses of independent micro-batches that are added up in a loop and backpropagated
    together at its end.

    ## Why is this bad?
    Every micro-batch's graph, with all of its activations, stays on the device until the one
    backward: the window needs as much memory as the large batch that it was cut from. A backward
    for each micro-batch adds up the same gradient and frees each graph at once.

    ## Example
    ```python
    import torch

    def train(model, windows, criterion, optimizer):
        for window in windows:
            optimizer.zero_grad()
            total = 0.0
            for inputs, targets in window:
                loss = criterion(model(inputs), targets)
                total += loss
            (total / len(window)).backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, windows, criterion, optimizer):
        for window in windows:
            optimizer.zero_grad()
            total = 0.0
            for inputs, targets in window:
                loss = criterion(model(inputs), targets)
                (loss / len(window)).backward()
                total += loss.detach()
            optimizer.step()
    ```

    ## Fix safety
    Unsafe: the gradient is the same sum, added up in another order. No fix is offered where the
    window's divisor is known only at its end.

    ## Measured
    The peak of device bytes falls from the activations of the whole window to those of one
    micro-batch.

    ## References
    - [PyTorch FAQ: my model reports "cuda runtime error(2): out of memory"](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """

    code = "OOM110"
    name = "graph-over-window"
    severity = Severity.WARNING
    tokens = (("backward(",), ("step",))
    token_pattern = CALLS_BOTH
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        if "backward(" not in model.source.text:
            return
        for window in postponed.postponed(model):
            message = (
                "one backward for the whole window: the graphs of all its micro-batches are on the"
                " device until here"
            )
            yield finding(
                model,
                self,
                window.node,
                message,
                postponed.backward_per_part(model, window),
                window.path,
            )
