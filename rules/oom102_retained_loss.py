"""OOM102: a loss that is kept from step to step together with its autograd graph."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import retention as kept
from oomlint.analysis.answers import finding
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import TAKES_STEPS


class RetainedLoss(Rule):
    """
    ## What it does
    Checks for a loss with an autograd graph that reaches something that outlives the iteration: a
    running total, a list or dict, an attribute, a meter, a closure's list.

    ## Why is this bad?
    After the backward the activations are gone, but the graph's nodes stay alive in host memory for
    every step that is kept, and every later operation on the total makes the chain longer. Without
    a backward, or with `retain_graph=True`, all activations of every step stay on the device.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        running_loss = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            running_loss += loss
        print(running_loss / len(loader))
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        running_loss = 0.0
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            running_loss += loss.detach()
        print(running_loss / len(loader))
    ```

    ## Fix safety
    Safe: `detach` leaves the numbers as they are. Unlike `item` it does not wait for the device.

    ## Measured
    Live autograd nodes grow by the depth of the model on every step before the fix and by nothing
    after it; about 150 KiB of host memory a step for 100 layers.

    ## References
    - [PyTorch FAQ: don't accumulate history across your training loop](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """

    code = "OOM102"
    name = "retained-loss"
    severity = Severity.WARNING
    tokens = (
        ("backward(", *kept.WALKED_BY_FRAMEWORK),
        ("step", *kept.WALKED_BY_FRAMEWORK),
    )
    token_pattern = TAKES_STEPS
    claims = (Claim.NODES_STOP, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        text = model.source.text
        if not kept.says_training(text):
            # The gate's words: a file that only calls a whole step elsewhere is not judged.
            return
        for retention in kept.losses(model):
            message = (
                f"`{retention.place}` keeps the autograd graph of every step's "
                f"`{retention.loss}` alive"
            )
            yield finding(
                model, self, retention.node, message, kept.detach(model, retention), retention.path
            )
