"""OOM105: a recurrent state that takes the graph of one step into the next."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, recurrence
from oomlint.analysis.answers import finding
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import CALLS_BOTH


class UndetachedHiddenState(Rule):
    """
    ## What it does
    Checks for recurrent state that a training loop carries from one iteration into the next forward
    without `detach`, although every iteration runs a backward of its own: in a local name, on the
    trainer, or on the network itself.

    ## Why is this bad?
    The backward of the second iteration follows the state into the graph of the first, whose
    tensors are freed: `RuntimeError: Trying to backward through the graph a second time`. With
    `retain_graph=True` every graph since the first stays alive instead, each backward takes longer
    than the one before, and it fails where the optimizer has changed the weights in place.

    ## Example
    ```python
    import torch
    from torch import nn

    def train(batches, head, criterion):
        rnn = nn.GRU(8, 16)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
        state = None
        for inputs, targets in batches:
            output, state = rnn(inputs, state)
            loss = criterion(head(output), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch
    from torch import nn

    def train(batches, head, criterion):
        rnn = nn.GRU(8, 16)
        optimizer = torch.optim.SGD([*rnn.parameters(), *head.parameters()], lr=0.1)
        state = None
        for inputs, targets in batches:
            output, state = rnn(inputs, state)
            loss = criterion(head(output), targets)
            optimizer.zero_grad()
            loss.backward()
            state = state.detach()
            optimizer.step()
    ```

    ## Fix safety
    Unsafe: gradients end at the border of the iteration, as truncated backpropagation means them
    to. The states of an LSTM are detached one by one.

    ## Measured
    The error is gone; with `retain_graph=True`, live autograd nodes stop growing from step to step.

    ## References
    - [PyTorch example: word-level language modeling, `repackage_hidden`](https://github.com/pytorch/examples/tree/main/word_language_model)
    """

    code = "OOM105"
    name = "undetached-hidden-state"
    severity = Severity.ERROR
    tokens = (("backward(",), ("step",))
    token_pattern = CALLS_BOTH
    claims = (Claim.ERROR_GONE, Claim.NODES_STOP, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        if "backward(" not in model.source.text:
            return
        for carry in recurrence.carries(model):
            state = carry.names[0] if carry.names else "the state"
            message = f"`{state}` takes the graph of one step into the next: "
            if carry.retained:
                message += "every graph since the first stays alive"
            else:
                message += "the next backward fails on tensors that are freed"
            yield finding(
                model,
                self,
                carry.node,
                message,
                recurrence.cut_after_backward(model, carry),
                carry.path,
            )
