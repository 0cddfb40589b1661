"""Judges for claims about what stays allocated and how often the device is asked for something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from oomlint.rule import Claim
from oomlint.verify.record import Run, Step
from oomlint.verify.series import OFF_DEVICE, PEAK_BYTES, PEAK_SHARE, off_device, size, times, warm
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict


def bytes_fall(before: Run, after: Run) -> Verdict:
    """Decides by what is still requested at the ends of steps, in the median."""
    claim = Claim.BYTES_FALL
    if off_device(before, after):
        return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
    one, other = (median(s.requested for s in warm(run.steps)) for run in (before, after))
    shown = [size(median(s.allocated for s in warm(run.steps))) for run in (before, after)]
    change = one - other
    if abs(change) < PEAK_BYTES or abs(change) < PEAK_SHARE * max(one, other):
        return Verdict(NO_EFFECT, f"{shown[1]} stay allocated before and after", claim)
    if change > 0:
        reason = f"{shown[0]} stay allocated between steps before and {shown[1]} after"
        return Verdict(CONFIRMED, reason, claim)
    return Verdict(REFUTED, f"{shown[1]} stay allocated after, {shown[0]} before", claim)


@dataclass(frozen=True, slots=True)
class Counted:
    """What steps are counted by, and how a verdict words it."""

    claim: Claim
    things: str
    count: Callable[[Step], int | None]
    before: Callable[[float], str]
    after: Callable[[float], str] = lambda count: f"{count:g} after"


REQUESTS = Counted(
    Claim.DEVICE_ALLOCATIONS_FALL,
    "requests",
    lambda step: step.device_allocations,
    lambda count: f"a step asks the device for memory {times(count)} before",
    lambda count: f"{times(count)} after",
)
WAITS = Counted(
    Claim.WAITS_FALL,
    "waits",
    lambda step: step.waits,
    lambda count: f"the host waits for the device {times(count)} a step before",
)
COPIES = Counted(
    Claim.COPIES_FALL,
    "copies",
    lambda step: step.copies,
    lambda count: f"a step copies {count:g} tensor{'' if count == 1 else 's'} to the device before",
)


def falls(counted: Counted) -> Callable[[Run, Run], Verdict]:
    """A judge by the median of the warm steps; a count of None was not taken."""

    def judged(before: Run, after: Run) -> Verdict:
        claim = counted.claim
        if off_device(before, after):
            return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
        one, other = (
            [n for step in warm(run.steps) if (n := counted.count(step)) is not None]
            for run in (before, after)
        )
        if not one or not other:
            reason = f"only the emulated device counts {counted.things}"
            return Verdict(NOT_MEASURED, reason, claim)
        first, last = median(one), median(other)
        said = counted.before(first)
        if first == last:
            return Verdict(NO_EFFECT, f"{said} and after", claim)
        reason = f"{said} and {counted.after(last)}"
        return Verdict(CONFIRMED if first > last else REFUTED, reason, claim)

    return judged
