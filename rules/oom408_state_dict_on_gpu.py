"""OOM408: a copy of the weights that waits on the device until it is restored."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.modules import Module
from oomlint.analysis.resting_copies import Copy, clone_of, copies, waits
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AllOf, AnyOf, Exactly, InOneFunction

COPY = AnyOf(
    (
        Exactly((b"deepcopy",)),
        AllOf(
            (
                re.compile(rb"state_dict\(\s*\)[\s\\]*\.[\s\\]*items\("),
                re.compile(rb"\.[\s\\]*clone\("),
            )
        ),
    )
)
KEPT = re.compile(rb"best|load_state_dict", re.IGNORECASE)


class StateDictOnGpu(Rule):
    """
    ## What it does
    Checks for copies of `state_dict()`, or of a whole model, on the device that are only kept to be
    restored or saved later: the best weights so far, the initial ones.

    ## Why is this bad?
    `copy.deepcopy` and `clone` leave every copied tensor where the original is. The copy occupies
    the device for as long as the training runs, and nothing computes with it.

    ## Example
    ```python
    import copy

    import torch

    def fit(model, epochs, train, evaluate):
        model.cuda()
        best, best_weights = 0.0, None
        for epoch in range(epochs):
            train(model)
            accuracy = evaluate(model)
            if accuracy > best:
                best = accuracy
                best_weights = copy.deepcopy(model.state_dict())
        model.load_state_dict(best_weights)
    ```

    Use instead:
    ```python
    import copy

    import torch

    def fit(model, epochs, train, evaluate):
        model.cuda()
        best, best_weights = 0.0, None
        for epoch in range(epochs):
            train(model)
            accuracy = evaluate(model)
            if accuracy > best:
                best = accuracy
                best_weights = {k: v.to("cpu", copy=True) for k, v in model.state_dict().items()}
        model.load_state_dict(best_weights)
    ```

    ## Fix safety
    Unsafe: what else uses the copy finds it on the CPU. `load_state_dict` copies it back. No fix is
    offered for the copy of a whole model.

    ## Measured
    The bytes that stay allocated between steps fall by the size of the weights.

    ## References
    - [PyTorch: what is a state_dict](https://docs.pytorch.org/tutorials/recipes/recipes/what_is_state_dict.html)
    """

    code = "OOM408"
    name = "state-dict-on-gpu"
    severity = Severity.WARNING
    tokens = (
        ("deepcopy", "clone()"),
        ("state_dict", "best", "Best", "BEST"),
        ("torch",),
        (".cuda(", ".to(", "device"),
    )
    # What is copied is the best so far, or given back in the same function.
    token_pattern = AnyOf((InOneFunction((COPY, KEPT)), re.compile(rb"deepcopy\s+as\b")))
    claims = (Claim.BYTES_FALL, Claim.PEAK_FALLS)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for copy in copies(module):
            if copy.target is None or not waits(module, copy):
                continue
            text = short(module, copy.node)
            message = f"`{text}` keeps a second set of weights on the device that only waits"
            yield finding(model, self, copy.node, message, remedy(module, copy))


def remedy(module: Module, copy: Copy) -> Fix | None:
    """The same copy on the host, one tensor at a time."""
    if copy.whole:
        return None
    if isinstance(copy.node, ast.DictComp):
        clone = clone_of(copy.node)
        assert clone is not None and isinstance(clone.func, ast.Attribute)
        text = f'{module.segment(clone.func.value)}.to("cpu", copy=True)'
        change = edits.replace(module, clone, text)
    else:
        state = f"{module.segment(copy.owner)}.state_dict()"
        change = edits.replace(
            module, copy.node, f'{{k: v.to("cpu", copy=True) for k, v in {state}.items()}}'
        )
    return make_fix("Copy to the CPU", [change], Safety.UNSAFE)
