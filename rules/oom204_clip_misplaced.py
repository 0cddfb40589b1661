"""OOM204: gradient clipping where there is nothing to clip any more, or not yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from oomlint.analysis import Model, clipping
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding, make_fix
from oomlint.analysis.remedies import here, lone_block, move, statement
from oomlint.analysis.state import Event, Kind, World
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class ClipMisplaced(Rule):
    """
    ## What it does
    Checks for gradient clipping after the step, before the backward, or on every micro-batch of an
    accumulation window, and for clipping inside Lightning's `training_step`.

    ## Why is this bad?
    The gradients that the optimizer uses are not the ones that were clipped: the step is as large
    as without clipping (after the step, before the backward), or partial sums are clipped one by
    one.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    ```

    ## Fix safety
    Unsafe: the steps are clipped from then on, so results change.

    ## Measured
    The gradient norm at the step exceeds max_norm before the fix (124.5 against 1.0) and respects
    it after.

    ## References
    - [PyTorch: clip_grad_norm_](https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.clip_grad_norm_.html)
    """

    code = "OOM204"
    name = "clip-misplaced"
    severity = Severity.ERROR
    tokens = (
        ("clip_grad", "dispatch_clip", "adaptive_clip"),
        ("step(", "create_supervised_trainer"),
    )
    claims = (Claim.NORM_BOUNDED,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        useful = clipping.useful_clips(model)
        for world in model.worlds:
            for clip in world.of(Kind.CLIP):
                case, other = judge(world, clip, id(clip.node) in useful)
                if case is None or other is None:
                    continue
                node = anchor(model, clip, other)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                path = sorted([(clip, "clip"), (other, case.what)], key=lambda pair: pair[0].index)
                fix = remedy(model, world, clip, other, case.behind)
                yield finding(model, self, node, case.message, fix, path)


@dataclass(frozen=True, slots=True)
class Case:
    """A way for a clip to stand wrong."""

    # The event that the clip stands wrong to, where it does.
    partner: Callable[[World, Event], Event | None]
    what: str
    message: str
    # Whether the clip belongs behind that event, not before it.
    behind: bool = False
    # Whether a clip stands right that stands right in another world.
    unless_useful: bool = False


CASES = (
    Case(
        clipping.step_before,
        "step",
        "gradients are clipped after the step: the step uses them unclipped",
        unless_useful=True,
    ),
    Case(
        clipping.backward_behind,
        "backward",
        "gradients are clipped before the backward that computes them",
        behind=True,
        unless_useful=True,
    ),
    Case(
        clipping.step_of_window,
        "step of the window",
        "gradients are clipped on every micro-batch: partial sums are cut, not the step's gradient",
    ),
    Case(
        clipping.in_lightning,
        "clip",
        "gradients are clipped before Lightning has computed them: set the Trainer's "
        "`gradient_clip_val` instead",
        behind=True,
    ),
)


def judge(world: World, clip: Event, useful: bool) -> tuple[Case, Event] | tuple[None, None]:
    if not clipping.measures_only(clip):
        for case in CASES:
            other = case.partner(world, clip) if not (useful and case.unless_useful) else None
            if other is not None:
                return case, other
    return None, None


def remedy(model: Model, world: World, clip: Event, other: Event, behind: bool) -> Fix | None:
    """The clip moves between the backward and the step."""
    if not here(model.module, clip, other) or clip is other or other.detail.get("closure"):
        return None
    following = ask.first_after(world, clip, lambda e: e.kind in ask.STEPS)
    if behind and following is not None and following.detail.get("closure"):
        return None
    node = lone_block(model.module, statement(clip))
    moved = move(model.module, node, statement(other), behind)
    return (
        make_fix("Clip between the backward and the step", moved, Safety.UNSAFE) if moved else None
    )
