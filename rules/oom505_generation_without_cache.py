"""OOM505: decoding loops that feed the whole sequence to the model for every new token."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model, decoding
from oomlint.analysis.answers import finding, short
from oomlint.analysis.state import Event
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import CHOOSING, DECODES


class GenerationWithoutCache(Rule):
    """
    ## What it does
    Checks for loops that generate a sequence token by token and feed all of it to the model at
    every step.

    ## Why is this bad?
    The keys and values of all earlier tokens are computed again for each new one: the work for a
    sequence grows with the square of its length, and every step holds activations and scores for
    all positions where one is needed.

    ## Known problems
    A model whose forward takes no cache needs one first. Where the window slides over a model with
    learned absolute positions, a cache holds only until the window is full.

    ## Example
    ```python
    import torch

    @torch.no_grad()
    def generate(model, tokens, count):
        for _ in range(count):
            scores = model(tokens).logits[:, -1]
            chosen = scores.argmax(dim=-1, keepdim=True)
            tokens = torch.cat((tokens, chosen), dim=1)
        return tokens
    ```

    Use instead:
    ```python
    import torch

    @torch.no_grad()
    def generate(model, tokens, count):
        past, fed = None, tokens
        for _ in range(count):
            output = model(fed, past_key_values=past, use_cache=True)
            past = output.past_key_values
            fed = output.logits[:, -1].argmax(dim=-1, keepdim=True)
            tokens = torch.cat((tokens, fed), dim=1)
        return tokens
    ```

    ## Measured
    A small attention model with a batch of 16: the peak of the device bytes of a decoding step
    falls by more than half.

    ## References
    - [Hugging Face: caching](https://huggingface.co/docs/transformers/cache_explanation)
    """

    code = "OOM505"
    name = "generation-without-cache"
    severity = Severity.WARNING
    tokens = (
        ("torch",),
        ("cat(", "concat(", "concatenate(", "hstack(", ".append(", "+= [", "] = "),
        CHOOSING,
        ("for ", "while "),
    )
    token_pattern = DECODES
    claims = (Claim.PEAK_FALLS, Claim.STEP_FASTER)

    def check(self, model: Model) -> Iterator[Finding]:
        for found in decoding.decodings(model.module):
            name = short(model.module, found.forward.func)
            message = (
                f"every step feeds the whole of `{found.sequence}` to `{name}` again, though only "
                "the last token is new: time per token grows with the length"
            )
            path: list[tuple[Event | ast.expr | ast.stmt, str]] = [
                (found.forward, "the whole sequence is fed"),
                (found.growth, "one token is added"),
            ]
            yield finding(model, self, found.forward, message, None, path)
