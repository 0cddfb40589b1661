"""OOM601: gradient accumulation that averages gradients over the ranks on every micro-batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding
from oomlint.analysis.averaged_windows import averaged, remedy
from oomlint.rule import Claim, Finding, Rule, Severity


class DdpWithoutNoSync(Rule):
    """
    ## What it does
    Checks for gradient accumulation with DistributedDataParallel that never enters `no_sync()`.

    ## Why is this bad?
    Every backward averages the whole gradient over the ranks, and waits for the slowest. Only the
    last one of a window needs to: the other averages are sent and added to without any use.

    ## Example
    ```python
    from contextlib import nullcontext
    from torch.nn.parallel import DistributedDataParallel

    def train(net, loader, optimizer, criterion, accumulation_steps):
        model = DistributedDataParallel(net)
        for i, (inputs, targets) in enumerate(loader):
            loss = criterion(model(inputs), targets) / accumulation_steps
            loss.backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    ```

    Use instead:
    ```python
    from contextlib import nullcontext
    from torch.nn.parallel import DistributedDataParallel

    def train(net, loader, optimizer, criterion, accumulation_steps):
        model = DistributedDataParallel(net)
        for i, (inputs, targets) in enumerate(loader):
            with nullcontext() if (i + 1) % accumulation_steps == 0 else model.no_sync():
                loss = criterion(model(inputs), targets) / accumulation_steps
                loss.backward()
            if (i + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
    ```

    ## Fix safety
    Unsafe: sums of gradients are rounded in another order.

    ## Measured
    Two ranks with gloo, four micro-batches: 4 averages of the gradients a step before the fix and 1
    after it, on each rank, and the gradients of both are equal byte for byte at every step.

    ## References
    - [PyTorch: DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync)
    """

    code = "OOM601"
    name = "ddp-without-no-sync"
    severity = Severity.WARNING
    tokens = (("DistributedDataParallel",), ("backward(",), ("step(",))
    claims = (Claim.REDUCTIONS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[ast.AST] = set()
        for world in model.worlds:
            for window in ask.windows(world):
                forward = averaged(model, window)
                node = anchor(model, window.backward, window.step) if forward else None
                if forward is None or node is None or node in seen:
                    continue
                seen.add(node)
                message = (
                    "every micro-batch averages the gradients over the ranks: "
                    "only the last one of a window needs to"
                )
                path = [
                    (forward, "forward of the data-parallel model"),
                    (window.backward, "backward of every micro-batch"),
                    (window.step, "one step for the whole window"),
                ]
                fix = remedy(model.module, window, forward)
                yield finding(model, self, node, message, fix, path)
