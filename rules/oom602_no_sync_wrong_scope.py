"""OOM602: a `no_sync` that is entered after the forward, where it has no effect."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, synchronisation
from oomlint.analysis.answers import finding
from oomlint.analysis.late_deferrals import name_of, remedy, set_too_late, too_late
from oomlint.rule import Claim, Finding, Rule, Severity


class NoSyncWrongScope(Rule):
    """
    ## What it does
    Checks for `no_sync()` of a data-parallel model, and `accelerator.accumulate`, around a backward
    whose forward ran outside of it, and for `require_backward_grad_sync` set between the two.

    ## Why is this bad?
    DistributedDataParallel decides in the forward whether the next backward averages gradients. A
    context around the backward alone comes too late: every micro-batch is averaged over the ranks,
    as if it were not there.

    ## Example
    ```python
    from torch.nn.parallel import DistributedDataParallel

    def train(net, window, optimizer, criterion):
        model = DistributedDataParallel(net)
        for inputs, targets in window[:-1]:
            loss = criterion(model(inputs), targets) / len(window)
            with model.no_sync():
                loss.backward()
        inputs, targets = window[-1]
        loss = criterion(model(inputs), targets) / len(window)
        loss.backward()
        optimizer.step()
    ```

    Use instead:
    ```python
    from torch.nn.parallel import DistributedDataParallel

    def train(net, window, optimizer, criterion):
        model = DistributedDataParallel(net)
        for inputs, targets in window[:-1]:
            with model.no_sync():
                loss = criterion(model(inputs), targets) / len(window)
                loss.backward()
        inputs, targets = window[-1]
        loss = criterion(model(inputs), targets) / len(window)
        loss.backward()
        optimizer.step()
    ```

    ## Fix safety
    Unsafe: sums of gradients are rounded in another order.

    ## Measured
    Two ranks with gloo, four micro-batches: 4 averages of the gradients a step before the fix and 1
    after it, on each rank, and the gradients of both are equal byte for byte at every step.

    ## References
    - [PyTorch: DistributedDataParallel.no_sync](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html#torch.nn.parallel.DistributedDataParallel.no_sync)
    """

    code = "OOM602"
    name = "no-sync-wrong-scope"
    severity = Severity.WARNING
    tokens = (
        ("no_sync", "no_backward_sync", ".accumulate(", "require_backward_grad_sync"),
        ("backward(",),
    )
    claims = (Claim.REDUCTIONS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site, loss in synchronisation.backwards(module):
            flag = set_too_late(module, site, loss)
            if flag is not None:
                message = (
                    "the forward has read `require_backward_grad_sync` before it is set: "
                    "the average comes one micro-batch late"
                )
                yield finding(model, self, site.node, message, None, [(flag, "set too late")])
            deferral = too_late(module, site, loss)
            if deferral is None:
                continue
            message = (
                f"the forward ran outside of `{name_of(deferral)}`: "
                "this backward averages the gradients over the ranks all the same"
            )
            path = [(deferral.context, "entered behind the forward")]
            yield finding(model, self, site.node, message, remedy(module, site, deferral), path)
