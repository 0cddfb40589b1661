"""OOM409: a dataset or collate function that uses the GPU inside of a worker process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis.answers import finding
from oomlint.analysis.loaders import Loader
from oomlint.analysis.worker_devices import WORDS, inline, moves, run_in_workers
from oomlint.rule import Claim, Finding, Rule, Severity


class CudaInWorker(Rule):
    """
    ## What it does
    Checks for tensors that a Dataset or a collate function puts on the GPU while a DataLoader
    runs it in worker processes.

    ## Why is this bad?
    A forked worker cannot use CUDA: once the parent has, the first batch raises "Cannot
    re-initialize CUDA in forked subprocess". A spawned worker can, but opens a CUDA context of its
    own, hundreds of MiB for each of them.

    ## Example
    ```python
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Tiles(Dataset):
        def __init__(self, tiles):
            self.tiles = tiles

        def __len__(self):
            return len(self.tiles)

        def __getitem__(self, index):
            return torch.from_numpy(self.tiles[index]).cuda()

    def load(tiles):
        return DataLoader(Tiles(tiles), batch_size=32, num_workers=4)
    ```

    Use instead:
    ```python
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Tiles(Dataset):
        def __init__(self, tiles):
            self.tiles = tiles

        def __len__(self):
            return len(self.tiles)

        def __getitem__(self, index):
            return torch.from_numpy(self.tiles[index])

    def load(tiles):
        return DataLoader(Tiles(tiles), batch_size=32, num_workers=4, pin_memory=True)

    def batches(tiles):
        for batch in load(tiles):
            yield batch.cuda(non_blocking=True)
    ```

    ## Measured
    The error is gone: before, the script raises at the first batch; after, it trains.

    ## References
    - [PyTorch: CUDA in multiprocessing](https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#cuda-in-multiprocessing)
    """

    code = "OOM409"
    name = "cuda-in-worker"
    severity = Severity.ERROR
    tokens = (
        ("__getitem__", "__getitems__", "__iter__", "collate_fn"),
        WORDS,
        ("Dataset", "DataLoader"),
        ("torch",),
    )
    texts = ("cuda",)
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        found: dict[ast.Call, Loader] = {}
        for function, loader in run_in_workers(model):
            for site in moves(model.module, function):
                found.setdefault(site.node, loader)
        for site, loader in inline(model.module):
            found.setdefault(site.node, loader)
        for node, loader in found.items():
            message = (
                "a loader's worker process runs this: a forked one cannot use CUDA, a spawned "
                "one opens a CUDA context of its own"
            )
            path = []
            if loader.module is model.module:
                path = [(loader.site.node, "the loader runs it in worker processes")]
            yield finding(model, self, node, message, None, path)
