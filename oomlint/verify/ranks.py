"""Judges claims about several ranks of one run: their gradients, their samples, their shards."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from oomlint.rule import Claim
from oomlint.verify.record import Run, Step
from oomlint.verify.series import BOUND_SHARE, differs
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# The weakest first: what one rank does not show is not confirmed.
ORDER = (REFUTED, NOT_MEASURED, NO_EFFECT, CONFIRMED)


def of_rank(run: Run, rank: int) -> Run:
    """A run as one of its ranks has seen it."""
    return replace(run, steps=run.peers[rank - 1] if rank else run.steps, peers=())


def on_every_rank(judge: Callable[[Run, Run], Verdict]) -> Callable[[Run, Run], Verdict]:
    """Confirmed only where each rank by itself confirms, and their gradients agree as before."""

    def judged(before: Run, after: Run) -> Verdict:
        ranks = 1 + min(len(before.peers), len(after.peers))
        if ranks == 1:
            return judge(before, after)
        verdicts = [judge(of_rank(before, rank), of_rank(after, rank)) for rank in range(ranks)]
        weakest = min(verdicts, key=lambda verdict: ORDER.index(verdict.kind))
        if weakest.kind != CONFIRMED:
            return weakest
        if disagreeing(after) > disagreeing(before):
            reason = "the ranks' gradients differ only after the fix"
            return Verdict(REFUTED, reason, weakest.claim, weakest.optimizer)
        return replace(weakest, reason=f"on each of {ranks} ranks, {weakest.reason}")

    return judged


def disagreeing(run: Run) -> int:
    """Steps at which the ranks' gradients are not the same, byte for byte."""
    return sum(len({step.fingerprint for step in steps}) > 1 for steps in together(run))


def together(run: Run) -> list[tuple[Step, ...]]:
    """The steps of all ranks, side by side, as far as all of them came."""
    return list(zip(run.steps, *run.peers, strict=False))


def gradients_agree(before: Run, after: Run) -> Verdict:
    claim = Claim.RANKS_AGREE
    if not together(before) or not together(after):
        return Verdict(NOT_MEASURED, "no step was taken by every rank", claim)
    one, other = disagreeing(before), disagreeing(after)
    counts = len(together(before)), len(together(after))
    reason = f"the ranks' gradients differ at {one} of {counts[0]} steps before"
    reason = f"{reason} and at {other} of {counts[1]} after"
    if bool(one) == bool(other):
        return Verdict(NO_EFFECT, reason, claim)
    return Verdict(CONFIRMED if one else REFUTED, reason, claim)


def samples_differ(before: Run, after: Run) -> Verdict:
    claim = Claim.SAMPLES_DIFFER
    if not before.peers or not after.peers:
        return Verdict(NOT_MEASURED, "one rank has nobody to share samples with", claim)
    seen = [[set(samples(steps)) for steps in (run.steps, *run.peers)] for run in (before, after)]
    if not all(all(ranks) for ranks in seen):
        return Verdict(NOT_MEASURED, "no data-parallel model was given samples", claim)
    one, other = (len(set.intersection(*ranks)) / len(ranks[0]) for ranks in seen)
    reason = f"{one:.0%} of a rank's samples are on every rank before, {other:.0%} after"
    if one == other:
        return Verdict(NO_EFFECT, reason, claim)
    return Verdict(CONFIRMED if one > other else REFUTED, reason, claim)


def samples(steps: tuple[Step, ...]) -> list[str]:
    return [sample for step in steps for sample in step.samples]


def epochs_differ(before: Run, after: Run) -> Verdict:
    """By the samples from one sight of the first to the next."""
    claim = Claim.EPOCHS_DIFFER
    repeated = [repeats(samples(run.steps)) for run in (before, after)]
    if repeated[0] is None or (repeated[1] is None and not repeated[0]):
        return Verdict(NOT_MEASURED, "the steps do not reach a second epoch", claim)
    if bool(repeated[0]) == bool(repeated[1]):
        same = "the same" if repeated[0] else "another"
        return Verdict(NO_EFFECT, f"an epoch has {same} order before and after", claim)
    if repeated[0]:
        reason = "every epoch brings the samples in the same order before, in another one after"
        return Verdict(CONFIRMED, reason, claim)
    return Verdict(REFUTED, "only after the fix every epoch has the same order", claim)


def repeats(seen: list[str]) -> bool | None:
    """Whether the samples come again in the same order; None where none comes again."""
    again = next((i for i, sample in enumerate(seen) if sample in seen[:i]), None)
    if again is None:
        return None
    count = min(again, len(seen) - again)
    return seen[:count] == seen[again : again + count]


def shards_bounded(before: Run, after: Run) -> Verdict:
    """The norm of a gradient whose parts lie on several ranks is that of all parts together."""
    claim = Claim.SHARDS_BOUNDED
    if not before.peers or not after.peers:
        return Verdict(NOT_MEASURED, "one rank holds the whole gradient", claim)
    bounds = [s.max_norm for s in (*after.steps, *before.steps) if s.max_norm is not None]
    if not bounds:
        return Verdict(NOT_MEASURED, "no call that clips gradients was seen", claim)
    bound = bounds[0]
    one, other = largest(before), largest(after)
    if not one or not other:
        return Verdict(NOT_MEASURED, "no gradient was seen at a step", claim)
    over = [norm > bound * (1 + BOUND_SHARE) for norm in (one, other)]
    reason = f"with max_norm {bound:g} the norm over all ranks reaches {one:.4g} before"
    reason = f"{reason} and {other:.4g} after"
    if over[0] == over[1] or not differs(one, other):
        return Verdict(NO_EFFECT, reason, claim)
    return Verdict(CONFIRMED if over[0] else REFUTED, reason, claim)


def largest(run: Run) -> float:
    """The largest norm that the shards of a gradient have together."""
    return max(
        (math.sqrt(sum((s.gradient_norm or 0.0) ** 2 for s in steps)) for steps in together(run)),
        default=0.0,
    )
