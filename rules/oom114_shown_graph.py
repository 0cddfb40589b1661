"""OOM114: a tensor with its autograd graph that a notebook shows, and so keeps."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis.answers import finding, short
from oomlint.analysis.cells import detached, kept_by_showing
from oomlint.rule import Claim, Finding, Rule, Severity


class ShownGraph(Rule):
    """
    ## What it does
    Checks for cells of a notebook, or of a script with `# %%`, whose last expression is a tensor
    with an autograd graph through which no backward goes: `model(batch)` or `outputs`, to look at.

    ## Why is this bad?
    IPython keeps what a cell shows: in `Out`, and the last three in `_`, `__` and `___`. With the
    tensor it keeps the graph, and with the graph all activations on the device, until the kernel
    ends. Running the cell again keeps one more, and neither `del outputs` nor `empty_cache()` frees
    any of them.

    ## Example
    ```python
    # %%
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(256, 64, device="cuda")

    # %%
    model(batch)
    ```

    Use instead:
    ```python
    # %%
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(256, 64, device="cuda")

    # %%
    model(batch).detach()
    ```

    A semicolon behind the expression shows nothing and keeps nothing.

    ## Fix safety
    Safe: the same numbers are shown, without `grad_fn`. What is not one tensor has no fix.

    ## Measured
    Fewer bytes stay allocated on the device between the steps of the training that follows.

    ## References
    - [IPython: output caching system](https://ipython.readthedocs.io/en/stable/interactive/reference.html#output-caching-system)
    """

    code = "OOM114"
    name = "shown-graph"
    severity = Severity.WARNING
    preview = True
    of_cells = True
    tokens = (("torch",),)
    claims = (Claim.BYTES_FALL, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        for shown in kept_by_showing(model):
            text = short(model.module, shown.node)
            message = (
                f"the notebook keeps what it shows: `Out` holds the autograd graph of `{text}` with"
                " its activations until the kernel ends"
            )
            path = [(shown.event, "shown by the notebook")]
            if shown.forward is not None:
                path.insert(0, (shown.forward, "forward with grad mode on"))
            yield finding(model, self, shown.node, message, detached(model, shown), path)
