"""OOM608: data-parallel training in which nothing parts the samples among the ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis.answers import finding
from oomlint.analysis.parting import (
    has_none,
    is_never_told,
    is_unparted,
    loaders_of,
    remedy,
    sampler_of,
    tell_epoch,
    training_loops,
)
from oomlint.rule import Claim, Finding, Rule, Severity


class MissingDistributedSampler(Rule):
    """
    ## What it does
    Checks for training with DistributedDataParallel or FSDP over a DataLoader that has no sampler,
    and for a shuffling `DistributedSampler` that is never told the epoch.

    ## Why is this bad?
    Every rank goes through the whole dataset: with the same seed all of them compute the same
    gradient, and an epoch takes as long as on one GPU. A `DistributedSampler` without `set_epoch`
    draws the order from the same seed in every epoch, so that it never changes.

    ## Example
    ```python
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    def train(net, data, criterion, epochs):
        model = DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(data, 32, shuffle=True)
        for epoch in range(epochs):
            for inputs, targets in loader:
                optimizer.zero_grad()
                criterion(model(inputs), targets).backward()
                optimizer.step()
    ```

    Use instead:
    ```python
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader

    def train(net, data, criterion, epochs):
        model = DistributedDataParallel(net)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(data, 32, sampler=torch.utils.data.DistributedSampler(data))
        for epoch in range(epochs):
            loader.sampler.set_epoch(epoch)
            for inputs, targets in loader:
                optimizer.zero_grad()
                criterion(model(inputs), targets).backward()
                optimizer.step()
    ```

    ## Fix safety
    Unsafe: each rank trains on other samples from now on, in another order.

    ## Measured
    Two ranks with gloo and the same seed: all samples of a rank are on the other one, too, before
    the fix, and none after it. Told the epoch, a sampler draws another order for each.

    ## References
    - [PyTorch: DistributedSampler](https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler)
    """

    code = "OOM608"
    name = "missing-distributed-sampler"
    severity = Severity.WARNING
    tokens = (
        ("DistributedDataParallel", "FullyShardedDataParallel", "DistributedSampler"),
        ("DataLoader",),
        ("backward(",),
        ("step(",),
    )
    claims = (Claim.SAMPLES_DIFFER, Claim.EPOCHS_DIFFER)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        told: set[ast.AST] = set()
        for loop, function in training_loops(module):
            for loader in loaders_of(module, loop, function):
                if loader.node in told:
                    continue
                told.add(loader.node)
                sampler = sampler_of(module, loader)
                if sampler is not None:
                    if sampler.node not in told and is_never_told(module, sampler, loop, function):
                        told.add(sampler.node)
                        message = "without `set_epoch` every epoch brings the samples in one order"
                        fix = tell_epoch(module, loader, loop, function)
                        yield finding(model, self, sampler.node, message, fix, [(loop, "an epoch")])
                elif has_none(loader) and is_unparted(model, loader):
                    message = "nothing parts the samples among the ranks: each trains on all"
                    path = [(loop, "every rank goes over all samples")]
                    fix = remedy(module, loader, loop, function)
                    yield finding(model, self, loader.node, message, fix, path)
