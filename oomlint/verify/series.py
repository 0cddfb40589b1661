"""What a series of steps says once noise is taken out: levels, growth, whose steps they are."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median

from oomlint.verify.record import ITERATION, Run, Step

# The first steps make optimizer state and caches; they are left out where enough others remain.
WARM_UP = 2
# Bytes: a change below 2 % or below 4 KiB (eight of the allocator's blocks) is none.
PEAK_SHARE, PEAK_BYTES = 0.02, 4096
# Growth: at least half a block or half a node a step, in at least three of four steps.
GROWTH_BYTES, GROWTH_NODES, GROWTH_SHARE = 256, 0.5, 0.75
# Host memory comes in pages and pools: its growth is a number only where at least three steps
# after the warm-up rise by at least 64 KiB each and by about the same.
GROWTH_HOST, HOST_STEPS, HOST_SPREAD = 64 * 1024, 3, 2.0
# Norms: sums in another order, reduced precision and CUDA's atomics stay well inside 5 %.
NORM_SHARE = 0.05
# A bound is respected up to the rounding of the division that enforces it.
BOUND_SHARE = 0.01
# A gradient or an update that is off by less than this factor is not called wrong.
WRONG_FACTOR = 2.0


OFF_DEVICE = "the script puts nothing on the device"


def off_device(before: Run, after: Run) -> bool:
    return not any(step.allocated_peak for step in (*before.steps, *after.steps))


def warm(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """The steps after the warm-up; all of them where fewer than two would remain."""
    return steps[WARM_UP:] if len(steps) >= WARM_UP + 2 else steps


def growth(steps: tuple[Step, ...], value: Callable[[Step], float], least: float) -> float | None:
    """Growth per step, 0.0 where it is not steady, None where no two steps follow each other."""
    return steady(rises(steps, value), least)


def steady(differences: Sequence[float], least: float) -> float | None:
    """The median of differences of which most are at least so large; 0.0 if they are not."""
    if not differences:
        return None
    rising = sum(difference >= least for difference in differences)
    return float(median(differences)) if rising >= GROWTH_SHARE * len(differences) else 0.0


def host_growth(steps: tuple[Step, ...]) -> float | None:
    """Growth of host memory per step, 0.0 where it is not even, None with too few steps."""
    differences = rises(steps, lambda step: step.host)
    if len(differences) < HOST_STEPS:
        return None
    least, most = min(differences), max(differences)
    if least < GROWTH_HOST or most > HOST_SPREAD * least:
        return 0.0
    return float(median(differences))


def rises(steps: tuple[Step, ...], value: Callable[[Step], float]) -> list[float]:
    """Differences from step to step after the warm-up.

    Those over the edge of two entries into a loop are left out: other code runs between them.
    """
    pairs = [
        value(later) - value(earlier)
        for earlier, later in pairwise(steps)
        if earlier.extent == later.extent or earlier.unit != ITERATION
    ]
    return pairs[WARM_UP:] if len(pairs) >= WARM_UP + 1 else pairs


def main_steps(run: Run) -> tuple[Step, ...]:
    """The steps of the optimizer that attempted most of them: growth is from one to the next."""
    attempts = Counter(step.optimizer for step in run.steps)
    if not attempts:
        return ()
    main = max(attempts, key=lambda ordinal: (attempts[ordinal], -ordinal))
    return tuple(step for step in run.steps if step.optimizer == main)


def by_optimizer(before: Run, after: Run) -> list[tuple[tuple[Step, ...], tuple[Step, ...]]]:
    """The steps of each optimizer that stepped in both runs."""
    ordinals = sorted({s.optimizer for s in before.steps} & {s.optimizer for s in after.steps})
    return [
        (
            tuple(s for s in before.steps if s.optimizer == ordinal),
            tuple(s for s in after.steps if s.optimizer == ordinal),
        )
        for ordinal in ordinals
    ]


def differs(one: float, other: float, share: float = NORM_SHARE) -> bool:
    if math.isnan(one) or math.isnan(other) or math.isinf(one) or math.isinf(other):
        return repr(one) != repr(other)
    return abs(one - other) > share * max(abs(one), abs(other))


def taken(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Attempts that the gradient scaler did not skip."""
    return tuple(step for step in steps if not step.skipped and step.gradient_norm is not None)


def times(count: float) -> str:
    return "once" if count == 1 else f"{count:g} times"


def size(value: float) -> str:
    """Bytes in binary units with the unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")
