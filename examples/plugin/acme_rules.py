"""House rules of Acme's training code."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.sites import Site
from oomlint.rule import Finding, Fix, Rule, Safety, Severity


class LoadOfAnyPickle(Rule):
    """
    ## What it does
    Checks for `torch.load` that does not say `weights_only`.

    ## Why is this bad?
    Before torch 2.6 it unpickles whatever the file holds, and a pickle can run code. Acme's
    training images still have older versions.

    ## Example
    ```python
    import torch

    weights = torch.load("best.pt")
    ```

    Use instead:
    ```python
    import torch

    weights = torch.load("best.pt", weights_only=True)
    ```

    ## Fix safety
    Unsafe: a file that holds more than tensors and plain containers is refused.
    """

    code = "ACM101"
    name = "load-of-any-pickle"
    severity = Severity.WARNING
    # A file without both words is not even parsed for this rule.
    tokens = (("torch",), ("load",))
    # Nothing that `oomlint verify` measures changes.
    claims = ()

    def check(self, model: Model) -> Iterator[Finding]:
        # `qualified` sees through imports and aliases: `from torch import load as read` is found.
        for site in sites.sites(model.module):
            if site.qualified != "torch.load" or site.is_open:
                continue
            if site.argument(-1, "weights_only") is None:
                called = model.module.segment(site.node.func)
                message = f"`{called}` unpickles whatever the file holds"
                yield finding(model, self, site.node, message, restrict(model, site))


def restrict(model: Model, site: Site) -> Fix | None:
    """None where the call cannot be edited cleanly: the finding then has no fix."""
    try:
        edit = edits.add_keyword(model.module, site.node, "weights_only=True")
    except edits.NoFix:
        return None
    return make_fix("Add `weights_only=True`", [edit], Safety.UNSAFE)
