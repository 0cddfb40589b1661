"""Where gradients are clipped: before there are any, behind the step, or in parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oomlint.analysis import classes, knowledge
from oomlint.analysis import questions as ask
from oomlint.analysis.state import Event, Kind, World

if TYPE_CHECKING:
    from oomlint.analysis import Model

USES = (*ask.STEPS, Kind.ENGINE_STEP)
FLOW = (Kind.BACKWARD, Kind.ZERO_GRAD, *USES)


def measures_only(clip: Event) -> bool:
    """Whether a clip is there for the norm that it returns."""
    limit = ask.text_of(clip.detail.get("limit"))  # type: ignore[arg-type]
    return "inf" in limit.lower() or limit in ("None", "0", "0.0")


def neighbours(world: World, clip: Event) -> tuple[Event | None, Event | None]:
    """What happens to gradients last before a clip and first after it."""
    last = ask.last_before(world, clip, lambda e: e.kind in FLOW)
    return last, ask.first_after(world, clip, lambda e: e.kind in FLOW)


def useful_clips(model: Model) -> set[int]:
    """Identities of clips that stand between a backward and a step in some world."""
    found = set()
    for world in model.worlds:
        for clip in world.of(Kind.CLIP):
            last, following = neighbours(world, clip)
            if last is not None and last.kind is Kind.BACKWARD:
                if following is None or following.kind in USES:
                    found.add(id(clip.node))
    return found


def step_before(world: World, clip: Event) -> Event | None:
    """The step that has used the gradients unclipped when the clip comes."""
    last, following = neighbours(world, clip)
    if last is None or last.kind not in ask.STEPS or last.detail.get("stepper"):
        return None
    if following is not None and following.kind in USES:
        return None
    if [m.serial for m in last.loops][: len(clip.loops)] != [m.serial for m in clip.loops]:
        return None
    backward = ask.last_before(world, last, lambda e: e.kind is Kind.BACKWARD)
    if backward is None or clipped_between(world, backward, last) or not matches(clip, last):
        return None
    return last


def backward_behind(world: World, clip: Event) -> Event | None:
    """The backward that computes the gradients after they were to be clipped."""
    last, following = neighbours(world, clip)
    if last is None or last.kind is not Kind.ZERO_GRAD:
        return None
    if following is None or following.kind is not Kind.BACKWARD:
        return None
    if following.loops[-1:] != clip.loops[-1:]:
        return None
    step = ask.first_after(world, following, lambda e: e.kind in ask.STEPS)
    return None if step is None or clipped_between(world, following, step) else following


def clipped_between(world: World, first: Event, last: Event) -> bool:
    return any(first.index < clip.index < last.index for clip in world.of(Kind.CLIP))


def matches(clip: Event, step: Event) -> bool:
    """Whether the clip is about the parameters of this step's optimizer, as far as is known."""
    clipped = clip.detail.get("models") or frozenset()
    held = ask.models_of(step.subject)
    return not clipped or not held or bool(set(clipped) & held)  # type: ignore[call-overload]


def step_of_window(world: World, clip: Event) -> Event | None:
    """The step of an accumulation window of which every micro-batch is clipped."""
    if clip.detail.get("wrapper") or "accumulate" in clip.contexts:
        return None
    for window in ask.windows(world):
        if not any(m.serial == window.loop.serial for m in clip.loops):
            continue
        if not window.backward.index < clip.index < window.step.index:
            continue
        guarded = any(ask.is_window(guard) for guard in clip.guards)
        if not guarded and ask.is_accumulation(window):
            following = neighbours(world, clip)[1]
            if following is not None and following.kind in (Kind.BACKWARD, Kind.ZERO_GRAD):
                return window.step
    return None


def in_lightning(world: World, clip: Event) -> Event | None:
    """The clip itself in `training_step`: Lightning runs the backward after it has returned."""
    root = world.root
    if root is None or root.name != "training_step" or root.owner is None:
        return None
    bases = classes.base_names(world, root.owner)
    manual = "automatic_optimization" in root.owner.module.segment(root.owner.node)
    if manual or not any(knowledge.LIGHTNING_MODULE.fullmatch(base) for base in bases):
        return None
    own = any(not event.detail.get("walked") for event in world.of(Kind.BACKWARD))
    return None if own else clip
