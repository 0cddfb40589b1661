"""OOM103: an output that is kept from step to step together with its autograd graph."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, rollouts
from oomlint.analysis import outputs as kept
from oomlint.analysis.answers import finding
from oomlint.analysis.retention import WALKED_BY_FRAMEWORK, detach, says_training
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import TAKES_STEPS
from oomlint.token_patterns import AllOf, AnyOf, Words

# An environment, or the log-probability of an action.
ROLLOUT = ("env", "gym", "simulator", ".log_prob(")
# The same as names of code, where `os.environ` is none.
ROLLOUTS = AllOf(
    (
        re.compile(rb"\.detach\("),
        Words(tuple(map(str.encode, ROLLOUT))),
        re.compile(rb"env(?:s|ironments?)?(?![a-z])|gym|simulator|\.log_prob\(", re.IGNORECASE),
    )
)


class RetainedOutput(Rule):
    """
    ## What it does
    Checks for outputs, features and hidden states with an autograd graph that reach something that
    outlives the iteration: a list of predictions, a tensor that grows by `cat`, an attribute's
    list, the buffer of a rollout. Losses are OOM102.

    ## Why is this bad?
    After the backward the graph's nodes stay alive in host memory for every step that is kept.
    What no backward goes through keeps all of its activations on the device as well, step after
    step, until the run is out of memory.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        predictions = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            criterion(outputs, targets).backward()
            optimizer.step()
            predictions.append(outputs)
        return torch.cat(predictions)
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        predictions = []
        for inputs, targets in loader:
            optimizer.zero_grad()
            outputs = model(inputs)
            criterion(outputs, targets).backward()
            optimizer.step()
            predictions.append(outputs.detach())
        return torch.cat(predictions)
    ```

    ## Fix safety
    Safe: `detach` leaves the numbers as they are. What is not one tensor has no fix.

    ## Measured
    Live autograd nodes grow by the depth of the model on every step before the fix and by nothing
    after it; device bytes grow by the activations too where no backward goes through the output.

    ## References
    - [PyTorch FAQ: don't accumulate history across your training loop](https://docs.pytorch.org/docs/stable/notes/faq.html)
    """

    code = "OOM103"
    name = "retained-output"
    severity = Severity.WARNING
    tokens = (
        ("backward(", ".detach(", *WALKED_BY_FRAMEWORK),
        ("step", *WALKED_BY_FRAMEWORK),
    )
    token_pattern = AnyOf((TAKES_STEPS, ROLLOUTS))
    claims = (Claim.NODES_STOP, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        text = model.source.text
        if says_training(text):
            yield from self.kept_by_training(model)
        if ".detach(" in text and any(word in text.lower() for word in ROLLOUT):
            yield from self.stored_by_rollouts(model)

    def kept_by_training(self, model: Model) -> Iterator[Finding]:
        for output in kept.outputs(model):
            retention = output.retention
            message = (
                f"`{retention.place}` keeps the autograd graph of every step's "
                f"`{retention.loss}` alive"
            )
            if not output.walked:
                message += " with its activations: no backward goes through it"
            yield finding(
                model, self, retention.node, message, detach(model, retention), retention.path
            )

    def stored_by_rollouts(self, model: Model) -> Iterator[Finding]:
        for stored in rollouts.stored_states(model):
            message = (
                f"`{stored.place}` keeps the autograd graph of every step's `{stored.state}` alive,"
                " which is detached only to be carried on"
            )
            yield finding(model, self, stored.node, message, None, stored.path)
        for late in rollouts.detached_late(model):
            message = (
                f"`{late.place}` keeps the autograd graph of every step alive, and is detached "
                "only when it is read"
            )
            path = ((late.node, "kept with its graph"), (late.reading, "read without it"))
            fix = rollouts.detach_early(model, late)
            yield finding(model, self, late.node, message, fix, path)
