"""OOM104: outputs that wait on the device for the end of a loop, on their way to the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, collecting, predictions
from oomlint.analysis.answers import finding, short
from oomlint.layout import LOOP
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import loop_over
from oomlint.token_patterns import (
    AllOf,
    AnyOf,
    Exactly,
    InOneBlock,
    InOneFunction,
    OutsideFunctions,
    Words,
)

DATA = collecting.DATA.pattern.encode() + rb"|range\(\s*0\s*,"
COLLECTS = re.compile(rb"(?:append|extend)\(|\+=\s*\[|=[^=\n]*\b(?:cat|concat)\(")
# What stands in brackets, other lists in it included.
INSIDE = rb"(?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*?"
# A loop over data that collects, or a list of calls for all of it.
COLLECTION = AnyOf(
    (
        InOneBlock(LOOP, (loop_over(DATA), COLLECTS)),
        re.compile(
            rb"=[\s(\\]*\[(?="
            + INSIDE
            + rb"\()"
            + INSIDE
            + rb"\bfor\b"
            + INSIDE
            + rb"(?:"
            + DATA
            + rb"|\"\")"
        ),
    )
)
TO_THE_HOST = Words(tuple(map(str.encode, collecting.MOVING)))
WITHOUT_GRAPH = Words(
    (b"no_grad", b"nograd", b"inference_mode", b"inferencemode", b".detach(", b".generate(")
)
HOOK = re.compile(rb"def[ \t]+(?:" + collecting.HOOK.pattern.replace("$", r"\b").encode() + rb")")
KEPT_BY_HOOK = re.compile(rb"\bself\b[^\n]*(?:(?:append|extend|cat|concat)\(|\+=\s*\[)")
TRAINER = AllOf(
    (
        Exactly((b"compute_metrics",)),
        Exactly((b"TrainingArguments",)),
        Exactly((b"transformers",)),
    )
)


class OutputsKeptOnGpu(Rule):
    """
    ## What it does
    Checks for outputs of a model, logits, features or generations, that a loop over data collects
    on the device without a graph and that go to the host only after the loop; and for a Hugging
    Face `Trainer` that collects the logits of a language model for `compute_metrics`.

    ## Why is this bad?
    Device memory grows with every batch, by the size of its outputs, although nothing on the device
    needs them again. A small data set fits; the full one runs out of memory hours later, in the
    evaluation, and `torch.cat` needs all of it twice.

    ## Example
    ```python
    import torch

    @torch.no_grad()
    def predict(model, loader, device):
        model.eval()
        logits = []
        for inputs, _ in loader:
            logits.append(model(inputs.to(device)))
        return torch.cat(logits).softmax(dim=1).cpu().numpy()
    ```

    Use instead:
    ```python
    import torch

    @torch.no_grad()
    def predict(model, loader, device):
        model.eval()
        logits = []
        for inputs, _ in loader:
            logits.append(model(inputs.to(device)).cpu())
        return torch.cat(logits).softmax(dim=1).cpu().numpy()
    ```

    ## Fix safety
    Unsafe: what follows the loop is computed on the host, with the host's rounding; each batch
    waits for its copy. No fix is offered where the collected tensors meet others on the device.

    ## Measured
    Device bytes grow by the outputs of every batch before the fix and not at all after it.

    ## References
    - [Hugging Face: `eval_accumulation_steps`](https://huggingface.co/docs/transformers/main_classes/trainer#transformers.TrainingArguments.eval_accumulation_steps)
    """

    code = "OOM104"
    name = "outputs-kept-on-gpu"
    severity = Severity.WARNING
    tokens = (
        ("append(", "extend(", "cat(", "concat(", "+=", " for ", "compute_metrics"),
        (
            "no_grad",
            "inference_mode",
            ".detach(",
            ".generate(",
            "TrainingArguments",
            "validation_step",
            "val_step",
            "test_step",
            "predict_step",
            "_batch_end",
        ),
        (".cpu(", ".numpy(", ".tolist(", "cpu", "numpy", "torch.save", "sklearn", "Trainer"),
        ("cuda", ".to(", "device", "ightning", "TrainingArguments"),
    )
    # The same in a function, a script or a hook of a framework, or a Trainer with metrics.
    token_pattern = AnyOf(
        (
            InOneFunction((WITHOUT_GRAPH, TO_THE_HOST, COLLECTION)),
            OutsideFunctions(AllOf((WITHOUT_GRAPH, COLLECTION))),
            InOneFunction((HOOK, KEPT_BY_HOOK)),
            TRAINER,
        )
    )
    claims = (Claim.GROWTH_STOPS, Claim.PEAK_FALLS)

    def check(self, model: Model) -> Iterator[Finding]:
        for found in collecting.everything(model):
            output = short(model.module, found.output)
            message = (
                f"`{found.place}` keeps every batch's `{output}` on the device until the loop has "
                "ended"
            )
            path = ((found.node, "collected on the device"), (found.taken, "taken to the host"))
            yield finding(
                model, self, found.node, message, collecting.to_the_host(model, found), path
            )
        if "compute_metrics" not in model.source.text:
            return
        for evaluated in predictions.trainers(model):
            message = (
                "evaluation keeps the logits of the whole data set on the device for "
                "`compute_metrics`"
            )
            yield finding(
                model,
                self,
                evaluated.trainer,
                message,
                predictions.move_predictions(model, evaluated),
            )
