"""Counts when data-parallel models average gradients over their ranks, and judges these counts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from oomlint.rule import Claim
from oomlint.verify.record import Step
from oomlint.verify.series import differs, taken, times
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED, Verdict


class Reductions:
    """How often gradients were averaged; one rank is enough to see it."""

    def __init__(self) -> None:
        self.total = 0
        self.told = 0  # of these, by the last step
        self.unreduced = 0  # backward passes since the last average
        self.seen = False  # a data-parallel model was run
        self.searches = 0  # of the graph, for parameters that it does not reach

    def watch(self, model: Any) -> None:
        """A model without a hook of its own gets the one that does what it does anyway."""
        import torch

        self.seen = True
        if model.find_unused_parameters and not model.static_graph and torch.is_grad_enabled():
            self.searches += 1
        if model._comm_hooks:
            return
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        model.register_comm_hook(model.process_group, allreduce_hook)

    def counting(self, hook: Any) -> Any:
        @functools.wraps(hook)
        def counted(state: Any, bucket: Any) -> Any:
            self.total += 1
            return hook(state, bucket)

        return counted

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Around one backward pass."""
        before = self.total
        yield
        if self.total > before:
            self.unreduced = 0
        elif self.seen:
            self.unreduced += 1

    def searched(self) -> int:
        """Searches since the last call."""
        new, self.searches = self.searches, 0
        return new

    def taken(self) -> int:
        """Averages since the last call."""
        new, self.told = self.total - self.told, self.total
        return new


def reductions_fall(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    claim = Claim.REDUCTIONS_FALL
    one, other = (median(step.reductions for step in steps) for steps in (before, after))
    if not one or not other:
        return Verdict(NOT_MEASURED, "no data-parallel model averages gradients in both", claim)
    if one == other:
        reason = f"gradients are averaged over the ranks {times(one)} a step before and after"
        return Verdict(NO_EFFECT, reason, claim)
    reason = f"gradients are averaged over the ranks {times(one)} a step before, {other:g} after"
    return Verdict(CONFIRMED if other < one else REFUTED, reason, claim)


def ranks_agree(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """By the backward passes whose gradients a step uses as this rank alone computed them."""
    claim = Claim.RANKS_AGREE
    one, other = taken(before), taken(after)
    if not any(step.reductions for step in (*one, *other)):
        return Verdict(NOT_MEASURED, "no data-parallel model averages gradients", claim)
    local_before, local_after = (
        max((s.unreduced for s in steps), default=0) for steps in (one, other)
    )
    if local_before == local_after:
        reason = f"a step sees {local_before} backward passes of one rank alone before and after"
        return Verdict(NO_EFFECT, reason, claim)
    reason = (
        f"a step sees {local_before} backward passes of one rank alone before, {local_after} after"
    )
    if local_after > local_before:
        return Verdict(REFUTED, reason, claim)
    return Verdict(NO_EFFECT if local_after else CONFIRMED, reason, claim)


def unused_search_gone(before: tuple[Step, ...], after: tuple[Step, ...]) -> Verdict:
    """The search finds nothing: without it every parameter gets the gradient that it got."""
    claim = Claim.SEARCHES_FALL
    one, other = (sum(step.searches for step in steps) / len(steps) for steps in (before, after))
    if one == other:
        return Verdict(NO_EFFECT, f"{one:g} searches a step before and after", claim)
    reason = f"the graph is searched for unused parameters {times(one)} a step before"
    reason = f"{reason}, {times(other)} after"
    if other > one:
        return Verdict(REFUTED, reason, claim)
    first, last = before[0].gradient_norm, after[0].gradient_norm
    if first is None or last is None:
        return Verdict(NOT_MEASURED, "the first step has no gradient", claim)
    if before[0].gradless != after[0].gradless or differs(first, last):
        return Verdict(REFUTED, f"{reason}, and the gradient changes", claim)
    return Verdict(CONFIRMED, f"{reason}; the gradient norm stays {last:.3g}", claim)
