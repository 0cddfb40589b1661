"""OOM903: a loader that keeps the GPU waiting: no workers, or batches that are not pinned."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, cadence, loaders
from oomlint.analysis.answers import Node, finding
from oomlint.analysis.starving import device_copies, is_asynchronous, is_slow, loops_over, own, pins
from oomlint.rule import Claim, Finding, Rule, Severity


class StarvedLoader(Rule):
    """
    ## What it does
    Checks for training loops on a GPU whose DataLoader has no workers, while its dataset reads or
    decodes each sample, and for loaders whose batches are copied with `non_blocking=True` but not
    pinned.

    ## Why is this bad?
    Without workers the training process makes each batch itself, and the GPU waits. A copy from
    pageable memory goes through a pinned buffer first: `non_blocking=True` does not let it overlap
    with computation. This is advice and off by default.

    ## Example
    ```python
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Scans(Dataset):
        def __init__(self, paths):
            self.paths = paths

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            return torch.load(self.paths[index])

    def train(model, optimizer, paths):
        loader = DataLoader(Scans(paths), batch_size=32, shuffle=True)
        for scans in loader:
            optimizer.zero_grad()
            model(scans.cuda()).mean().backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Scans(Dataset):
        def __init__(self, paths):
            self.paths = paths

        def __len__(self):
            return len(self.paths)

        def __getitem__(self, index):
            return torch.load(self.paths[index])

    def train(model, optimizer, paths):
        loader = DataLoader(Scans(paths), batch_size=32, shuffle=True, num_workers=4)
        for scans in loader:
            optimizer.zero_grad()
            model(scans.cuda()).mean().backward()
            optimizer.step()
    ```

    ## Measured
    A step takes less time where workers read ahead. What pinned memory is worth only a GPU can
    show.

    ## References
    - [PyTorch: enable asynchronous data loading](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#enable-asynchronous-data-loading-and-augmentation)
    """

    code = "OOM903"
    name = "starved-loader"
    severity = Severity.ADVICE
    tokens = (("DataLoader",), (".backward(",), (".cuda(", ".to("), ("torch",))
    claims = (Claim.STEP_FASTER,)
    default = False

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for loader in loaders.loaders(module):
            if loader.has_workers is not False and pins(loader) is not False:
                continue
            for loop, function in loops_over(module, loader):
                if not any(cadence.updates(module, s, 0) for s in own(module, loop, function)):
                    continue
                copies = list(device_copies(module, loop, function))
                if not copies:
                    continue
                path: list[tuple[Node, str]] = [(copies[0].node, "its batches go to the device")]
                if loader.has_workers is False and is_slow(model, loader):
                    message = "without workers the GPU waits while each batch is read"
                    yield finding(model, self, loader.site.node, message, None, path)
                    break
                eager = [site for site in copies if is_asynchronous(site)]
                if pins(loader) is False and eager:
                    message = (
                        "its batches are not pinned: `non_blocking=True` copies them no earlier"
                    )
                    path = [(eager[0].node, "the copy is asked not to block")]
                    yield finding(model, self, loader.site.node, message, None, path)
                    break
