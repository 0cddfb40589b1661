"""OOM106: `retain_graph=True` where the graph is walked once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, rewalk
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.debugging import is_test
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import Site, is_true
from oomlint.analysis.walks import backwards, flag
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AnyOf


class NeedlessRetainGraph(Rule):
    """
    ## What it does
    Checks for `backward(retain_graph=True)` on a graph that no other backward goes through.

    ## Why is this bad?
    A backward frees the activations as it goes. With `retain_graph=True` they stay until the last
    name of the loss and the outputs is bound anew, which is after the next forward: two graphs are
    alive at the peak.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward(retain_graph=True)
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
    ```

    ## Fix safety
    Safe: the gradients are the same numbers.

    ## Measured
    The peak of device bytes falls by about the activations of one forward.

    ## References
    - [PyTorch: Tensor.backward](https://docs.pytorch.org/docs/stable/generated/torch.Tensor.backward.html)
    """

    code = "OOM106"
    name = "needless-retain-graph"
    severity = Severity.WARNING
    tokens = (("backward",), ("True",), ("step",))
    token_pattern = AnyOf(
        (
            re.compile(rb"retain_graph\b(?<!\wretain_graph)\s*=\s*True\b"),
            re.compile(rb"backward\s*\([^()]*,\s*True\b"),
        )
    )
    claims = (Claim.PEAK_FALLS, Claim.BYTES_FALL)

    def check(self, model: Model) -> Iterator[Finding]:
        for site in backwards(model.module):
            value = flag(site, "retain_graph")
            if not is_true(value) or flag(site, "create_graph") is not None:
                continue
            if is_test(model.module, site.node) or not rewalk.is_needless(model, site.node):
                continue
            message = (
                "nothing walks this graph again: `retain_graph=True` keeps its activations alive"
                " after the backward"
            )
            yield finding(model, self, site.node, message, release(model.module, site))


def release(module: Module, site: Site) -> Fix | None:
    """Takes the keyword out; a flag by position becomes False."""
    named = next((k for k in site.node.keywords if k.arg == "retain_graph"), None)
    value = flag(site, "retain_graph")
    try:
        if named is not None:
            edit = edits.drop_argument(module, site.node, named)
        elif isinstance(value, ast.Constant):
            edit = edits.replace(module, value, "False")
        else:
            return None
    except edits.NoFix:
        return None
    return make_fix("Let the backward free the graph", [edit], Safety.SAFE)
