"""OOM415: a training step in which the host waits for the device again and again."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, waits
from oomlint.analysis.answers import finding, short
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.signs import UPDATE


class SyncInHotLoop(Rule):
    """
    ## What it does
    Checks for training steps that read three or more tensors on the host in every step, and for
    loops inside of a step that read one in each pass: `.item()`, `.cpu()`, `.tolist()`,
    `float(loss)`, `print(loss)`. One or two reads a step, and those behind a logging condition, are
    not reported.

    ## Why is this bad?
    A read waits until the device has computed everything before it, and leaves the device without
    work until the host has launched what comes next. Inside of a loop this happens for every
    element, each time for a few bytes.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer, meters):
        for inputs, targets in loader:
            outputs = model(inputs.cuda())
            loss = criterion(outputs, targets.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meters["loss"].append(loss.item())
            meters["norm"].append(outputs.norm().item())
            meters["peak"].append(outputs.max().item())
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion, optimizer, meters):
        for inputs, targets in loader:
            outputs = model(inputs.cuda())
            loss = criterion(outputs, targets.cuda())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen = torch.stack([loss.detach(), outputs.detach().norm(), outputs.detach().max()])
            for name, value in zip(("loss", "norm", "peak"), seen.tolist()):
                meters[name].append(value)
    ```

    ## Measured
    The host waits for the emulated device less often in each step. What a wait costs in time only
    a GPU can show.

    ## References
    - [PyTorch: avoid unnecessary CPU-GPU synchronization](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#avoid-unnecessary-cpu-gpu-synchronization)
    """

    code = "OOM415"
    name = "sync-in-hot-loop"
    severity = Severity.WARNING
    tokens = (
        (".item(", ".cpu(", ".tolist(", "float(", "print(", '.to("cpu', ".to('cpu"),
        (".backward(", "_step"),
        ("for ", "while ", "_step"),
    )
    texts = ("cuda", "CUDA", "evice", "DEVICE", "ightning", "ccelerat")
    token_pattern = UPDATE
    claims = (Claim.WAITS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        if not waits.ON_DEVICE.search(module.source.text):
            return
        for found in waits.hot(module):
            first = min(found.nodes, key=lambda node: (node.lineno, node.col_offset))
            message = f"{len(found.nodes)} reads make the host wait for the device in every step"
            if found.nested:
                message = f"`{short(module, first, 40)}` waits for the device in every pass of a "
                message += "loop inside of one step"
            path = [(node, "waits for the device") for node in found.nodes]
            yield finding(model, self, first, message, None, path)
