"""Judges for claims about how data reaches the device: copies, workers and what they hold."""

from __future__ import annotations

from statistics import median

from oomlint.rule import Claim
from oomlint.verify.record import Run
from oomlint.verify.series import OFF_DEVICE, off_device, size, warm
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# Pages that interpreters write to for themselves differ from run to run.
WORKER_SHARE, WORKER_BYTES = 0.25, 4 * 1024**2


def copies_fall(before: Run, after: Run) -> Verdict:
    claim = Claim.COPIES_FALL
    if off_device(before, after):
        return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
    one, other = (
        [s.copies for s in warm(run.steps) if s.copies is not None] for run in (before, after)
    )
    if not one or not other:
        return Verdict(NOT_MEASURED, "only the emulated device counts copies", claim)
    first, last = median(one), median(other)
    if first == last:
        again = f"a step copies {first:g} tensors to the device before and after"
        return Verdict(NO_EFFECT, again, claim)
    reason = f"a step copies {first:g} tensors to the device before and {last:g} after"
    return Verdict(CONFIRMED if first > last else REFUTED, reason, claim)


def fewer_workers(before: Run, after: Run) -> Verdict:
    """By those that were started after the first step: every loader needs its first ones."""
    claim = Claim.FEWER_WORKERS
    counts = [sum(step.workers for step in run.steps[1:]) for run in (before, after)]
    if counts[0] == counts[1]:
        again = f"{counts[0]} workers are started after the first step before and after"
        return Verdict(NO_EFFECT, again, claim)
    reason = f"{counts[0]} workers are started after the first step before and {counts[1]} after"
    return Verdict(CONFIRMED if counts[0] > counts[1] else REFUTED, reason, claim)


def worker_bytes_fall(before: Run, after: Run) -> Verdict:
    """By the most that the worker processes held at the end of a step."""
    claim = Claim.WORKER_BYTES_FALL
    one, other = (
        max((s.worker_bytes for s in run.steps if s.worker_bytes is not None), default=None)
        for run in (before, after)
    )
    if one is None or other is None:
        return Verdict(NOT_MEASURED, "no worker process was alive at the end of a step", claim)
    change = abs(one - other)
    if change < WORKER_BYTES or change < WORKER_SHARE * max(one, other):
        again = f"the workers hold {size(other)} of their own before and after"
        return Verdict(NO_EFFECT, again, claim)
    reason = f"the workers hold {size(one)} of their own before and {size(other)} after"
    return Verdict(CONFIRMED if one > other else REFUTED, reason, claim)
