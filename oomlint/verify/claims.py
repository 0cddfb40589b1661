"""One judge for each claim: two series of steps in, a verdict with its numbers out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import median

from oomlint.rule import Claim
from oomlint.verify.behaviour import (
    fewer_train,
    gradient_rises,
    gradients_arrive,
    kept_weights_stay,
    trains_in_training_mode,
)
from oomlint.verify.loading import fewer_workers, runs_agree, worker_bytes_fall
from oomlint.verify.memory_claims import COPIES, REQUESTS, WAITS, bytes_fall, falls
from oomlint.verify.pace import step_faster
from oomlint.verify.precision import (
    gradients_survive,
    scaler_at_rest,
    steps_taken,
    warning_gone,
)
from oomlint.verify.ranks import epochs_differ, gradients_agree, samples_differ, shards_bounded
from oomlint.verify.recomputing import recomputations_fall
from oomlint.verify.record import Run, Step
from oomlint.verify.reductions import ranks_agree, reductions_fall, unused_search_gone
from oomlint.verify.schedule import schedule_from_start, schedule_per_step, windows_equal
from oomlint.verify.series import (
    BOUND_SHARE,
    GROWTH_BYTES,
    GROWTH_NODES,
    NORM_SHARE,
    OFF_DEVICE,
    PEAK_BYTES,
    PEAK_SHARE,
    WRONG_FACTOR,
    by_optimizer,
    differs,
    main_steps,
    off_device,
    rises,
    size,
    steady,
    taken,
    warm,
)
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# Claims about memory hold for the iterations of a loop too; the others need an optimizer's steps.
ANY_LOOP = frozenset(
    {
        Claim.PEAK_FALLS,
        Claim.STEP_FASTER,
        Claim.GROWTH_STOPS,
        Claim.NODES_STOP,
        Claim.ERROR_GONE,
        Claim.BYTES_FALL,
        Claim.DEVICE_ALLOCATIONS_FALL,
        Claim.WAITS_FALL,
        Claim.COPIES_FALL,
        Claim.FEWER_WORKERS,
        Claim.WORKER_BYTES_FALL,
    }
)
# These show in whatever the script trains, also where workers alone run the code of a finding.
ANYWHERE = frozenset({Claim.ERROR_GONE})


def strongest(verdicts: list[Verdict]) -> Verdict | None:
    """Any one confirms; a refutation outweighs what has no effect or was not measured."""
    for kind in (CONFIRMED, REFUTED, NO_EFFECT, NOT_MEASURED):
        for verdict in verdicts:
            if verdict.kind == kind:
                return verdict
    return None


def per_optimizer(
    judge: Callable[[tuple[Step, ...], tuple[Step, ...]], Verdict],
) -> Callable[[Run, Run], Verdict]:
    """Judges each optimizer by itself: one that confirms is enough, one that refutes comes next."""

    def judged(before: Run, after: Run) -> Verdict:
        verdicts = [
            replace(judge(*pair), optimizer=pair[0][0].optimizer)
            for pair in by_optimizer(before, after)
        ]
        return strongest(verdicts) or Verdict(NOT_MEASURED, "no optimizer steps in both runs")

    return judged


def peak_falls(before: Run, after: Run) -> Verdict:
    """Decides by requested bytes, which do not depend on what was allocated earlier."""
    claim = Claim.PEAK_FALLS
    if off_device(before, after):
        return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
    one = max(step.requested_peak for step in warm(before.steps))
    other = max(step.requested_peak for step in warm(after.steps))
    shown = [size(max(step.allocated_peak for step in warm(run.steps))) for run in (before, after)]
    change = one - other
    if abs(change) < PEAK_BYTES or abs(change) < PEAK_SHARE * max(one, other):
        return Verdict(NO_EFFECT, f"the peak of device bytes stays at {shown[1]}", claim)
    movement = f"from {shown[0]} to {shown[1]}"
    if change > 0:
        reason = f"the peak of device bytes falls by {change / one:.0%}, {movement}"
        return Verdict(CONFIRMED, reason, claim)
    return Verdict(REFUTED, f"the peak of device bytes rises {movement}", claim)


def growth_stops(before: Run, after: Run) -> Verdict:
    claim = Claim.GROWTH_STOPS
    if off_device(before, after):
        return Verdict(NOT_MEASURED, OFF_DEVICE, claim)
    one, other = (rises(main_steps(run), lambda step: step.allocated) for run in (before, after))
    return stops(one, other, GROWTH_BYTES, claim, "device bytes", size)


def nodes_stop(before: Run, after: Run) -> Verdict:
    one, other = (rises(main_steps(run), lambda step: step.nodes) for run in (before, after))
    what, show = "live autograd nodes", lambda value: f"{value:g}"
    return stops(one, other, GROWTH_NODES, Claim.NODES_STOP, what, show)


def stops(
    rises_before: list[float],
    rises_after: list[float],
    least: float,
    claim: Claim,
    what: str,
    show: Callable[[float], str],
) -> Verdict:
    one, other = steady(rises_before, least), steady(rises_after, least)
    if one is None or other is None:
        return Verdict(NOT_MEASURED, "growth needs at least two steps in a row", claim)
    if one and not other:
        reason = f"{what} grow by {show(one)} a step before and not at all after"
        return Verdict(CONFIRMED, reason, claim)
    if other and not one:
        return Verdict(REFUTED, f"{what} grow by {show(other)} a step only after the fix", claim)
    if not one:
        some = any(rise >= least for rise in (*rises_before, *rises_after))
        how = "steadily before or after" if some else "before or after"
        return Verdict(NO_EFFECT, f"{what} do not grow {how}", claim)
    return Verdict(
        NO_EFFECT, f"{what} grow by {show(other or 0.0)} a step after the fix too", claim
    )


def comparable(before: tuple[Step, ...], after: tuple[Step, ...]) -> tuple[Step, Step] | None:
    """The first step taken by both from the same parameters."""
    for one, other in zip(before, after, strict=False):
        if not one.skipped and not other.skipped:
            if one.gradient_norm is None or other.gradient_norm is None:
                return None
            return one, other
        if one.skipped != other.skipped:
            return None  # one of them has moved
    return None


def gradient_shrinks(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.GRADIENT_SHRINKS
    pair = comparable(before, after)
    if pair is None:
        return Verdict(NOT_MEASURED, "no step was taken from the same parameters in both", claim)
    first, last = (
        step.raw_norm if step.raw_norm is not None else step.gradient_norm or 0.0 for step in pair
    )
    passes = pair[0].held
    if not differs(first, last):
        return Verdict(NO_EFFECT, f"the gradient norm stays at {last:.4g}", claim)
    if not last or not first or not math.isfinite(first / last):
        return Verdict(NOT_MEASURED, "the gradient is zero or not finite", claim)
    ratio = first / last
    if passes > 1 and abs(ratio - passes) <= NORM_SHARE * passes:
        reason = f"the gradient norm falls {ratio:.3g} times ({first:.4g} to {last:.4g}): "
        return Verdict(CONFIRMED, reason + f"{passes} backward passes make a step", claim)
    return Verdict(
        REFUTED,
        f"the gradient norm goes from {first:.4g} to {last:.4g}, not to 1/{passes} of it",
        claim,
    )


def parameters_move(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.PARAMETERS_MOVE
    one = [step.update_norm or 0.0 for step in taken(before)]
    other = [step.update_norm or 0.0 for step in taken(after)]
    if not one or not other:
        return Verdict(NOT_MEASURED, "every step was skipped by the gradient scaler", claim)
    still, moving = not any(one), all(value > 0 for value in other)
    if still and moving:
        reason = f"no parameter moves before; after, a step moves them by {median(other):.3g}"
        return Verdict(CONFIRMED, reason, claim)
    if any(one) and not any(other):
        return Verdict(REFUTED, "the parameters move only before the fix", claim)
    if still:
        return Verdict(NO_EFFECT, "no parameter moves before or after", claim)
    return Verdict(NO_EFFECT, "the parameters move before the fix too", claim)


def gradient_whole(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.GRADIENT_WHOLE
    one, other = taken(before), taken(after)
    if not one or not other:
        return Verdict(NOT_MEASURED, "every step was skipped by the gradient scaler", claim)
    lost_before, lost_after = lost(one), lost(other)
    if lost_before and not lost_after:
        held, made = first_lossy(one)
        reason = f"a step sees {held} of {made} backward passes before and all of them after"
        return Verdict(CONFIRMED, reason, claim)
    if lost_after and not lost_before:
        held, made = first_lossy(other)
        return Verdict(REFUTED, f"a step sees only {held} of {made} backward passes after", claim)
    same = "some are lost" if lost_after else "every step sees all its backward passes"
    return Verdict(NO_EFFECT, f"{same} before and after", claim)


def lost(steps: tuple[Step, ...]) -> bool:
    return any(step.held < step.backwards for step in steps)


def first_lossy(steps: tuple[Step, ...]) -> tuple[int, int]:
    return next((s.held, s.backwards) for s in steps if s.held < s.backwards)


def gradient_stops_growing(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.GRADIENT_STOPS_GROWING
    one, other = taken(before), taken(after)
    if len(one) < 2 or len(other) < 2:
        return Verdict(NOT_MEASURED, "growth needs at least two steps", claim)
    piles_before, piles_after = piles_up(one), piles_up(other)
    if piles_before == piles_after:
        again = "piles up before and after" if piles_after else "is fresh before and after"
        return Verdict(NO_EFFECT, f"the gradient at the step {again}", claim)
    if piles_after:
        reason = f"after the fix a step sees the gradients of up to {other[-1].held} passes"
        return Verdict(REFUTED, reason, claim)
    first, last = one[-1].gradient_norm or 0.0, other[-1].gradient_norm or 0.0
    if not differs(first, last):
        return Verdict(NO_EFFECT, f"the gradient norm stays at {last:.4g}", claim)
    reason = (
        f"step {len(one)} sees the gradients of {one[-1].held} backward passes before (norm "
        f"{first:.4g}) and of {other[-1].held} after (norm {last:.4g})"
    )
    return Verdict(CONFIRMED, reason, claim)


def piles_up(steps: tuple[Step, ...]) -> bool:
    """Whether every step sees more backward passes than it made, and more than the one before."""
    rising = all(later.held > earlier.held for earlier, later in pairwise(steps))
    return rising and all(step.held > step.backwards for step in steps[1:])


def norm_bounded(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.NORM_BOUNDED
    bounds = [s.max_norm for s in (*after, *before) if s.max_norm is not None]
    if not bounds:
        return Verdict(NOT_MEASURED, "no call that clips gradients was seen", claim)
    bound = bounds[0]
    one, other = largest(before), largest(after)
    if one is None or other is None:
        return Verdict(NOT_MEASURED, "every step was skipped by the gradient scaler", claim)
    over_before, over_after = exceeds(one, bound), exceeds(other, bound)
    if over_before and not over_after:
        reason = f"with max_norm {bound:g} the gradient norm at the step reaches {one:.4g} before"
        return Verdict(CONFIRMED, f"{reason} and {other:.4g} after", claim)
    if over_after and not over_before:
        return Verdict(REFUTED, f"the norm {other:.4g} exceeds max_norm {bound:g} after", claim)
    if over_before:
        return Verdict(NO_EFFECT, f"the norm exceeds max_norm {bound:g} before and after", claim)
    return Verdict(NO_EFFECT, f"the norm never exceeds max_norm {bound:g}", claim)


def largest(steps: tuple[Step, ...]) -> float | None:
    norms = [
        step.bounded_norm if step.bounded_norm is not None else step.gradient_norm
        for step in taken(steps)
    ]
    return max((norm for norm in norms if norm is not None), default=None)


def exceeds(norm: float, bound: float) -> bool:
    return math.isnan(norm) or norm > bound * (1 + BOUND_SHARE)


def gradient_restored(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.GRADIENT_RESTORED
    one, other = shares_of_truth(before), shares_of_truth(after)
    if not one or not other:
        return Verdict(NOT_MEASURED, "no clipped step was taken", claim)
    wrong_before = median(one) < 1 / WRONG_FACTOR
    wrong_after = median(other) < 1 / WRONG_FACTOR
    if wrong_before and all(abs(share - 1) <= NORM_SHARE for share in other):
        norms = [median(s.gradient_norm or 0.0 for s in taken(steps)) for steps in (before, after)]
        reason = f"the gradient norm at the step rises from {norms[0]:.3g} to {norms[1]:.3g}"
        return Verdict(CONFIRMED, f"{reason}, what clipping should have left", claim)
    if wrong_after and not wrong_before:
        return Verdict(REFUTED, "the gradient is too small only after the fix", claim)
    same = "too small" if wrong_before else "what clipping should leave"
    return Verdict(NO_EFFECT, f"the gradient norm at the step is {same} before and after", claim)


def shares_of_truth(steps: tuple[Step, ...]) -> list[float]:
    """The gradient norm that an optimizer used, over the one that clipping should have left."""
    shares = []
    for step in taken(steps):
        if step.raw_norm is None or step.max_norm is None or step.bounded_norm is None:
            continue
        truth = min(step.raw_norm, step.max_norm)
        if truth > 0 and math.isfinite(truth):
            shares.append(step.bounded_norm / truth)
    return shares


def update_restored(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.UPDATE_RESTORED
    one, other = taken(before), taken(after)
    if not one or not other:
        return Verdict(NOT_MEASURED, "every step was skipped by the gradient scaler", claim)
    wrong_before, wrong_after = scaled(one), scaled(other)
    if wrong_after and not wrong_before:
        return Verdict(REFUTED, "the optimizer uses scaled gradients only after the fix", claim)
    if wrong_before == wrong_after:
        same = "scaled" if wrong_before else "true"
        return Verdict(NO_EFFECT, f"the optimizer uses {same} gradients before and after", claim)
    first = next(step for step in one if off(step.scale_left)).update_norm or 0.0
    last = other[0].update_norm or 0.0
    ratio = first / last if last else math.inf
    if not off(ratio):
        return Verdict(NO_EFFECT, f"the parameter update stays at {last:.3g}", claim)
    reason = f"an update moves the parameters by {first:.3g} before and by {last:.3g} after"
    left = one[0].scale_left
    return Verdict(CONFIRMED, f"{reason}: a scale of {left:g} was left in the gradients", claim)


def scaled(steps: tuple[Step, ...]) -> bool:
    return any(off(step.scale_left) for step in steps)


def off(factor: float) -> bool:
    return not 1 / WRONG_FACTOR < factor < WRONG_FACTOR


def averaged(before: Run, after: Run) -> Verdict:
    """By the gradients of all ranks, or by what one rank alone shows of its own."""
    if before.peers and after.peers:
        return gradients_agree(before, after)
    return per_optimizer(ranks_agree)(before, after)


# These look at all ranks at once; each rank by itself decides on the others.
ACROSS_RANKS = frozenset(
    {Claim.RANKS_AGREE, Claim.SAMPLES_DIFFER, Claim.EPOCHS_DIFFER, Claim.SHARDS_BOUNDED}
)


JUDGES: dict[Claim, Callable[[Run, Run], Verdict]] = {
    Claim.PEAK_FALLS: peak_falls,
    Claim.STEP_FASTER: step_faster,
    Claim.FEWER_TRAIN: per_optimizer(fewer_train),
    Claim.REDUCTIONS_FALL: per_optimizer(reductions_fall),
    Claim.RANKS_AGREE: averaged,
    Claim.SAMPLES_DIFFER: samples_differ,
    Claim.EPOCHS_DIFFER: epochs_differ,
    Claim.SHARDS_BOUNDED: shards_bounded,
    Claim.SEARCHES_FALL: per_optimizer(unused_search_gone),
    Claim.RECOMPUTATIONS_FALL: recomputations_fall,
    Claim.GRADIENTS_ARRIVE: per_optimizer(gradients_arrive),
    Claim.GROWTH_STOPS: growth_stops,
    Claim.NODES_STOP: nodes_stop,
    Claim.GRADIENT_SHRINKS: per_optimizer(gradient_shrinks),
    Claim.GRADIENT_WHOLE: per_optimizer(gradient_whole),
    Claim.GRADIENT_STOPS_GROWING: per_optimizer(gradient_stops_growing),
    Claim.GRADIENT_RESTORED: per_optimizer(gradient_restored),
    Claim.NORM_BOUNDED: per_optimizer(norm_bounded),
    Claim.PARAMETERS_MOVE: per_optimizer(parameters_move),
    Claim.UPDATE_RESTORED: per_optimizer(update_restored),
    Claim.STEPS_TAKEN: per_optimizer(steps_taken),
    Claim.SCALER_AT_REST: per_optimizer(scaler_at_rest),
    Claim.GRADIENTS_SURVIVE: per_optimizer(gradients_survive),
    Claim.WARNING_GONE: warning_gone,
    Claim.BYTES_FALL: bytes_fall,
    Claim.DEVICE_ALLOCATIONS_FALL: falls(REQUESTS),
    Claim.WAITS_FALL: falls(WAITS),
    Claim.COPIES_FALL: falls(COPIES),
    Claim.FEWER_WORKERS: fewer_workers,
    Claim.WORKER_BYTES_FALL: worker_bytes_fall,
    Claim.RUNS_AGREE: runs_agree,
    Claim.SCHEDULE_FROM_START: per_optimizer(schedule_from_start),
    Claim.SCHEDULE_PER_STEP: per_optimizer(schedule_per_step),
    Claim.WINDOWS_EQUAL: per_optimizer(windows_equal),
    Claim.TRAINS_IN_TRAINING_MODE: per_optimizer(trains_in_training_mode),
    Claim.GRADIENT_RISES: per_optimizer(gradient_rises),
    Claim.KEPT_WEIGHTS_STAY: per_optimizer(kept_weights_stay),
}
