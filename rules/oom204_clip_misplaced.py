"""OOM204: gradient clipping where there is nothing to clip any more, or not yet."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, classes, knowledge
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
    tokens = (("clip_grad", "dispatch_clip", "adaptive_clip"), ("step(",))
    claims = (Claim.NORM_BOUNDED,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        useful = {id(e.node) for world in model.worlds for e in useful_clips(world)}
        for world in model.worlds:
            for clip in world.events:
                if clip.kind is not Kind.CLIP or measures_only(clip):
                    continue
                judged = misplaced(world, clip) if id(clip.node) not in useful else None
                judged = judged or per_micro_batch(world, clip) or in_lightning(world, clip)
                if judged is None:
                    continue
                message, other, what, fix_after = judged
                node = anchor(model, clip, other)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                path = sorted([(clip, "clip"), (other, what)], key=lambda pair: pair[0].index)
                fix = remedy(model, world, clip, other, fix_after)
                yield finding(model, self, node, message, fix, path)


def measures_only(clip: Event) -> bool:
    limit = ask.text_of(clip.detail.get("limit"))  # type: ignore[arg-type]
    return "inf" in limit.lower() or limit in ("None", "0", "0.0")


FLOW = (Kind.BACKWARD, Kind.ZERO_GRAD, Kind.ENGINE_STEP, *ask.STEPS)


def useful_clips(world: World) -> Iterator[Event]:
    """Clips that stand between a backward and a step in some world."""
    for clip in world.events:
        if clip.kind is Kind.CLIP:
            last = ask.last_before(world, clip, lambda e: e.kind in FLOW)
            following = ask.first_after(world, clip, lambda e: e.kind in FLOW)
            if (
                last
                and last.kind is Kind.BACKWARD
                and (following is None or following.kind in (*ask.STEPS, Kind.ENGINE_STEP))
            ):
                yield clip


Judgement = tuple[str, Event, str, bool]


def misplaced(world: World, clip: Event) -> Judgement | None:
    last = ask.last_before(world, clip, lambda e: e.kind in FLOW)
    following = ask.first_after(world, clip, lambda e: e.kind in FLOW)
    if last is None or (following is not None and following.kind in (*ask.STEPS, Kind.ENGINE_STEP)):
        return None
    inside = [m.serial for m in last.loops][: len(clip.loops)] == [m.serial for m in clip.loops]
    if last.kind in ask.STEPS and inside and not last.detail.get("stepper"):
        backward = ask.last_before(world, last, lambda e: e.kind is Kind.BACKWARD)
        clipped = any(
            e.kind is Kind.CLIP
            for e in world.events[backward.index if backward else 0 : last.index]
        )
        if backward is None or clipped or not matches(clip, last):
            return None
        return (
            "gradients are clipped after the step: the step uses them unclipped",
            last,
            "step",
            False,
        )
    if last.kind is Kind.ZERO_GRAD and following is not None and following.kind is Kind.BACKWARD:
        if following.loops[-1:] != clip.loops[-1:]:
            return None
        step = ask.first_after(world, following, lambda e: e.kind in ask.STEPS)
        if step is None or any(
            e.kind is Kind.CLIP for e in world.events[following.index : step.index]
        ):
            return None
        message = "gradients are clipped before the backward that computes them"
        return message, following, "backward", True
    return None


def matches(clip: Event, step: Event) -> bool:
    """Whether the clip is about the parameters of this step's optimizer, as far as is known."""
    clipped = clip.detail.get("models") or frozenset()
    held = ask.models_of(step.subject)
    return not clipped or not held or bool(set(clipped) & held)  # type: ignore[call-overload]


def per_micro_batch(world: World, clip: Event) -> Judgement | None:
    if clip.detail.get("wrapper") or "accumulate" in clip.contexts:
        return None
    for window in ask.windows(world):
        if not ask.is_accumulation(window) or not any(
            m.serial == window.loop.serial for m in clip.loops
        ):
            continue
        guarded = any(ask.is_window(guard) for guard in clip.guards)
        if not guarded and window.backward.index < clip.index < window.step.index:
            following = ask.first_after(world, clip, lambda e: e.kind in FLOW)
            if following is not None and following.kind in (Kind.BACKWARD, Kind.ZERO_GRAD):
                message = (
                    "gradients are clipped on every micro-batch: "
                    "partial sums are cut, not the step's gradient"
                )
                return message, window.step, "step of the window", False
    return None


def in_lightning(world: World, clip: Event) -> Judgement | None:
    """Lightning runs the backward after `training_step` has returned."""
    root = world.root
    if root is None or root.name != "training_step" or root.owner is None:
        return None
    bases = classes.base_names(world, root.owner)
    manual = "automatic_optimization" in root.owner.module.segment(root.owner.node)
    if manual or not any(knowledge.LIGHTNING_MODULE.fullmatch(base) for base in bases):
        return None
    if any(event.kind is Kind.BACKWARD for event in world.events):
        return None
    message = "gradients are clipped before Lightning has computed them: set the Trainer's "
    return message + "`gradient_clip_val` instead", clip, "clip", True


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
