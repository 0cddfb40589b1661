"""Where gradients are erased: before the step has used them, too often, or never."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import questions as ask
from oomlint.analysis.knowledge import SKIP_NAME
from oomlint.analysis.modules import written
from oomlint.analysis.state import Event, Kind, World


@dataclass(frozen=True, slots=True)
class Erasure:
    """A backward whose gradients a `zero_grad` takes from the step that they were for."""

    zero: Event
    backward: Event
    step: Event


def erased_before_step(world: World) -> Iterator[Erasure]:
    """backward -> zero_grad -> step, with no second backward before the step."""
    if not world.of(Kind.ZERO_GRAD):
        return
    for step in ask.steps(world):
        if step.detail.get("two_step") or step.detail.get("closure"):
            continue
        zero = erasing(world, step)
        if zero is None or ask.opaque_between(world, zero, step, step.subject):
            continue
        backward = ask.last_before(world, zero, lambda e: e.kind in (Kind.BACKWARD, *ask.STEPS))
        if (
            backward is None
            or backward.kind is not Kind.BACKWARD
            or backward.marks != step.marks[: len(backward.marks)]
        ):
            continue
        if not is_skip(zero) and zero.subject is not None:
            yield Erasure(zero, backward, step)


def erasing(world: World, step: Event) -> Event | None:
    """The zeroing before a step behind which nothing makes gradients."""
    last = ask.last_before(
        world,
        step,
        lambda e: (
            e.kind in (Kind.BACKWARD, Kind.GRADIENT_TOUCHED, Kind.GRADIENT_TAKEN)
            or (e.kind is Kind.ZERO_GRAD and ask.concerns(e, step.subject))
        ),
    )
    return last if last is not None and last.kind is Kind.ZERO_GRAD else None


def is_skip(zero: Event) -> bool:
    """Whether gradients are erased because they are bad."""
    return any(SKIP_NAME.search(written(guard.test)) for guard in zero.guards)


def erased_in_window(world: World) -> Iterator[Erasure]:
    """Every micro-batch of a window is zeroed although only the last one is followed by a step."""
    for window in ask.windows(world):
        if not ask.is_accumulation(window):
            continue
        for zero in world.of(Kind.ZERO_GRAD):
            if not window.backward.index < zero.index < window.step.index:
                continue
            if "accumulate" in zero.contexts:
                continue
            inside = any(m.serial == window.loop.serial for m in zero.loops)
            guarded = any(ask.is_window(guard) for guard in zero.guards) or is_skip(zero)
            later = ask.first_after(world, zero, lambda e: e.kind in (Kind.BACKWARD, *ask.STEPS))
            if not inside or guarded or later is None or later.kind is not Kind.BACKWARD:
                continue
            if zero.subject is not None and ask.concerns(zero, window.optimizer):
                yield Erasure(zero, window.backward, window.step)


def erased_at_epoch(world: World) -> Iterator[Erasure]:
    """An epoch starts by zeroing while the window counts on across epochs."""
    for window in ask.windows(world):
        around = [loop.node for loop in window.backward.loops[:-1]]
        zeros = [
            zero
            for zero in world.of(Kind.ZERO_GRAD)
            if zero.loops
            and not zero.guards
            and any(zero.loops[-1].node is node for node in around)
            and zero.subject is not None
            and ask.concerns(zero, window.optimizer)
        ]
        if zeros and window.guard is not None and ask.carries_over(window):
            yield from (Erasure(zero, window.backward, window.step) for zero in zeros)


def is_plain_step(event: Event) -> bool:
    return not any(event.detail.get(name) for name in ("stepper", "two_step", "closure"))


def zeroed_steps(world: World) -> Iterator[Event]:
    """Steps in whose own loop something zeroes their gradients, in this world."""
    zeros = [zero for zero in world.of(Kind.ZERO_GRAD) if zero.loops and not skips_step(zero)]
    for step in ask.steps(world) if zeros else ():
        if is_plain_step(step) and step.loops:
            serial = step.loops[-1].serial
            for zero in zeros:
                inside = any(m.serial == serial for m in zero.loops)
                if inside and ask.concerns(zero, step.subject):
                    yield step
                    break


def skips_step(zero: Event) -> bool:
    return any(guard.truth and SKIP_NAME.search(written(guard.test)) for guard in zero.guards)


def unzeroed(world: World, step: Event) -> Event | None:
    """The backward that follows a step in a later iteration with no zeroing on the way."""
    if not is_plain_step(step) or not step.loops or not ask.is_lasting(step.subject):
        return None
    if not ask.is_optimizer(step.subject):
        return None
    backward = ask.way(
        world,
        step,
        lambda e: e.kind is Kind.BACKWARD,
        lambda e: (
            (e.kind is Kind.ZERO_GRAD and ask.concerns(e, step.subject))
            or e.kind is Kind.ENGINE_STEP
        ),
    )
    foreign = ("rpc", "engine", "stepper", "optimizer")
    if backward is None or backward.detail.get("wrapper") in foreign:
        return None
    again = ask.first_after(
        world, backward, lambda e: e.kind in ask.STEPS and ask.same(e.subject, step.subject)
    )
    if again is None or again.node is not step.node:
        return None
    zeroing = any(
        step.index < zero.index < again.index and ask.concerns(zero, step.subject)
        for zero in world.of(Kind.ZERO_GRAD)
    )
    # The first backward of the loop comes before its first step.
    earlier = ask.last_before(world, step, lambda e: e.kind is Kind.BACKWARD)
    if zeroing or earlier is None or earlier.loops[-1:] != step.loops[-1:]:
        return None
    if ask.opaque_between(world, step, again, step.subject):
        return None
    between = [e for e in world.of(Kind.BACKWARD) if step.index < e.index < again.index]
    return next((e for e in between if e.node is earlier.node), None)
