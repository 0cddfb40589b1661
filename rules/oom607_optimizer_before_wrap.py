"""OOM607: an optimizer that was given parameters which the model then no longer has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, sites
from oomlint.analysis.answers import finding, short
from oomlint.analysis.replaced_parameters import (
    change_after,
    change_behind_calls,
    makes_optimizer,
    remedy,
)
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import AllOf, AnyOf, Exactly, InOneFunction, Lines

# A word of every constructor that makes an optimizer.
OPTIMIZERS = tuple(
    "optim Ada SGD RMSprop Lion Lamb LAMB LARS NAdam RAdam LBFGS Fused Ranger Prodigy".split()
)


PARAMETERS = Exactly((b"parameters(",))
CHANGE = AnyOf(
    (
        Exactly(
            (
                b"FullyShardedDataParallel",
                b"FSDP",
                b"fully_shard",
                b"get_peft_model",
                b"resize_token_embeddings",
            )
        ),
        re.compile(
            rb"\.\w+\s*=[\s(\\]*(?:\w+\.)*"
            rb"(?:Linear|Conv\dd|Embedding|Sequential|LayerNorm|BatchNorm\dd)\("
        ),
    )
)
RETURNED = re.compile(rb"\breturn\b(?:[^\n]|(?<=[(\[{,])\n)*?\b[A-Z]\w*\(")
RENAMED = Lines(
    (b"FullyShardedDataParallel", b"fully_shard", b"get_peft_model"),
    re.compile(rb"\bas\s+(?!FSDP\b|fully_shard\b)"),
)


class OptimizerBeforeWrap(Rule):
    """
    ## What it does
    Checks for an optimizer that is built before FSDP, `fully_shard`, `get_peft_model`,
    `resize_token_embeddings` or a new layer replaces the parameters that it was given.

    ## Why is this bad?
    The optimizer keeps the old parameters. They get no gradient any more, and the new ones are
    never stepped: nothing raises, and that part of the model does not train.

    ## Example
    ```python
    import torch

    def prepare(model, classes):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.fc = torch.nn.Linear(512, classes)
        return model, optimizer
    ```

    Use instead:
    ```python
    import torch

    def prepare(model, classes):
        model.fc = torch.nn.Linear(512, classes)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer
    ```

    ## Fix safety
    Unsafe: parameters that stood still are trained from now on.

    ## Measured
    Two ranks with gloo and a model that FSDP shards behind its optimizer: none of the optimizer's
    parameters gets a gradient or moves before the fix, and all do after it, on each rank.

    ## References
    - [PyTorch: FullyShardedDataParallel](https://docs.pytorch.org/docs/stable/fsdp.html)
    """

    code = "OOM607"
    name = "optimizer-before-wrap"
    severity = Severity.ERROR
    tokens = (
        (".parameters(", ".named_parameters("),
        OPTIMIZERS,
        ("torch", "peft"),
    )
    # Parameters are replaced where an optimizer gets them, or where a method returns one.
    token_pattern = AnyOf(
        (
            InOneFunction((PARAMETERS, CHANGE)),
            AllOf((InOneFunction((PARAMETERS, RETURNED)), CHANGE)),
            RENAMED,
        )
    )
    claims = (Claim.GRADIENTS_ARRIVE, Claim.PARAMETERS_MOVE)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for optimizer in sites.sites(module):
            if not makes_optimizer(optimizer):
                continue
            here = change_after(module, optimizer)
            change = here or change_behind_calls(module, optimizer)
            if change is None:
                continue
            message = (
                f"`{short(module, change.node)}` replaces parameters that the optimizer holds: "
                "the new ones are never stepped"
            )
            path: list[tuple[ast.expr | ast.stmt, str]] = [
                (optimizer.node, "the optimizer gets the old parameters"),
                (change.node, "the model gets new ones"),
            ]
            fix = remedy(module, optimizer, change) if here is not None else None
            yield finding(model, self, optimizer.node, message, fix, [*path])
