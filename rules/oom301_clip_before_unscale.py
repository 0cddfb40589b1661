"""OOM301: gradients that are clipped while they still carry the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding
from oomlint.analysis.remedies import unscale_before, unscale_earlier
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import scaler_of
from oomlint.rule import Claim, Finding, Rule, Severity


class ClipBeforeUnscale(Rule):
    """
    ## What it does
    Checks for gradient clipping between `scaler.scale(loss).backward()` and
    `scaler.step(optimizer)` with no `scaler.unscale_(optimizer)` on the way.

    ## Why is this bad?
    The gradients are still multiplied by the loss scale (65536 at the start), so nearly every step
    is clipped, and after the scaler has divided them again the update is smaller by up to the
    scale. Training goes on, silently and far too slowly.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Fix safety
    Unsafe: the parameters are updated with their true gradients from then on, so results change.

    ## Measured
    With max_norm 1.0 and the scale at 65536 the gradient norm that reaches the optimizer is
    1.5e-5; with `unscale_` it is 1.0.

    ## References
    - [PyTorch: gradient clipping with scaled gradients](https://docs.pytorch.org/docs/stable/notes/amp_examples.html#gradient-clipping)
    """

    code = "OOM301"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    tokens = ((".scale(", "Scaler", "scaler"), ("clip",), ("step(",), ("backward(",))
    claims = (Claim.GRADIENT_RESTORED,)

    def check(self, model: Model) -> Iterator[Finding]:
        seen: set[int] = set()
        right = unscaled_clips(model)
        for world in model.worlds:
            for clip in world.of(Kind.CLIP):
                path = scaled_path(model, world, clip) if not clip.detail.get("wrapper") else None
                if path is None:
                    continue
                backward, step = path
                # A clip that is right on another way is not what is wrong: the call of it here is.
                node = anchor(model, clip, step if id(clip.node) in right else None)
                if node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    "gradients are clipped while they still carry the loss scale: "
                    "no `unscale_` between the scaled backward and this clip"
                )
                late = ask.way(
                    world, clip, lambda e: e.kind is Kind.UNSCALE, lambda e: e.kind in ask.STEPS
                )
                fix = unscale_before(model, clip, step)
                if late is not None:
                    fix = unscale_earlier(model, clip, late)
                yield finding(
                    model,
                    self,
                    node,
                    message,
                    fix,
                    [(backward, "scaled backward"), (clip, "clip"), (step, "`scaler.step`")],
                )


def scaled_path(model: Model, world: World, clip: Event) -> tuple[Event, Event] | None:
    limit = clip.detail.get("limit")
    text = getattr(limit, "key", "")
    if "get_scale" in text or "inf" in text or "master_params" in ask.key_of(clip.subject):
        return None
    clipped = frozenset(clip.detail.get("models") or ())  # type: ignore[call-overload]
    backward = ask.last_before(
        world,
        clip,
        lambda e: e.kind is Kind.BACKWARD or (e.kind is Kind.UNSCALE and may_cover(e, clipped)),
    )
    if backward is None or backward.kind is Kind.UNSCALE or backward.detail.get("wrapper"):
        return None
    scaler = scaler_of(backward.value) if backward.value is not None else None
    if scaler is None:
        return None
    if any(
        e.kind in (*ask.STEPS, Kind.ZERO_GRAD) for e in world.events[backward.index : clip.index]
    ):
        return None
    step = ask.first_after(world, clip, lambda e: e.kind in (*ask.STEPS, Kind.BACKWARD))
    if step is None or step.kind is not Kind.SCALER_STEP or not ask.same(step.value, scaler):
        return None
    if ask.opaque_between(world, backward, clip, scaler):
        return None
    if any(map(ask.is_window, step.guards)) and not any(map(ask.is_window, clip.guards)):
        # Clipped on every micro-batch: first it has to go where the step is.
        return None
    if ask.disagree(backward, step) or unscaled_elsewhere(model, backward, clip):
        return None
    return backward, step


def unscaled_clips(model: Model) -> set[int]:
    """Clips that stand behind an `unscale_` on some way."""
    found = set()
    for world in model.worlds:
        for clip in world.of(Kind.CLIP) if world.of(Kind.UNSCALE) else ():
            last = ask.last_before(
                world, clip, lambda e: e.kind in (Kind.BACKWARD, Kind.UNSCALE, *ask.STEPS)
            )
            if last is not None and last.kind is Kind.UNSCALE:
                found.add(id(clip.node))
    return found


def may_cover(unscale: Event, clipped: frozenset[str]) -> bool:
    """Whether an `unscale_` may be about the parameters that are clipped."""
    held = ask.models_of(unscale.subject)
    return not held or not clipped or bool(held & clipped)


def unscaled_elsewhere(model: Model, backward: Event, clip: Event) -> bool:
    """Whether another world unscales here, under a test that may be this one's in other words."""
    for world in model.worlds:
        for event in world.of(Kind.UNSCALE):
            if ask.same_function(event, clip) and event.node.lineno < clip.node.lineno:
                tests = ask.amp_tests(event)
                if tests and tests != ask.amp_tests(backward):
                    return True
    return False
