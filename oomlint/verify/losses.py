"""Whether a fix leaves losses, or else outputs, alone: the first step at which two runs differ."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oomlint.verify.record import ITERATION, Run

# Sums in another order; anything above is another number. Without a graph torch may take another
# kernel, which rounds otherwise.
ROUNDING, ROUNDING_OF_OUTPUTS = 1e-6, 1e-4
LOSSES, OUTPUTS = "losses", "outputs"


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of `steps` steps that both runs took; `first` (from 1) is where they part.

    `exact` is false where they are equal only up to rounding. Where no loss was seen, `what` are
    the outputs of models: of each iteration the sum of their magnitudes.
    """

    steps: int
    exact: bool = True
    first: int | None = None
    before: float | None = None
    after: float | None = None
    what: str = LOSSES
    unit: str = "step"

    @property
    def equal(self) -> bool:
        return self.first is None

    def __str__(self) -> str:
        if self.first is not None:
            return f"differ from {self.unit} {self.first} on ({self.before:.6g}, {self.after:.6g})"
        steps = f"{self.steps} {self.unit}" + ("" if self.steps == 1 else "s")
        return f"are equal at {steps}" + ("" if self.exact else " up to rounding")


def compare_losses(before: Run, after: Run) -> Losses | None:
    """None where the runs have no step in common at which a loss or an output was seen."""
    if before.unit != after.unit:
        return None
    unit = "iteration" if before.unit == ITERATION else "step"
    both = list(zip(before.steps, after.steps, strict=False))
    losses = [(one.loss, other.loss) for one, other in both]
    found = parting(losses, LOSSES, unit, ROUNDING)
    if found is not None:
        return found
    outputs = [(one.output, other.output) for one, other in both]
    return parting(outputs, OUTPUTS, unit, ROUNDING_OF_OUTPUTS)


def parting(
    both: list[tuple[float | None, float | None]], what: str, unit: str, share: float
) -> Losses | None:
    """Where two series part; None where they have no value at the same step."""
    pairs = [
        (number, one, other)
        for number, (one, other) in enumerate(both, 1)
        if one is not None and other is not None
    ]
    if not pairs:
        return None
    for number, one, other in pairs:
        if not same(one, other, share):
            return Losses(len(pairs), False, number, one, other, what, unit)
    exact = all(repr(one) == repr(other) for _, one, other in pairs)
    return Losses(len(pairs), exact, what=what, unit=unit)


def same(one: float, other: float, share: float) -> bool:
    if not (math.isfinite(one) and math.isfinite(other)):
        return repr(one) == repr(other)
    return abs(one - other) <= share * max(abs(one), abs(other), 1e-12)
