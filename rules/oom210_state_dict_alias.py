"""OOM210: weights that are kept as a state_dict, which changes with every further step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.kept_weights import EARLIER, Kept, kept
from oomlint.analysis.modules import Module
from oomlint.layout import LOOP
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AnyOf, Exactly, InOneBlock, InOneFunction, NamePlaced

STATE = Exactly((b".state_dict()",))
TRAINS = re.compile(rb"(?:train|fit|epoch|step|update|learn|backward|optimi[sz]e|finetune)\w*\s*\(")
FOR_LATER = re.compile(
    rb"\bself\.\w*(?i:" + EARLIER.pattern.encode() + rb")\w*"
    rb"\s*(?:[,=:\[)]|\.(?:append|add|appendleft)\()"
)
TAKES_BACK = NamePlaced(
    (b".state_dict()",),
    re.compile(rb"(\w+)[\[\]()]*\.state_dict\(\)"),
    re.compile(rb"\0[\[\]()]*\.load_state_dict\(\s*(?:\w+\s*(?:[,)]|$)|$)"),
)


class StateDictAlias(Rule):
    """
    ## What it does
    Checks for weights that are kept as `model.state_dict()`, or as a shallow copy of it, while the
    model is trained on, and that are read afterwards.

    ## Why is this bad?
    A `state_dict` holds the parameters' own memory, not a copy. Every further step changes what was
    kept: the best weights of the run are its last ones, and loading them does nothing. `.copy()`,
    `dict()` and `copy.copy()` copy the dict and not the tensors.

    ## Example
    ```python
    def fit(model, loader, epochs, train_epoch, validate):
        best = float("inf")
        weights = None
        for epoch in range(epochs):
            train_epoch(model, loader)
            loss = validate(model)
            if loss < best:
                best = loss
                weights = model.state_dict()
        model.load_state_dict(weights)
    ```

    Use instead:
    ```python
    def fit(model, loader, epochs, train_epoch, validate):
        best = float("inf")
        weights = None
        for epoch in range(epochs):
            train_epoch(model, loader)
            loss = validate(model)
            if loss < best:
                best = loss
                weights = {k: v.cpu().clone() for k, v in model.state_dict().items()}
        model.load_state_dict(weights)
    ```

    ## Fix safety
    Unsafe: other weights are loaded or saved at the end, those that were meant. The copy is in host
    memory, so that the device holds the weights once.

    ## Measured
    Tensors besides the parameters that lie in the parameters' memory when a step changes them: one
    for each entry of what is kept before the fix, none after it.

    ## References
    - [PyTorch: saving and loading models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
    """

    code = "OOM210"
    name = "state-dict-alias"
    severity = Severity.ERROR
    tokens = ((".state_dict()",),)
    # A loop that trains, an attribute for later, or the same model that takes it back.
    token_pattern = AnyOf(
        (
            InOneBlock(LOOP, (STATE, TRAINS)),
            InOneFunction((STATE, AnyOf((FOR_LATER, TAKES_BACK)))),
        )
    )
    claims = (Claim.KEPT_WEIGHTS_STAY,)

    def check(self, model: Model) -> Iterator[Finding]:
        for found in kept(model.module):
            what = short(model.module, found.whole)
            message = (
                f"`{what}` is no copy: it lies in the parameters' memory, so `{found.name}` is"
                " always what the model is now"
            )
            path: list[tuple[ast.expr, str]] = [(found.whole, "kept"), (found.read, "read")]
            yield finding(model, self, found.whole, message, remedy(model.module, found), path)


def remedy(module: Module, found: Kept) -> Fix | None:
    try:
        edit = copied(module, found)
    except edits.NoFix:
        return None
    return make_fix("Copy the tensors to host memory", [edit], Safety.UNSAFE)


def copied(module: Module, found: Kept) -> Edit:
    if isinstance(found.whole, ast.DictComp):
        value = found.whole.value
        text = module.segment(value)
        on_host = isinstance(value, ast.Call) and ".cpu()" in text
        return edits.replace(module, value, text + (".clone()" if on_host else ".cpu().clone()"))
    text = module.segment(found.call)
    return edits.replace(module, found.whole, f"{{k: v.cpu().clone() for k, v in {text}.items()}}")
