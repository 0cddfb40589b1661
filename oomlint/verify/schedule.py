"""Judges claims about when things happen: advances of the schedule, sizes of windows."""

from __future__ import annotations

from statistics import median

from oomlint.rule import Claim
from oomlint.verify.record import Step
from oomlint.verify.series import taken
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

SKIPPED = "every step was skipped by the gradient scaler"


def schedule_from_start(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.SCHEDULE_FROM_START
    if not before or not after:
        return Verdict(NOT_MEASURED, "no step was attempted in both runs", claim)
    if not advances(before) or not advances(after):
        return Verdict(NOT_MEASURED, "no scheduler of torch advances between two steps", claim)
    one, other = before[0].advances, after[0].advances
    if one and not other:
        reason = f"the schedule advances {times(one)} before the first step, and after the fix not"
        return Verdict(CONFIRMED, reason, claim)
    if other and not one:
        return Verdict(REFUTED, "the schedule advances before the first step only after it", claim)
    same = "other than the first" if one else "the first"
    return Verdict(NO_EFFECT, f"the first step's learning rate is {same} before and after", claim)


def schedule_per_step(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.SCHEDULE_PER_STEP
    if len(before) < 2 or len(after) < 2:
        return Verdict(NOT_MEASURED, "a schedule needs at least two steps", claim)
    one, other = (median(step.advances for step in steps[1:]) for steps in (before, after))
    passes = median(step.backwards for step in before[1:])
    if one == other:
        return Verdict(NO_EFFECT, f"the schedule advances {times(one)} a step throughout", claim)
    if one > 1 and one == passes and other == 1:
        reason = f"the schedule advances {times(one)} a step before and once after"
        return Verdict(CONFIRMED, f"{reason}: {passes:g} backward passes make a step", claim)
    return Verdict(REFUTED, f"the schedule advances {times(other)} a step after the fix", claim)


def windows_equal(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.WINDOWS_EQUAL
    one, other = taken(before), taken(after)
    if not one or not other:
        return Verdict(NOT_MEASURED, SKIPPED, claim)
    if len(one) < 3 or len(other) < 3:
        return Verdict(NOT_MEASURED, "windows are compared from three steps on", claim)
    sizes, repaired = [[step.held for step in steps[:3]] for steps in (one, other)]
    odd_before, odd_after = is_odd(sizes), is_odd(repaired)
    if odd_before and not odd_after and repaired[0] == sizes[1]:
        reason = f"the first step sees {sizes[0]} of {sizes[1]} micro-batches before and "
        return Verdict(CONFIRMED, f"{reason}{repaired[0]} after", claim)
    if odd_after and not odd_before:
        reason = f"after the fix the first step sees {repaired[0]} of {repaired[1]} micro-batches"
        return Verdict(REFUTED, reason, claim)
    same = "differs from the others" if odd_after else "is like the others"
    return Verdict(NO_EFFECT, f"the first window {same} before and after", claim)


def is_odd(sizes: list[int]) -> bool:
    """Whether only the first window has another size than those behind it."""
    return sizes[0] != sizes[1] == sizes[2]


def advances(steps: tuple[Step, ...]) -> int:
    return sum(step.advances for step in steps)


def times(count: float) -> str:
    return "once" if count == 1 else "never" if not count else f"{count:g} times"
