"""Judges for claims about what stays allocated and how often the device is asked for memory."""

from __future__ import annotations

from statistics import median

from oomlint.rule import Claim
from oomlint.verify.record import Run
from oomlint.verify.series import OFF_DEVICE, PEAK_BYTES, PEAK_SHARE, off_device, size, warm
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


def device_allocations_fall(before: Run, after: Run) -> Verdict:
    """A warm step that the cache serves asks the device for nothing."""
    claim = Claim.DEVICE_ALLOCATIONS_FALL
    if off_device(before, after):
        return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
    one, other = (median(s.device_allocations for s in warm(run.steps)) for run in (before, after))
    if one == other:
        again = f"a step asks the device for memory {one:g} times before and after"
        return Verdict(NO_EFFECT, again, claim)
    reason = f"a step asks the device for memory {one:g} times before and {other:g} times after"
    return Verdict(CONFIRMED if one > other else REFUTED, reason, claim)


def waits_fall(before: Run, after: Run) -> Verdict:
    claim = Claim.WAITS_FALL
    if off_device(before, after):
        return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
    one, other = (
        [s.waits for s in warm(run.steps) if s.waits is not None] for run in (before, after)
    )
    if not one or not other:
        return Verdict(NOT_MEASURED, "only the emulated device counts waits", claim)
    first, last = median(one), median(other)
    if first == last:
        again = f"the host waits for the device {first:g} times a step before and after"
        return Verdict(NO_EFFECT, again, claim)
    reason = f"the host waits for the device {first:g} times a step before and {last:g} after"
    return Verdict(CONFIRMED if first > last else REFUTED, reason, claim)
