"""Judges claims about how the model is run: in which mode, to which loss, on which weights."""

from __future__ import annotations

import math

from oomlint.rule import Claim
from oomlint.verify.record import Step
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# A gradient norm that changes by less than this factor is not called another one.
WRONG_GRADIENT = 1.2


def trains_in_training_mode(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """What is in evaluation mode at the first step was put there on purpose."""
    claim = Claim.TRAINS_IN_TRAINING_MODE
    one, other = (max(step.evaluating for step in steps) for steps in (before, after))
    if one == other:
        state = f"up to {one} modules are in evaluation mode at a step before and after"
        return Verdict(NO_EFFECT, state if one else "every step is in training mode", claim)
    if other > one:
        reason = f"{other} modules are in evaluation mode at a step after the fix, {one} before"
        return Verdict(REFUTED, reason, claim)
    if other > before[0].evaluating:
        reason = f"{other} modules are in evaluation mode at a step after the fix too"
        return Verdict(NO_EFFECT, reason, claim)
    wrong = sum(step.evaluating > before[0].evaluating for step in before)
    reason = f"{wrong} of {len(before)} steps run up to {one} modules in evaluation mode before"
    return Verdict(CONFIRMED, f"{reason}, and none of {len(after)} after", claim)


def gradient_rises(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """An activation too many flattens the loss: its gradient is that much smaller."""
    claim = Claim.GRADIENT_RISES
    if not before or not after or before[0].skipped or after[0].skipped:
        return Verdict(NOT_MEASURED, "no step was taken from the same parameters in both", claim)
    one, other = before[0].gradient_norm, after[0].gradient_norm
    if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
        return Verdict(NOT_MEASURED, "the gradient is not finite", claim)
    if max(one, other) < WRONG_GRADIENT * min(one, other) or one == other:
        return Verdict(
            NO_EFFECT, f"the gradient norm of the first step stays at {other:.3g}", claim
        )
    movement = f"the gradient norm of the first step goes from {one:.3g} to {other:.3g}"
    return Verdict(CONFIRMED if other > one else REFUTED, movement, claim)


def kept_weights_stay(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.KEPT_WEIGHTS_STAY
    one, other = (max((step.aliases for step in steps), default=0) for steps in (before, after))
    if bool(one) == bool(other):
        state = f"up to {other} tensors share" if other else "no other tensor shares"
        return Verdict(NO_EFFECT, f"{state} memory with the parameters before and after", claim)
    reason = f"{max(one, other)} tensors share memory with the parameters that the step changes"
    if other:
        return Verdict(REFUTED, f"only after the fix, {reason}", claim)
    return Verdict(CONFIRMED, f"before, {reason}; after, none does", claim)


def fewer_train(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """By the elements that require gradients at the first step; nothing else counts as freezing."""
    claim = Claim.FEWER_TRAIN
    one, other = (steps[0].trainable if steps else None for steps in (before, after))
    if not one or not other:
        return Verdict(NOT_MEASURED, "no parameter requires gradients at a step", claim)
    if one == other:
        return Verdict(NO_EFFECT, f"{one} parameters are trained before and after", claim)
    reason = f"{one} parameters are trained before and {other} after"
    return Verdict(CONFIRMED if other < one else REFUTED, reason, claim)


def gradients_arrive(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """By the parameters of the first step taken that require a gradient and have none."""
    claim = Claim.GRADIENTS_ARRIVE
    if not before or not after or before[0].skipped or after[0].skipped:
        return Verdict(NOT_MEASURED, "no step was taken from the same parameters in both", claim)
    one, other = before[0].gradless, after[0].gradless
    if one == other:
        return Verdict(NO_EFFECT, f"{one} parameters have no gradient before and after", claim)
    reason = f"{one} parameters have no gradient at the first step before and {other} after"
    return Verdict(CONFIRMED if other < one else REFUTED, reason, claim)
