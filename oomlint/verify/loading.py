"""Judges for claims about how data reaches a step: workers, what they hold, seeds."""

from __future__ import annotations

from oomlint.rule import Claim
from oomlint.verify.record import Run, Step
from oomlint.verify.series import differs, size
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# Pages that interpreters write to for themselves differ from run to run.
WORKER_SHARE, WORKER_BYTES = 0.25, 4 * 1024**2

# Sums in another order stay far inside of this share; other random numbers do not.
SAME_SHARE = 1e-4


def runs_agree(before: Run, after: Run) -> Verdict:
    """By the losses and gradients of two runs that began with different random generators."""
    claim = Claim.RUNS_AGREE
    if before.other is None or after.other is None:
        return Verdict(NOT_MEASURED, "the script was run from one seed only", claim)
    first, last = (differing(run.steps, run.other or ()) for run in (before, after))
    if (first is None) == (last is None):
        same = "agree" if last is None else "differ"
        return Verdict(NO_EFFECT, f"two runs {same} before and after", claim)
    reason = f"two runs differ from step {first or last} on"
    if first is None:
        return Verdict(REFUTED, f"{reason}, only after the fix", claim)
    return Verdict(CONFIRMED, f"{reason} before, and agree after", claim)


def differing(steps: tuple[Step, ...], others: tuple[Step, ...]) -> int | None:
    """The first step, from 1, at which two runs have another loss or gradient."""
    for number, (one, other) in enumerate(zip(steps, others, strict=False), 1):
        for value, again in ((one.loss, other.loss), (one.gradient_norm, other.gradient_norm)):
            if value is not None and again is not None and differs(value, again, SAME_SHARE):
                return number
    return None if len(steps) == len(others) else min(len(steps), len(others)) + 1


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
