"""OOM101: evaluation, inference or a rollout that builds autograd graphs for nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, generating, grad_mode, turning_off
from oomlint.analysis import graphless as evaluation
from oomlint.analysis.answers import finding, short
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import DECODES
from oomlint.token_patterns import AllOf, AnyOf, Exactly

CHOICE = Exactly(tuple(map(str.encode, generating.CHOICES)))


class EvalWithoutNoGrad(Rule):
    """
    ## What it does
    Checks for forwards in evaluation, inference or rollout loops that run with grad mode on
    although nobody takes a gradient of their outputs. A loop of one's own over tokens is one, too,
    where only chosen tokens leave it.

    ## Why is this bad?
    `eval()` changes dropout and batch norm, not autograd. Every forward saves its activations for a
    backward that never comes: the peak of device memory is that of training, and where outputs or
    sums of losses are kept it grows with every batch until the run is out of memory.

    ## Example
    ```python
    import torch

    def validate(model, loader, criterion):
        model.eval()
        total = 0.0
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
        return total / len(loader)
    ```

    Use instead:
    ```python
    import torch

    @torch.no_grad()
    def validate(model, loader, criterion):
        model.eval()
        total = 0.0
        for inputs, targets in loader:
            total += criterion(model(inputs), targets).item()
        return total / len(loader)
    ```

    ## Fix safety
    Safe: outputs are the same numbers. No fix is offered where the region takes gradients.

    ## Measured
    The peak of device bytes in the evaluation falls; where outputs are kept, growth per batch
    stops.

    ## References
    - [PyTorch: locally disabling gradient computation](https://docs.pytorch.org/docs/stable/notes/autograd.html#locally-disabling-gradient-computation)
    """

    code = "OOM101"
    name = "eval-without-no-grad"
    severity = Severity.WARNING
    tokens = (
        ("torch", "lightning", "accelerate"),
        (
            ".eval(",
            ".train(",
            "env.step",
            "envs.step",
            "environment.step",
            *generating.CHOICES,
        ),
    )
    token_pattern = AnyOf(
        (
            re.compile(rb"\.eval\(\s*\)"),
            re.compile(rb"\.train\(\s*(?:mode\s*=\s*)?False"),
            re.compile(rb"env(?:s|ironment)?\.step"),
            AllOf((CHOICE, DECODES)),
        )
    )
    claims = (Claim.PEAK_FALLS, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        told: set[int] = set()
        for region in evaluation.regions(model):
            told.add(id(region.function))
            if grad_mode.meant_off(model.module, region.node):
                continue  # OOM112 says why they are not off
            call = short(model.module, region.node)
            message = f"`{call}` builds an autograd graph that nothing uses: grad mode is on here"
            if region.kept:
                message += f", and `{region.kept}` keeps every graph alive"
            yield finding(
                model, self, region.node, message, turning_off.turn_off(model, region), region.path
            )
        for found in generating.generations(model):
            if id(found.function) in told or grad_mode.meant_off(model.module, found.forward):
                continue
            call = short(model.module, found.forward)
            message = (
                f"`{call}` builds an autograd graph that nothing uses: only chosen tokens leave "
                "the loop, and grad mode is on here"
            )
            ways = [(found.forward, "forward with grad mode on"), (found.growth, "tokens")]
            fix = turning_off.decorated(model.module, found.function)
            yield finding(model, self, found.forward, message, fix, ways)
