"""OOM411: a DataLoader that is built anew in every epoch or step."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, loaders
from oomlint.analysis.answers import Node, finding
from oomlint.analysis.rebuilt_loaders import is_epoch, rebuilt
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import TRAINING


class LoaderBuiltInLoop(Rule):
    """
    ## What it does
    Checks for a DataLoader with workers that is built in every epoch or step of a loop, from
    arguments that stay the same.

    ## Why is this bad?
    Each new loader starts its worker processes again, with the dataset in each of them;
    `persistent_workers` cannot help, and the workers of the loader before end only when nothing
    refers to it any more.

    ## Example
    ```python
    from torch.utils.data import DataLoader

    def fit(model, dataset, criterion, optimizer, epochs):
        for epoch in range(epochs):
            loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=4)
            for inputs, targets in loader:
                optimizer.zero_grad()
                criterion(model(inputs), targets).backward()
                optimizer.step()
    ```

    Use instead:
    ```python
    from torch.utils.data import DataLoader

    def fit(model, dataset, criterion, optimizer, epochs):
        loader = DataLoader(
            dataset, batch_size=32, shuffle=True, num_workers=4, persistent_workers=True
        )
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                criterion(model(inputs), targets).backward()
                optimizer.step()
    ```

    ## Measured
    With persistent workers, no worker process is started after the first step; before, one for
    each worker in every epoch.

    ## References
    - [PyTorch: multi-process data loading](https://docs.pytorch.org/docs/stable/data.html#multi-process-data-loading)
    """

    code = "OOM411"
    name = "loader-built-in-loop"
    severity = Severity.WARNING
    tokens = (
        ("DataLoader",),
        ("num_workers",),
        ("for ", "while "),
        ("torch", "monai"),
    )
    token_pattern = TRAINING
    claims = (Claim.FEWER_WORKERS,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for loader in loaders.loaders(module):
            found = rebuilt(module, loader) if loader.has_workers else None
            if found is None:
                continue
            loop, call = found
            each = "epoch" if is_epoch(loop) else "step"
            message = f"a new loader in every {each} starts its worker processes again"
            path: list[tuple[Node, str]] = []
            if call is not None:
                path = [(call.node, f"every {each} calls the function that builds it")]
            yield finding(model, self, loader.site.node, message, None, path)
