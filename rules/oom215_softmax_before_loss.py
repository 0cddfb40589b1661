"""OOM215: a softmax whose output goes into a loss that applies one itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oomlint.analysis import Model, unwrapping
from oomlint.analysis.activations import (
    CROSS_ENTROPY,
    LOG_SOFTMAX,
    NEGATIVE_LOG,
    SOFTMAX,
    Fed,
    fed,
    way_to_the_loss,
)
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.edits import NoFix
from oomlint.loss_signs import SOFTMAX_FED
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class SoftmaxBeforeLoss(Rule):
    """
    ## What it does
    Checks for a `softmax` or `log_softmax` whose output goes into a cross entropy, which applies
    `log_softmax` to its input itself, and for a `softmax` that goes into an NLL loss, which expects
    log-probabilities. The output is followed through names, functions and the project's networks.

    ## Why is this bad?
    Probabilities lie between 0 and 1, so a second softmax makes nearly equal ones of them: with ten
    classes the loss of a perfect answer is 1.46 instead of 0. The gradient is flat where it should
    be steep; training is slow and ends early, and nothing fails. A second `log_softmax` changes no
    number and keeps one more tensor for the backward.

    ## Example
    ```python
    import torch.nn.functional as F

    def step(model, inputs, targets, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(F.softmax(model(inputs), dim=1), targets)
        loss.backward()
        optimizer.step()
    ```

    Use instead:
    ```python
    import torch.nn.functional as F

    def step(model, inputs, targets, optimizer):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    ```

    ## Fix safety
    Unsafe: the loss and its gradients change, and whoever else reads the output gets logits where
    the softmax was inside of the network. Safe for a `log_softmax` that is applied directly to the
    loss's argument, since applying it twice is applying it once.

    ## Measured
    The gradient norm of the first step, from the same parameters: it rises with the fix. Without a
    second `log_softmax` it stays as it is.

    ## References
    - [PyTorch: CrossEntropyLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html)
    """

    code = "OOM215"
    name = "softmax-before-loss"
    severity = Severity.ERROR
    tokens = (
        ("cross_entropy", "CrossEntropyLoss", "nll_loss", "NLLLoss"),
        ("softmax", "Softmax", "backward("),
    )
    token_pattern = SOFTMAX_FED
    claims = (Claim.GRADIENT_RISES,)

    def check(self, model: Model) -> Iterator[Finding]:
        if not SOFTMAX_FED.search(model.source.text.encode("utf-8", "replace")):
            return
        seen: set[int] = set()
        for found in fed(model, frozenset({CROSS_ENTROPY, NEGATIVE_LOG})):
            if not is_wrong(found):
                continue
            ending = found.endings[0]
            here = ending.place.module is model.module
            node = ending.place.node if here else found.site.node
            if id(node) in seen:
                continue
            seen.add(id(node))
            activation = short(ending.place.module, ending.place.node)
            loss = short(model.module, found.site.node.func)
            given = message(found, activation, loss)
            answer = finding(model, self, node, given, remedy(model, found))
            harmless = found.kind == LOG_SOFTMAX
            yield replace(
                answer,
                severity=Severity.WARNING if harmless else self.severity,
                path=way_to_the_loss(model, found),
            )


def is_wrong(found: Fed) -> bool:
    if found.loss == CROSS_ENTROPY:
        return found.kind in (SOFTMAX, LOG_SOFTMAX)
    return found.kind == SOFTMAX


def message(found: Fed, activation: str, loss: str) -> str:
    if found.loss == NEGATIVE_LOG:
        return (
            f"`{activation}` gives probabilities, and `{loss}` expects their logarithms: "
            "the gradient is smallest where the answer is most wrong"
        )
    if found.kind == LOG_SOFTMAX:
        return (
            f"`{activation}` is applied for nothing: `{loss}` applies `log_softmax` itself, which"
            " changes no number the second time"
        )
    return (
        f"`{activation}` goes into `{loss}`, which applies a softmax itself: the gradient shrinks"
        " and the loss cannot come near zero"
    )


def remedy(model: Model, found: Fed) -> Fix | None:
    module = model.module
    if found.loss == NEGATIVE_LOG:
        try:
            names = {"softmax": "log_softmax", "Softmax": "LogSoftmax"}
            renamed = unwrapping.all_renamed(module, found.endings, names)
        except NoFix:
            return None
        return make_fix("Take the logarithm too: `log_softmax`", renamed, Safety.UNSAFE)
    edits = unwrapping.unwrapped(module, found)
    if edits is None:
        return None
    direct = all(ending.place.node is found.output.node for ending in found.endings)
    safe = found.kind == LOG_SOFTMAX and direct
    title = f"Remove the `{found.kind}` before the loss"
    return make_fix(title, edits, Safety.SAFE if safe else Safety.UNSAFE)
