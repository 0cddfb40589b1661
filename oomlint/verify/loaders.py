"""Changes the batch size of a script's data loaders, and repeats data that would not last."""

from __future__ import annotations

import functools
from typing import Any

import torch


class Repeated:
    """A data set that begins again at its end."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset, self.samples = dataset, samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index % len(self.dataset)]

    def __getattr__(self, name: str) -> Any:
        if name in ("dataset", "samples", "__getitems__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Loaders:
    """Watches how loaders are made; `first` is the batch size of the first one."""

    def __init__(self, batch: int | None, enough: int | None) -> None:
        self.batch, self.enough = batch, enough
        self.first: int | None = None

    def install(self) -> None:
        loader: Any = torch.utils.data.DataLoader
        base = loader.__init__

        @functools.wraps(base)
        def made(this: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
            batched = kwargs.get("batch_sampler") is None and len(args) < 4
            own = args[0] if args else kwargs.get("batch_size", 1)
            if batched and type(own) is int:
                size = self.size(own)
                args, kwargs = (size, *args[1:]) if args else args, dict(kwargs)
                if not args:
                    kwargs["batch_size"] = size
                dataset = self.lasting(dataset, size, args, kwargs)
            base(this, dataset, *args, **kwargs)

        loader.__init__ = made

    def size(self, own: int) -> int:
        if self.first is None:
            self.first = own
        return self.batch if self.batch is not None and own == self.first else own

    def lasting(self, dataset: Any, size: int, args: Any, kwargs: dict[str, Any]) -> Any:
        if self.enough is None or kwargs.get("sampler") is not None or len(args) > 2:
            return dataset
        iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        if iterable or not hasattr(dataset, "__len__") or not len(dataset):
            return dataset
        wanted = size * self.enough
        return dataset if len(dataset) >= wanted else Repeated(dataset, wanted)
