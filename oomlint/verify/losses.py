"""Whether a fix leaves the losses alone: the first step at which two runs differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oomlint.verify.record import Run

# Sums in another order; anything above is another number.
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of `steps` steps that both runs took; `first` (from 1) is where they part.

    `exact` is false where they are equal only up to rounding.
    """

    steps: int
    exact: bool = True
    first: int | None = None
    before: float | None = None
    after: float | None = None

    @property
    def equal(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        if self.first is not None:
            return f"differ from step {self.first} on ({self.before:.6g}, {self.after:.6g})"
        steps = "1 step" if self.steps == 1 else f"{self.steps} steps"
        return f"are equal at {steps}" + ("" if self.exact else " up to rounding")


def compare_losses(before: Run, after: Run) -> Losses | None:
    """None where the runs have no step in common at which a loss was seen."""
    if before.unit != after.unit:
        return None
    pairs = [
        (number, one.loss, other.loss)
        for number, (one, other) in enumerate(zip(before.steps, after.steps, strict=False), 1)
        if one.loss is not None and other.loss is not None
    ]
    if not pairs:
        return None
    for number, one, other in pairs:
        if not same(one, other):
            return Losses(len(pairs), False, number, one, other)
    return Losses(len(pairs), all(repr(one) == repr(other) for _, one, other in pairs))


def same(one: float, other: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return repr(one) == repr(other)
    return abs(one - other) <= ROUNDING * max(abs(one), abs(other), 1e-12)
