"""OOM501: attention that is written out where a fused one keeps no scores."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, attention
from oomlint.analysis.answers import finding
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import AllOf, AnyOf, InOneFunction, Times, Without

PRODUCTS = ("matmul(", "bmm(", "einsum(", " @ ")
# Who knows of fused kernels has chosen.
FUSED_WORDS = (
    b"scaled_dot_product_attention",
    b"memory_efficient_attention",
    b"flash_attn",
    b"flashattn",
    b"flash_attention",
    b"flashattention",
    b"xformers",
    b"sdpa",
)


TWO_PRODUCTS = Times(2, tuple(word.encode() for word in PRODUCTS))
TRANSPOSED = re.compile(rb"transpose|permute|\bmT\b|swapaxes|\.T\b|einsum")
SOFTMAX = re.compile(rb"softmax\(")


class ManualAttention(Rule):
    """
    ## What it does
    Checks for `softmax(q @ k.transpose(-2, -1)) @ v` with weights that nothing else uses.

    ## Why is this bad?
    The scores and the weights of every pair of positions are written out and kept for the backward:
    memory grows with the square of the length. `scaled_dot_product_attention` computes the same in
    blocks and keeps neither.

    ## Known problems
    A mask that needs gradients, or a kernel that does not take the given shapes and types, makes
    `scaled_dot_product_attention` compute the scores as well.

    ## Example
    ```python
    import math
    import torch

    def attend(query, key, value):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        weights = scores.softmax(dim=-1)
        return weights @ value
    ```

    Use instead:
    ```python
    import torch

    def attend(query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value)
    ```

    ## Measured
    At a length of 512 the peak of the device bytes of a training step falls by more than half.

    ## References
    - [PyTorch: scaled_dot_product_attention](https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html)
    """

    code = "OOM501"
    name = "manual-attention"
    severity = Severity.WARNING
    tokens = (("oftmax",), PRODUCTS, ("torch",))
    # Two products in one function, one with keys that are transposed, and nothing fused anywhere.
    token_pattern = AllOf(
        (
            Without(FUSED_WORDS),
            AnyOf(
                (
                    InOneFunction((TWO_PRODUCTS, TRANSPOSED, SOFTMAX)),
                    AllOf((re.compile(rb"Softmax\b"), InOneFunction((TWO_PRODUCTS, TRANSPOSED)))),
                )
            ),
        )
    )
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        if not Without(FUSED_WORDS).search(model.source.text.encode("utf-8", "replace")):
            return
        if model.torch_version is not None and model.torch_version < SINCE:
            return
        for found in attention.attentions(model.module):
            message = (
                "the scores of all pairs of positions are kept for the backward: "
                "`scaled_dot_product_attention` keeps none"
            )
            path = [
                (found.product, "scores of queries and keys"),
                (found.total, "sum of the values"),
            ]
            yield finding(model, self, found.softmax, message, None, path)


SINCE = (2, 0)
