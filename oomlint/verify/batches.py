"""Tensors and loaders that stand in for data, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify.values_by_name import BATCH, CLASSES, LENGTH, SIDE, VOCABULARY, WIDTH

# A sample of each kind, without the dimension of the batch.
SAMPLES: dict[str, Callable[[], Any]] = {
    "image": lambda: torch.rand(3, SIDE, SIDE),
    "grey": lambda: torch.rand(1, 28, 28),
    "vector": lambda: torch.randn(WIDTH),
    "tokens": lambda: torch.randint(0, VOCABULARY, (LENGTH,)),
    "mask": lambda: torch.ones(LENGTH, dtype=torch.long),
    "lengths": lambda: torch.tensor(LENGTH),
    "index": lambda: torch.randint(0, CLASSES, ()),
    "label": lambda: torch.randint(0, CLASSES, ()),
    "number": lambda: torch.rand(1),
    "floats": lambda: torch.rand(()),
    "dense": lambda: torch.randint(0, CLASSES, (SIDE, SIDE)),
    "heat": lambda: torch.rand(1, SIDE, SIDE).round(),
    "boxes": lambda: boxes(),
}
SHOWN = {
    "image": f"images of 3x{SIDE}x{SIDE}",
    "grey": "images of 1x28x28",
    "images": f"a list of images of 3x{SIDE}x{SIDE}",
    "vector": f"vectors of {WIDTH}",
    "tokens": f"{LENGTH} tokens of {VOCABULARY}",
    "mask": f"a mask of ones for {LENGTH} tokens",
    "lengths": f"lengths of {LENGTH}",
    "index": "indices",
    "label": f"labels of {CLASSES} classes",
    "number": "a float column",
    "floats": "floats",
    "dense": f"a class for each of {SIDE}x{SIDE} pixels",
    "heat": f"maps of 1x{SIDE}x{SIDE} zeros and ones",
    "boxes": "dicts of boxes and labels",
}
TARGETS = frozenset(("label", "number", "floats", "dense", "heat", "tokens", "boxes"))


def boxes() -> dict[str, torch.Tensor]:
    corners = torch.rand(3, 2) * SIDE / 2
    return {
        "boxes": torch.cat([corners, corners + SIDE / 4], 1),
        "labels": torch.randint(1, CLASSES, (3,)),
        "image_id": torch.tensor(0),
        "area": torch.full((3,), SIDE * SIDE / 16.0),
        "iscrowd": torch.zeros(3, dtype=torch.long),
        "orig_size": torch.tensor([SIDE, SIDE]),
        "size": torch.tensor([SIDE, SIDE]),
    }


class Fields(dict[str, Any]):
    """A batch or an output whose parts are had by key, by attribute and by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getitem__(self, key: Any) -> Any:
        return list(self.values())[key] if isinstance(key, int) else super().__getitem__(key)

    def to(self, *args: Any, **kwargs: Any) -> Fields:
        return Fields({k: v.to(*args, **kwargs) if tensor(v) else v for k, v in self.items()})

    def cuda(self, *args: Any, **kwargs: Any) -> Fields:
        return self.to("cuda")


class Outputs(Fields):
    """An output that has every part: one that nobody planned is the first."""

    def __missing__(self, key: str) -> Any:
        return next(iter(self.values()))


def tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def built(structure: Any, make: Callable[[str], Any], kind: type[Fields] = Fields) -> Any:
    """The structure with something in the place of every name."""
    if isinstance(structure, str):
        return make(structure)
    if isinstance(structure, dict):
        return kind({key: built(inner, make, kind) for key, inner in structure.items()})
    parts = [built(inner, make, kind) for inner in structure]
    return tuple(parts) if kind is Outputs else parts  # torch collates tuples to lists


def batch_of(kind: str, size: int = BATCH) -> Any:
    if kind in ("images", "boxes"):
        return [SAMPLES["image" if kind == "images" else kind]() for _ in range(size)]
    return torch.stack([SAMPLES[kind]() for _ in range(size)])


class Samples(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Batches that were drawn once; what else a function asks of a dataset is permitted."""

    def __init__(self, structure: Any, kinds: dict[str, str], count: int, other: Any) -> None:
        self.batches = [built(structure, lambda name: batch_of(kinds[name])) for _ in range(count)]
        self.other = other

    def __len__(self) -> int:
        return len(self.batches) * BATCH

    def __getitem__(self, index: int) -> Any:
        return self.batches[index // BATCH], index % BATCH

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "other":
            raise AttributeError(name)
        return getattr(self.other, name)


class Drawn(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Single samples that were drawn once, for a function that makes its loader itself."""

    def __init__(self, structure: Any, kinds: dict[str, str], count: int) -> None:
        def drawn(name: str) -> Any:
            return SAMPLES["image" if kinds[name] == "images" else kinds[name]]()

        self.samples = [built(structure, drawn) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


class InOrder(torch.utils.data.SequentialSampler):  # type: ignore[misc]
    """A sampler that can be told the epoch, as a distributed one."""

    def set_epoch(self, epoch: int) -> None:
        return None


def whole(items: list[Any]) -> Any:
    """A batch that was drawn whole."""
    return copied(items[0][0])


def copied(value: Any) -> Any:
    if tensor(value):
        return value.clone()
    if isinstance(value, Fields):
        return Fields({key: copied(inner) for key, inner in value.items()})
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return (
        type(value)(copied(inner) for inner in value) if isinstance(value, list | tuple) else value
    )


def loader(structure: Any, kinds: dict[str, str], count: int, other: Any) -> Any:
    """A DataLoader over `count` batches of this structure."""
    samples = Samples(structure, kinds, count, other)
    return torch.utils.data.DataLoader(
        samples, batch_size=BATCH, sampler=InOrder(samples), collate_fn=whole
    )
