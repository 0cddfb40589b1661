"""OOM504: activation checkpointing where nothing is kept that it could save."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.idle_checkpoints import is_checkpoint, reason
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CHECKPOINTING


class CheckpointWithoutEffect(Rule):
    """
    ## What it does
    Checks for `torch.utils.checkpoint.checkpoint` around a single layer, around nothing but another
    checkpoint, and under `torch.no_grad()`.

    ## Why is this bad?
    A checkpoint keeps the inputs of a function and computes the rest again in the backward pass. A
    linear layer, a convolution, a norm or an activation keeps its input, its output or as much
    anyway: the layer runs twice and the peak stays where it was. Where no graph is built, nothing
    is kept in the first place. A checkpoint pays around a block of several layers.

    ## Example
    ```python
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.expand = nn.Linear(width, 4 * width)
            self.project = nn.Linear(4 * width, width)

        def forward(self, x):
            x = checkpoint(self.expand, x, use_reentrant=False)
            return self.project(x.relu())
    ```

    Use instead:
    ```python
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.expand = nn.Linear(width, 4 * width)
            self.project = nn.Linear(4 * width, width)

        def forward(self, x):
            x = self.expand(x)
            return self.project(x.relu())
    ```

    ## Fix safety
    Safe with `use_reentrant=False`: the values are the same. Unsafe for the reentrant kind, which
    may have kept gradients from the layer.

    ## Measured
    Four linear layers: one function of each runs again in the backward pass before the fix, none
    after it, and the peak stays the same.

    ## References
    - [PyTorch: torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)
    """

    code = "OOM504"
    name = "checkpoint-without-effect"
    severity = Severity.WARNING
    tokens = (("checkpoint",), ("torch",))
    token_pattern = CHECKPOINTING
    claims = (Claim.RECOMPUTATIONS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in sites.named(module, "checkpoint"):
            if not is_checkpoint(module, site) or not site.node.args:
                continue
            message = reason(module, site)
            if message is not None:
                yield finding(model, self, site.node, message, remedy(module, site))


# What `checkpoint` itself takes; the others are the function's.
OWN = frozenset(
    "use_reentrant preserve_rng_state context_fn determinism_check debug early_stop".split()
)


def remedy(module: Module, site: Site) -> Fix | None:
    """The function is called as it is."""
    node = site.node
    run = node.args[0]
    if not isinstance(run, ast.Name | ast.Attribute | ast.Subscript) or site.is_open:
        return None
    own = [part for part in node.keywords if part.arg in OWN]
    if len(node.args) == 1 and len(own) == len(node.keywords):
        return None
    kind = site.argument(-1, "use_reentrant")
    plain = isinstance(kind, ast.Constant) and kind.value is False
    changed = [
        edits.replace(module, node.func, module.segment(run)),
        *(edits.drop_argument(module, node, part) for part in (run, *own)),
    ]
    safety = Safety.SAFE if plain else Safety.UNSAFE
    return make_fix("Call it without a checkpoint", changed, safety)
