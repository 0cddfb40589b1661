"""OOM001: comments that silence what is not found."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.rule import Finding, Rule, Severity


class UnusedSuppression(Rule):
    """
    ## What it does
    Checks for `noqa` and `oomlint: ignore` comments that name a rule which finds nothing there.

    ## Why is this bad?
    The fault that the comment was written for is gone. The comment stays, and hides the next one.

    ## Known problems
    Only rules that are on for the file count, and comments that name them: a bare `# noqa` may
    be meant for another tool. Codes of other tools are left alone, those of a package with rules
    of its own are looked at where the file names one of oomlint, too.

    ## Example
    ```python
    def train(model, loader, optimizer):
        total = 0.0
        for x in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()  # oomlint: ignore[OOM102]
        return total
    ```

    Use instead:
    ```python
    def train(model, loader, optimizer):
        total = 0.0
        for x in loader:
            loss = model(x).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        return total
    ```

    ## Fix safety
    Safe: only the comment changes. A comment that silences something else, too, keeps that.

    ## Measured
    Nothing: a comment has no effect on what runs.

    ## References
    - [ruff: unused-noqa](https://docs.astral.sh/ruff/rules/unused-noqa/)
    """

    code = "OOM001"
    name = "unused-suppression"
    severity = Severity.ADVICE
    tokens = ()
    texts = ("oomlint", "OOM")
    claims = ()
    of_comments = True

    def check(self, model: Model) -> Iterator[Finding]:
        # What is silenced is known only after all other rules: oomlint.linter asks.
        yield from ()
