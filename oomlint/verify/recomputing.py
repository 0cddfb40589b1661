"""Counts how often checkpointed functions run again in a backward pass, and judges the counts."""

from __future__ import annotations

from typing import Any

from oomlint.rule import Claim
from oomlint.verify.record import Run
from oomlint.verify.series import PEAK_BYTES, PEAK_SHARE, size, warm
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, REFUTED, Verdict


class Checkpoints:
    """Runs of checkpointed functions beyond the first of each."""

    def __init__(self) -> None:
        self.again = 0

    def counting(self, function: Any) -> Any:
        first = True

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal first
            self.again += not first
            first = False
            return function(*args, **kwargs)

        return counted

    def taken(self) -> int:
        """Recomputations since the last call."""
        new, self.again = self.again, 0
        return new


def recomputations_fall(before: Run, after: Run) -> Verdict:
    """Work that is gone while the peak did not rise: what was recomputed saved nothing."""
    claim = Claim.RECOMPUTATIONS_FALL
    one, other = (
        sum(step.recomputations for step in run.steps) / max(len(run.steps), 1)
        for run in (before, after)
    )
    if one == other:
        return Verdict(NO_EFFECT, f"{one:g} functions run again a step before and after", claim)
    first, last = (max(step.requested_peak for step in warm(run.steps)) for run in (before, after))
    reason = f"{one:g} checkpointed functions run again a step before, {other:g} after"
    if other > one:
        return Verdict(REFUTED, reason, claim)
    if last - first > max(PEAK_BYTES, PEAK_SHARE * first):
        return Verdict(REFUTED, f"{reason}, and the peak rises to {size(last)}", claim)
    moved = "falls to" if first - last > max(PEAK_BYTES, PEAK_SHARE * first) else "stays at"
    return Verdict(CONFIRMED, f"{reason}; the peak {moved} {size(last)}", claim)
