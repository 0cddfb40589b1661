"""OOM108: a teacher, a target or a frozen encoder that runs with the graph of a trained model."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, frozen, wasted_parts
from oomlint.analysis.answers import finding, short
from oomlint.analysis.retention import WALKED_BY_FRAMEWORK, says_training
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import TAKES_STEPS


class FrozenForwardGraph(Rule):
    """
    ## What it does
    Checks for forwards in a training step that run with grad mode on although their result is only
    used without gradient: its output is detached, or the gradient ends in parameters of a teacher,
    a target network or an encoder in evaluation mode that no optimizer holds.

    ## Why is this bad?
    The forward saves its activations beside those of the model that is trained. Where the output is
    not detached, the backward also runs through the frozen model and leaves a gradient on each of
    its parameters.

    ## Example
    ```python
    import torch
    import torch.nn.functional as F

    def distill(student, teacher, loader):
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        teacher.eval()
        for inputs, _ in loader:
            outputs = student(inputs)
            wanted = teacher(inputs)
            loss = F.mse_loss(outputs, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch
    import torch.nn.functional as F

    def distill(student, teacher, loader):
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        teacher.eval()
        for inputs, _ in loader:
            outputs = student(inputs)
            with torch.no_grad():
                wanted = teacher(inputs)
            loss = F.mse_loss(outputs, wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    Safe: outputs are the same numbers, and nobody reads the gradients that are no longer computed.
    No fix is offered where the statement does more than this forward.

    ## Measured
    The peak of device bytes falls by the activations of the frozen model, and by its gradients
    where the output was not detached.

    ## References
    - [PyTorch: locally disabling gradient computation](https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)
    """

    code = "OOM108"
    name = "frozen-forward-graph"
    severity = Severity.WARNING
    tokens = (
        ("backward(", *WALKED_BY_FRAMEWORK),
        ("step", *WALKED_BY_FRAMEWORK),
        (".eval()", ".detach(", ".parameters()"),
    )
    token_pattern = TAKES_STEPS
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        if not says_training(model.source.text):
            return
        for part in wasted_parts.wasted_parts(model.module):
            message = (
                f"`{short(model.module, part.call)}` builds an autograd graph although its output "
                "is only detached"
            )
            path = [(part.call, "forward with grad mode on"), (part.cut, "only used detached")]
            fix = wasted_parts.without_graph(model.module, part)
            yield finding(model, self, part.call, message, fix, path)
        for found in frozen.wasted(model):
            call = short(model.module, found.node)
            if found.detached:
                message = f"`{call}` builds an autograd graph although its output is only detached"
            else:
                message = (
                    f"`{call}` builds an autograd graph that trains nothing: nobody steps on it"
                )
            yield finding(
                model, self, found.node, message, frozen.without_graph(model, found), found.path
            )
