"""Judges claims about mixed precision: the scaler's work, skipped steps, lost gradients."""

from __future__ import annotations

from statistics import median

from oomlint.rule import Claim
from oomlint.verify.record import Run, Step
from oomlint.verify.series import differs, taken
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# Shares of a gradient that differ by less than this are rounding.
ZERO_SHARE = 0.05


def warning_gone(before: Run, after: Run) -> Verdict:
    claim = Claim.WARNING_GONE
    gone = [text for text in before.warnings if text not in after.warnings]
    new = [text for text in after.warnings if text not in before.warnings]
    if gone and not new:
        return Verdict(CONFIRMED, f"before, the script warns: {gone[0]}; after, it does not", claim)
    if new and not gone:
        return Verdict(REFUTED, f"only after the fix the script warns: {new[0]}", claim)
    if gone:
        return Verdict(NO_EFFECT, f"instead of one warning there is another: {new[0]}", claim)
    return Verdict(NO_EFFECT, "the same warnings before and after", claim)


def scaler_at_rest(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """The scaler has less to do, and the gradient is what it was."""
    claim = Claim.SCALER_AT_REST
    one, other = (sum(step.scaler_calls for step in steps) for steps in (before, after))
    if one == other:
        return Verdict(NO_EFFECT, "the gradient scaler has the same work before and after", claim)
    if other:
        kind = REFUTED if other > one else NO_EFFECT
        return Verdict(kind, "the gradient scaler is at work after the fix too", claim)
    first, last = before[0].gradient_norm, after[0].gradient_norm
    if first is None or last is None:
        return Verdict(NOT_MEASURED, "the scaler skips the first step", claim)
    if differs(first, last):
        reason = f"the gradient norm goes from {first:.3g} to {last:.3g}"
        return Verdict(REFUTED, f"without the scaler {reason}", claim)
    reason = f"{one / len(before):g} calls of the gradient scaler a step before, none after"
    return Verdict(CONFIRMED, f"{reason}, and the gradient norm stays {last:.3g}", claim)


def steps_taken(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.STEPS_TAKEN
    one, other = (sum(step.skipped for step in steps) for steps in (before, after))
    shares = one / len(before), other / len(after)
    skipped = f"the gradient scaler skips {one} of {len(before)} steps before"
    reason = f"{skipped} and {other} of {len(after)} after"
    if shares[0] == shares[1]:
        return Verdict(NO_EFFECT, reason, claim)
    return Verdict(CONFIRMED if shares[0] > shares[1] else REFUTED, reason, claim)


def gradients_survive(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.GRADIENTS_SURVIVE
    one, other = (
        [step.zero_share for step in taken(steps) if step.zero_share is not None]
        for steps in (before, after)
    )
    if not one or not other:
        return Verdict(NOT_MEASURED, "every step was skipped by the gradient scaler", claim)
    change = median(one) - median(other)
    movement = f"{median(one):.0%} of the gradient is zero before and {median(other):.0%} after"
    if abs(change) < ZERO_SHARE:
        return Verdict(NO_EFFECT, movement, claim)
    return Verdict(CONFIRMED if change > 0 else REFUTED, movement, claim)
