"""What models return in an iteration that trains nothing, as one number to compare runs by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Outputs:
    """Sums the magnitudes of the floating-point outputs of outermost modules."""

    def __init__(self, meter: Any) -> None:
        self.meter = meter
        self.inside = False
        self.sums: list[float] = []

    def around(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.inside:
            return original(*args, **kwargs)
        self.inside = True
        try:
            output = original(*args, **kwargs)
        finally:
            self.inside = False
        with self.meter.paused(), torch.no_grad():
            self.sums += [magnitude(value) for value in tensors(output)]
        return output

    def new(self) -> float | None:
        """The sum since the last call, None where no module returned a number."""
        sums, self.sums = self.sums, []
        return math.fsum(sums) if sums else None


def magnitude(value: torch.Tensor) -> float:
    return float(value.detach().double().abs().sum())


def tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from tensors(inner)
