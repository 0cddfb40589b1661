"""Judge for claims about time: only a gap far wider than the scatter of the steps counts."""

from __future__ import annotations

from statistics import median, quantiles

from oomlint.rule import Claim
from oomlint.verify.record import Run
from oomlint.verify.series import warm
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# The slow quarter of the fast run against the fast quarter of the slow one.
GAP = 1.5
FEWEST_STEPS = 3


def step_faster(before: Run, after: Run) -> Verdict:
    claim = Claim.STEP_FASTER
    one, other = ([step.seconds for step in warm(run.steps)] for run in (before, after))
    if min(len(one), len(other)) < FEWEST_STEPS:
        return Verdict(NOT_MEASURED, f"times need at least {FEWEST_STEPS} steps", claim)
    shown = [f"{median(times) * 1000:.3g} ms" for times in (one, other)]
    if apart(other, one):
        reason = f"a step takes {shown[0]} before and {shown[1]} after"
        return Verdict(CONFIRMED, reason, claim)
    if apart(one, other):
        return Verdict(REFUTED, f"a step takes {shown[1]} after, {shown[0]} before", claim)
    return Verdict(NO_EFFECT, "a step takes about as long before and after", claim)


def apart(fast: list[float], slow: list[float]) -> bool:
    return quantiles(fast, n=4)[2] * GAP < quantiles(slow, n=4)[0]
