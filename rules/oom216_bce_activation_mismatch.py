"""OOM216: a sigmoid before BCEWithLogitsLoss, or raw logits in BCELoss."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oomlint.analysis import Model, unwrapping
from oomlint.analysis.activations import (
    BINARY,
    BINARY_LOGITS,
    LINEAR,
    SIGMOID,
    Fed,
    fed,
    users,
    way_to_the_loss,
)
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.edits import NoFix
from oomlint.loss_signs import BINARY_FED
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class BceActivationMismatch(Rule):
    """
    ## What it does
    Checks for a `sigmoid` whose output goes into `BCEWithLogitsLoss`, which applies one itself, and
    for the bare output of a layer that goes into `BCELoss`, which expects probabilities. The output
    is followed through names, functions and the project's networks.

    ## Why is this bad?
    A second sigmoid maps all answers to between 0.5 and 0.73: negatives cannot be learnt, the loss
    stays above 0.31, and the gradient is multiplied by at most a quarter. Raw logits in
    `BCELoss` leave the range from 0 to 1: on the host this raises, on a GPU it is a device-side
    assert that ends the process's use of the device.

    ## Example
    ```python
    import torch
    import torch.nn.functional as F

    def step(model, inputs, targets, optimizer):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(torch.sigmoid(model(inputs)), targets)
        loss.backward()
        optimizer.step()
    ```

    Use instead:
    ```python
    import torch
    import torch.nn.functional as F

    def step(model, inputs, targets, optimizer):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model(inputs), targets)
        loss.backward()
        optimizer.step()
    ```

    ## Fix safety
    Unsafe: the loss and its gradients change, and whoever else reads the output gets logits where
    the sigmoid was inside of the network.

    ## Measured
    The gradient norm of the first step, from the same parameters, rises without the second sigmoid.
    With raw logits in `BCELoss`: "all elements of input should be between 0 and 1"; gone after the
    fix.

    ## References
    - [PyTorch: BCEWithLogitsLoss](https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html)
    """

    code = "OOM216"
    name = "bce-activation-mismatch"
    severity = Severity.ERROR
    tokens = (
        ("binary_cross_entropy", "BCELoss", "BCEWithLogitsLoss"),
        ("igmoid", "expit", "backward(", "Linear", "Conv"),
    )
    token_pattern = BINARY_FED
    claims = (Claim.GRADIENT_RISES, Claim.ERROR_GONE)

    def check(self, model: Model) -> Iterator[Finding]:
        if not BINARY_FED.search(model.source.text.encode("utf-8", "replace")):
            return
        seen: set[int] = set()
        every = list(fed(model, frozenset({BINARY, BINARY_LOGITS})))
        for found in every:
            twice = found.loss == BINARY_LOGITS and found.kind == SIGMOID
            bare = found.loss == BINARY and found.kind == LINEAR
            if not twice and not bare:
                continue
            ending = found.endings[0].place
            here = twice and ending.module is model.module
            node = ending.node if here else found.site.node
            if id(node) in seen:
                continue
            seen.add(id(node))
            loss = short(model.module, found.site.node.func)
            output = short(ending.module, ending.node)
            answer = finding(
                model,
                self,
                node,
                applied_twice(output, loss) if twice else never_applied(output, loss),
                without_sigmoid(model, found) if twice else with_logits(model, found, every),
            )
            yield replace(answer, path=way_to_the_loss(model, found))


def applied_twice(output: str, loss: str) -> str:
    return (
        f"`{output}` goes into `{loss}`, which applies a sigmoid itself: the gradient shrinks and"
        " negatives cannot be learnt"
    )


def never_applied(output: str, loss: str) -> str:
    return (
        f"`{loss}` expects probabilities and gets `{output}`, which can be any number: outside of"
        " 0 to 1 this raises, on a GPU as a device-side assert"
    )


def without_sigmoid(model: Model, found: Fed) -> Fix | None:
    edits = unwrapping.unwrapped(model.module, found)
    if edits is None:
        return None
    return make_fix("Remove the sigmoid before the loss", edits, Safety.UNSAFE)


def with_logits(model: Model, found: Fed, every: list[Fed]) -> Fix | None:
    """The loss that applies the sigmoid itself, if all that it is given are logits."""
    module, made = model.module, found.made
    node = made.node if made is not None else found.site.node
    if made is not None:
        alike = [f for f in every if f.kind == LINEAR and f.made and f.made.node is made.node]
        if made.module is not module or users(model, made) != len(alike):
            return None
    old, new = "binary_cross_entropy", "binary_cross_entropy_with_logits"
    if made is not None:
        old, new = "BCELoss", "BCEWithLogitsLoss"
    try:
        edit = unwrapping.renamed(module, node, old, new)
    except NoFix:
        return None
    return make_fix(f"Use `{new}`", [edit], Safety.UNSAFE)
