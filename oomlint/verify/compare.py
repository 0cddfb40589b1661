"""Judges two runs of a script: what changed, by how much, and whether as claimed."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from oomlint.rule import Claim
from oomlint.verify.claims import ACROSS_RANKS, JUDGES, strongest
from oomlint.verify.ranks import on_every_rank
from oomlint.verify.record import FINISHED, RAISED, STOPPED, Ending, Run
from oomlint.verify.series import (
    GROWTH_BYTES,
    GROWTH_NODES,
    growth,
    host_growth,
    main_steps,
    taken,
    warm,
)
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict

# Errors that say something about the surroundings of a script, not about its training step.
SURROUNDINGS = ("ModuleNotFoundError", "ImportError", "FileNotFoundError", "EOFError")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a table shows of one run; None is a value that was not measured."""

    peak: int | None = None
    growth: float | None = None
    nodes: int | None = None
    node_growth: float | None = None
    host: int | None = None
    host_growth: float | None = None
    gradient_norm: float | None = None
    raw_norm: float | None = None
    update_norm: float | None = None
    loss: float | None = None


def compare(before: Run, after: Run, claims: tuple[Claim, ...]) -> Verdict:
    """The verdict on claims of which any one confirms a fix; never a number out of noise."""
    if Claim.ERROR_GONE in claims and before.ending.kind == RAISED:
        return error_gone(before, after)
    if before.measured and broken_by_fix(after):
        return Verdict(REFUTED, f"after the fix the script {said(after.ending)}")
    trouble = unmeasured(before, after)
    if trouble is not None:
        return Verdict(NOT_MEASURED, trouble)
    verdicts = [judged(claim, before, after) for claim in claims if claim in JUDGES]
    if Claim.ERROR_GONE in claims:
        verdicts.append(error_gone(before, after))
    return strongest(verdicts) or Verdict(NOT_MEASURED, "the rule claims nothing measurable")


def judged(claim: Claim, before: Run, after: Run) -> Verdict:
    judge = JUDGES[claim] if claim in ACROSS_RANKS else on_every_rank(JUDGES[claim])
    return judge(before, after)


def broken_by_fix(run: Run) -> bool:
    return run.ending.kind == RAISED and run.ending.error not in SURROUNDINGS


def said(ending: Ending) -> str:
    """What a run did instead of measuring, as the end of a sentence."""
    return ending.message + (f" at line {ending.row}" if ending.row else "") + ending.cure


def unmeasured(before: Run, after: Run) -> str | None:
    """Why the two runs cannot be compared, as one sentence, or None."""
    for name, run in (("before", before), ("after", after)):
        ending = run.ending
        if not run.measured:
            if ending.kind in (STOPPED, FINISHED):
                return f"the script ends before the first optimizer step {name} the fix"
            return f"{name} the fix the script {said(ending)}"
    if before.unit != after.unit:
        return f"before the fix a step is an {before.unit}, after it an {after.unit}"
    return None


def error_gone(before: Run, after: Run) -> Verdict:
    claim = Claim.ERROR_GONE
    ending = before.ending
    if ending.kind != RAISED:
        return Verdict(NO_EFFECT, "the script raises no error before the fix", claim)
    if ending.error in SURROUNDINGS:
        return Verdict(NOT_MEASURED, f"before the fix the script {said(ending)}")
    if after.ending.kind == RAISED:
        if (after.ending.error, after.ending.message) == (ending.error, ending.message):
            return Verdict(NO_EFFECT, f"the script {ending.message} before and after", claim)
        return Verdict(NOT_MEASURED, f"after the fix the script {said(after.ending)}")
    if not after.measured or len(after.steps) <= len(before.steps):
        return Verdict(NOT_MEASURED, unmeasured_after(after))
    reason = f"before, the script {said(ending)}; after, it runs {len(after.steps)} steps"
    return Verdict(CONFIRMED, reason, claim)


def unmeasured_after(after: Run) -> str:
    return f"after the fix the script {after.ending.message or 'takes no more steps than before'}"


def summarise(run: Run, optimizer: int | None = None) -> Summary:
    """The numbers to show; norms and growth are of the main optimizer or the one that is named."""
    own = tuple(step for step in run.steps if step.optimizer == optimizer) or main_steps(run)
    if not own:
        return Summary()
    steps = warm(own)
    norms = [s.gradient_norm for s in taken(steps) if s.gradient_norm is not None]
    raw = [s.raw_norm for s in taken(steps) if s.raw_norm is not None]
    updates = [s.update_norm for s in taken(steps) if s.update_norm is not None]
    losses = [s.loss for s in steps if s.loss is not None]
    return Summary(
        peak=max(step.allocated_peak for step in warm(run.steps)),
        growth=growth(own, lambda step: step.allocated, GROWTH_BYTES),
        nodes=steps[-1].nodes,
        node_growth=growth(own, lambda step: step.nodes, GROWTH_NODES),
        host=steps[-1].host,
        host_growth=host_growth(own),
        gradient_norm=median(norms) if norms else None,
        raw_norm=median(raw) if raw else None,
        update_norm=median(updates) if updates else None,
        loss=median(losses) if losses else None,
    )
