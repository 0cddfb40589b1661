"""OOM206: accumulation windows whose first one has another size than the others."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis.answers import finding
from oomlint.analysis.uneven_windows import shifted, uneven
from oomlint.analysis.windows import counted_windows
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import CALLS_BOTH


class AccumulationOffByOne(Rule):
    """
    ## What it does
    Checks for accumulation windows that are counted from the wrong end: `i % n == 0` where `i`
    starts at zero, `(i + 1) % n == 0` where it starts at one, and losses that are divided by
    another number than the one that the window counts to.

    ## Why is this bad?
    The first step of every epoch is made with one micro-batch (or with one too few), while its loss
    is divided as if there were N: it is N times too small, and all later windows are shifted.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion, optimizer, accumulation_steps=4):
        for i, (inputs, targets) in enumerate(loader):
            loss = criterion(model(inputs), targets) / accumulation_steps
            loss.backward()
            if i % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, optimizer, accumulation_steps=4):
        for i, (inputs, targets) in enumerate(loader):
            loss = criterion(model(inputs), targets) / accumulation_steps
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: the steps are made after other micro-batches than before.

    ## Measured
    With windows of four the first step sees one micro-batch before the fix and four after.

    ## References
    - [PyTorch: gradient accumulation](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-accumulation)
    """

    code = "OOM206"
    name = "accumulation-off-by-one"
    severity = Severity.ERROR
    tokens = (("backward(",), ("step(",), ("%",))
    token_pattern = CALLS_BOTH
    claims = (Claim.WINDOWS_EQUAL,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        for world in model.worlds:
            for window in counted_windows(world):
                for node, message, fix in (*shifted(model, window), *uneven(model, window)):
                    if id(node) in seen:
                        continue
                    seen.add(id(node))
                    path = [
                        (window.backward, "backward of every micro-batch"),
                        (window.step, "step at the end of a window"),
                    ]
                    yield finding(model, self, node, message, fix, path)
