"""Verdicts as a table: two hand-made records and what the comparison must say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from oomlint.rule import Claim
from oomlint.verify import Bench
from oomlint.verify.compare import compare, summarise
from oomlint.verify.record import (
    FINISHED,
    ITERATION,
    OPTIMIZER,
    RAISED,
    STOPPED,
    TIMED_OUT,
    Ending,
    Run,
    Step,
)
from oomlint.verify.runner import Limits
from oomlint.verify.series import growth, main_steps, size
from oomlint.verify.targets import script
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED

MIB = 1024 * 1024
PLAIN = Step(
    unit=OPTIMIZER,
    extent=1,
    optimizer=0,
    requested=8 * MIB,
    requested_peak=16 * MIB,
    allocated=8 * MIB,
    allocated_peak=16 * MIB,
    reserved=20 * MIB,
    live_tensors=10,
    nodes=20,
    host=200 * MIB,
    seconds=0.1,
    gradient_norm=1.0,
    update_norm=0.1,
    loss=2.0,
    backwards=1,
    held=1,
)


def run(count: int = 6, ending: Ending | None = None, **series: Any) -> Run:
    """A run of equal steps; a callable gives a value by the step's number from 0."""
    steps = tuple(
        replace(PLAIN, **{k: v(i) if callable(v) else v for k, v in series.items()})
        for i in range(count)
    )
    unit = steps[0].unit if steps else OPTIMIZER
    return Run("emulated", "2.13", unit, steps, ending or Ending(STOPPED))


def ended(kind: str, message: str, error: str = "", count: int = 0, row: int | None = None) -> Run:
    return run(count, Ending(kind, message, row, error))


def clipped(raw: float, norm: float, bound: float = 1.0) -> Run:
    return run(max_norm=bound, norm_type=2.0, raw_norm=raw, bounded_norm=norm, gradient_norm=norm)


def warned(*texts: str) -> Run:
    return replace(run(), warnings=tuple(f"FutureWarning: {text}" for text in texts))


def ranked(*ranks: Run) -> Run:
    """One run of several ranks."""
    return replace(ranks[0], peers=tuple(rank.steps for rank in ranks[1:]))


def fed(*names: str) -> Run:
    """Each step trains on one sample of these, over and over."""
    return run(samples=lambda i: (names[i % len(names)],))


TWICE = run(requested_peak=32 * MIB)
GROWS = run(allocated=lambda i: 8 * MIB + i * 1024)
NODES = run(nodes=lambda i: 20 + 8 * i)
ERROR = ended(RAISED, "raises RuntimeError: no", "RuntimeError", count=1, row=7)
OTHER = ended(RAISED, "raises RuntimeError: another", "RuntimeError", count=1, row=9)
FOREIGN = ended(RAISED, "needs the package timm", "ModuleNotFoundError")

# claim, before, after; the verdict there and with the two swapped
DRAWN = replace(run(), other=run(loss=3.0).steps)
SEEDED = replace(run(), other=run().steps)
SHORTER = replace(run(), other=run(4).steps)

CASES = {
    "a seed is set": (Claim.RUNS_AGREE, DRAWN, SEEDED, CONFIRMED, REFUTED),
    "runs of another length": (Claim.RUNS_AGREE, SHORTER, SEEDED, CONFIRMED, REFUTED),
    "runs that agree anyway": (Claim.RUNS_AGREE, SEEDED, SEEDED, NO_EFFECT, NO_EFFECT),
    "runs that differ all the same": (Claim.RUNS_AGREE, DRAWN, DRAWN, NO_EFFECT, NO_EFFECT),
    "one run only": (Claim.RUNS_AGREE, run(), SEEDED, NOT_MEASURED, NOT_MEASURED),
    "copies are hoisted": (Claim.COPIES_FALL, run(copies=3), run(copies=2), CONFIRMED, REFUTED),
    "copies of the first step only": (
        Claim.COPIES_FALL,
        run(copies=lambda i: 2 if i else 9),
        run(copies=2),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "copies that nobody counts": (Claim.COPIES_FALL, run(), run(), NOT_MEASURED, NOT_MEASURED),
    "workers stay": (
        Claim.FEWER_WORKERS,
        run(workers=lambda i: 2 * (i % 2)),
        run(workers=lambda i: 0 if i else 2),
        CONFIRMED,
        REFUTED,
    ),
    "no workers": (Claim.FEWER_WORKERS, run(), run(), NO_EFFECT, NO_EFFECT),
    "workers that started before the first step": (
        Claim.FEWER_WORKERS,
        run(workers=lambda i: 0 if i else 4),
        run(workers=0),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "workers keep pages shared": (
        Claim.WORKER_BYTES_FALL,
        run(worker_bytes=80 * MIB),
        run(worker_bytes=25 * MIB),
        CONFIRMED,
        REFUTED,
    ),
    "a few pages": (
        Claim.WORKER_BYTES_FALL,
        run(worker_bytes=26 * MIB),
        run(worker_bytes=25 * MIB),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "no worker lives": (
        Claim.WORKER_BYTES_FALL,
        run(worker_bytes=26 * MIB),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "a part is frozen": (
        Claim.FEWER_TRAIN,
        run(trainable=100),
        run(trainable=40),
        CONFIRMED,
        REFUTED,
    ),
    "nothing is frozen": (
        Claim.FEWER_TRAIN,
        run(trainable=100),
        run(trainable=100),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "all is frozen": (
        Claim.FEWER_TRAIN,
        run(trainable=100),
        run(trainable=0),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "parameters that nobody counted": (Claim.FEWER_TRAIN, run(), run(), NOT_MEASURED, NOT_MEASURED),
    "a step is faster": (Claim.STEP_FASTER, run(), run(seconds=0.02), CONFIRMED, REFUTED),
    "steps are as slow now and then": (
        Claim.STEP_FASTER,
        run(8, seconds=lambda i: 0.2 if i % 2 else 0.05),
        run(8, seconds=0.05),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "a little faster": (Claim.STEP_FASTER, run(), run(seconds=0.08), NO_EFFECT, NO_EFFECT),
    "too few steps to time": (Claim.STEP_FASTER, run(2), run(2), NOT_MEASURED, NOT_MEASURED),
    "peak halves": (Claim.PEAK_FALLS, TWICE, run(), CONFIRMED, REFUTED),
    "fewer bytes stay": (
        Claim.BYTES_FALL,
        run(requested=24 * MIB, allocated=24 * MIB),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "fewer bytes stay, by 1 %": (
        Claim.BYTES_FALL,
        run(requested=int(8.08 * MIB)),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "fewer bytes stay in the last step alone": (
        Claim.BYTES_FALL,
        run(requested=lambda i: 24 * MIB if i == 5 else 8 * MIB),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "bytes stay on the host": (
        Claim.BYTES_FALL,
        run(requested=0, allocated=0, allocated_peak=0),
        run(requested=0, allocated=0, allocated_peak=0),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "the host waits once": (
        Claim.WAITS_FALL,
        run(waits=12),
        run(waits=1),
        CONFIRMED,
        REFUTED,
    ),
    "nobody counts how often the host waits": (
        Claim.WAITS_FALL,
        run(waits=None),
        run(waits=None),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "the cache serves every step": (
        Claim.DEVICE_ALLOCATIONS_FALL,
        run(device_allocations=3),
        run(device_allocations=lambda i: 9 if i < 2 else 0),
        CONFIRMED,
        REFUTED,
    ),
    "the cache is filled by the first steps": (
        Claim.DEVICE_ALLOCATIONS_FALL,
        run(device_allocations=lambda i: 9 if i < 2 else 0),
        run(device_allocations=lambda i: 4 if i < 2 else 0),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "the scaler skips every step": (
        Claim.STEPS_TAKEN,
        run(skipped=True, gradient_norm=None),
        run(skipped=lambda i: i < 2),
        CONFIRMED,
        REFUTED,
    ),
    "the scaler skips the first step": (
        Claim.STEPS_TAKEN,
        run(skipped=lambda i: i < 1),
        run(skipped=lambda i: i < 1),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "the scaler rests": (Claim.SCALER_AT_REST, run(scaler_calls=2), run(), CONFIRMED, REFUTED),
    "the scaler rests and the gradient is another": (
        Claim.SCALER_AT_REST,
        run(scaler_calls=2),
        run(gradient_norm=2.0),
        REFUTED,
        REFUTED,
    ),
    "the scaler has less to do": (
        Claim.SCALER_AT_REST,
        run(scaler_calls=3),
        run(scaler_calls=2),
        NO_EFFECT,
        REFUTED,
    ),
    "small gradients survive": (
        Claim.GRADIENTS_SURVIVE,
        run(zero_share=0.8),
        run(zero_share=0.1),
        CONFIRMED,
        REFUTED,
    ),
    "some zeros more": (
        Claim.GRADIENTS_SURVIVE,
        run(zero_share=0.52),
        run(zero_share=0.5),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "nothing is known of zeros": (
        Claim.GRADIENTS_SURVIVE,
        run(skipped=True, gradient_norm=None),
        run(zero_share=0.5),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "the script warns": (Claim.WARNING_GONE, warned("old name"), run(), CONFIRMED, REFUTED),
    "the script warns of something else": (
        Claim.WARNING_GONE,
        warned("old name"),
        warned("older name"),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "peak falls by 1 %": (
        Claim.PEAK_FALLS,
        run(requested_peak=int(16.16 * MIB)),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "peak of tiny tensors falls by 3 KiB": (
        Claim.PEAK_FALLS,
        run(requested_peak=6 * 1024),
        run(requested_peak=3 * 1024),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "peak of the first step only": (
        Claim.PEAK_FALLS,
        run(requested_peak=lambda i: (32 if i == 0 else 16) * MIB),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "a script on the host": (
        Claim.PEAK_FALLS,
        run(allocated_peak=0, requested_peak=0),
        run(allocated_peak=0, requested_peak=0),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "bytes stop growing": (Claim.GROWTH_STOPS, GROWS, run(), CONFIRMED, REFUTED),
    "bytes grow once": (
        Claim.GROWTH_STOPS,
        run(allocated=lambda i: 8 * MIB + (i > 3) * MIB),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "bytes go up and down": (
        Claim.GROWTH_STOPS,
        run(allocated=lambda i: 8 * MIB + (i % 2) * MIB),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "bytes grow between entries into the loop only": (
        Claim.GROWTH_STOPS,
        run(
            unit=ITERATION,
            extent=lambda i: i // 2,
            allocated=lambda i: 8 * MIB + (i // 2) * MIB,
        ),
        run(unit=ITERATION),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "growth needs two steps": (
        Claim.GROWTH_STOPS,
        run(1),
        run(1),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "nodes stop growing": (Claim.NODES_STOP, NODES, run(), CONFIRMED, REFUTED),
    "nodes grow at half the pace": (
        Claim.NODES_STOP,
        NODES,
        run(nodes=lambda i: 20 + 4 * i),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "gradient of four passes": (
        Claim.GRADIENT_SHRINKS,
        run(gradient_norm=4.0, backwards=4, held=4),
        run(backwards=4, held=4),
        CONFIRMED,
        REFUTED,
    ),
    "gradient shrinks by another factor": (
        Claim.GRADIENT_SHRINKS,
        run(gradient_norm=2.0, backwards=4, held=4),
        run(backwards=4, held=4),
        REFUTED,
        REFUTED,
    ),
    "gradient before clipping counts": (
        Claim.GRADIENT_SHRINKS,
        run(gradient_norm=0.5, raw_norm=4.0, backwards=4, held=4),
        run(gradient_norm=0.5, raw_norm=1.0, backwards=4, held=4),
        CONFIRMED,
        REFUTED,
    ),
    "rounding of the gradient": (
        Claim.GRADIENT_SHRINKS,
        run(gradient_norm=1.01, backwards=4, held=4),
        run(backwards=4, held=4),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "parameters begin to move": (
        Claim.PARAMETERS_MOVE,
        run(update_norm=0.0, gradient_norm=0.0, held=0),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "parameters move anyway": (Claim.PARAMETERS_MOVE, run(), run(), NO_EFFECT, NO_EFFECT),
    "skipped attempts are no standstill": (
        Claim.PARAMETERS_MOVE,
        run(update_norm=0.0, gradient_norm=None, skipped=True),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "a window's gradient": (
        Claim.GRADIENT_WHOLE,
        run(backwards=4, held=1),
        run(backwards=4, held=4, gradient_norm=3.0),
        CONFIRMED,
        REFUTED,
    ),
    "an epoch's tail is lost": (
        Claim.GRADIENT_WHOLE,
        run(backwards=lambda i: 4 if i % 3 else 6, held=4),
        run(backwards=4, held=4),
        CONFIRMED,
        REFUTED,
    ),
    "a schedule that starts at once": (
        Claim.SCHEDULE_FROM_START,
        run(advances=1),
        run(advances=lambda i: int(i > 0)),
        CONFIRMED,
        REFUTED,
    ),
    "a schedule that never advances": (
        Claim.SCHEDULE_FROM_START,
        run(advances=1),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "a schedule on every micro-batch": (
        Claim.SCHEDULE_PER_STEP,
        run(backwards=4, held=4, advances=lambda i: 4 if i else 3),
        run(backwards=4, held=4, advances=lambda i: int(i > 0)),
        CONFIRMED,
        REFUTED,
    ),
    "a schedule twice as fast for another reason": (
        Claim.SCHEDULE_PER_STEP,
        run(backwards=4, held=4, advances=2),
        run(backwards=4, held=4, advances=1),
        REFUTED,
        REFUTED,
    ),
    "the first window fills up": (
        Claim.WINDOWS_EQUAL,
        run(backwards=lambda i: 4 if i else 1, held=lambda i: 4 if i else 1),
        run(backwards=4, held=4),
        CONFIRMED,
        REFUTED,
    ),
    "the first window gets the size of another": (
        Claim.WINDOWS_EQUAL,
        run(held=lambda i: 4 if i else 1),
        run(held=2),
        NO_EFFECT,
        REFUTED,
    ),
    "gradients pile up": (
        Claim.GRADIENT_STOPS_GROWING,
        run(held=lambda i: i + 1, gradient_norm=lambda i: 1.0 + i),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "a larger gradient that does not pile up": (
        Claim.GRADIENT_STOPS_GROWING,
        run(gradient_norm=lambda i: 1.0 + i),
        run(),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "clipping takes hold": (
        Claim.NORM_BOUNDED,
        clipped(raw=8.0, norm=8.0),
        clipped(raw=8.0, norm=1.0),
        CONFIRMED,
        REFUTED,
    ),
    "nothing to clip": (
        Claim.NORM_BOUNDED,
        clipped(raw=0.5, norm=0.5),
        clipped(raw=0.5, norm=0.5),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "no clipping at all": (Claim.NORM_BOUNDED, run(), run(), NOT_MEASURED, NOT_MEASURED),
    "clipped gradient regains its size": (
        Claim.GRADIENT_RESTORED,
        clipped(raw=8.0, norm=1.0 / 65536),
        clipped(raw=8.0, norm=1.0),
        CONFIRMED,
        REFUTED,
    ),
    "a small gradient regains its size": (
        Claim.GRADIENT_RESTORED,
        clipped(raw=0.25, norm=1.0 / 65536),
        clipped(raw=0.25, norm=0.25),
        CONFIRMED,
        REFUTED,
    ),
    "update along scaled gradients": (
        Claim.UPDATE_RESTORED,
        run(scale_left=65536.0, update_norm=6553.6),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "update along gradients divided by the scale": (
        Claim.UPDATE_RESTORED,
        run(scale_left=1 / 65536, update_norm=1e-6),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "an optimizer that hides the scale": (
        Claim.UPDATE_RESTORED,
        run(scale_left=65536.0),
        run(),
        NO_EFFECT,
        REFUTED,
    ),
    "a nan update is no true one": (
        Claim.UPDATE_RESTORED,
        run(scale_left=65536.0, update_norm=float("nan")),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "modules in evaluation mode from the third step on": (
        Claim.TRAINS_IN_TRAINING_MODE,
        run(evaluating=lambda i: 4 if i > 1 else 0),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "a frozen part stays in evaluation mode": (
        Claim.TRAINS_IN_TRAINING_MODE,
        run(evaluating=lambda i: 9 if i > 1 else 5),
        run(evaluating=5),
        CONFIRMED,
        REFUTED,
    ),
    "half of the modules are put back": (
        Claim.TRAINS_IN_TRAINING_MODE,
        run(evaluating=lambda i: 4 if i > 1 else 0),
        run(evaluating=lambda i: 2 if i > 1 else 0),
        NO_EFFECT,
        REFUTED,
    ),
    "a loss without its second softmax": (
        Claim.GRADIENT_RISES,
        run(gradient_norm=0.2),
        run(gradient_norm=1.0),
        CONFIRMED,
        REFUTED,
    ),
    "a gradient that rounding moves": (
        Claim.GRADIENT_RISES,
        run(gradient_norm=1.0),
        run(gradient_norm=1.001),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "an infinite gradient": (
        Claim.GRADIENT_RISES,
        run(gradient_norm=1.0),
        run(gradient_norm=float("inf")),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "kept weights that move along": (
        Claim.KEPT_WEIGHTS_STAY,
        run(aliases=lambda i: 4 if i else 0),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "aliases in both runs": (
        Claim.KEPT_WEIGHTS_STAY,
        run(aliases=8),
        run(aliases=4),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "a block gets its gradients": (
        Claim.GRADIENTS_ARRIVE,
        run(gradless=2),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "parameters without a gradient in both": (
        Claim.GRADIENTS_ARRIVE,
        run(gradless=2),
        run(gradless=2),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "gradients after a skipped step": (
        Claim.GRADIENTS_ARRIVE,
        run(gradless=2, skipped=lambda i: i == 0),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "one average a step": (
        Claim.REDUCTIONS_FALL,
        run(reductions=4),
        run(reductions=1),
        CONFIRMED,
        REFUTED,
    ),
    "more averages in the first step only": (
        Claim.REDUCTIONS_FALL,
        run(reductions=lambda i: 1 if i else 4),
        run(reductions=1),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "averages that stop": (
        Claim.REDUCTIONS_FALL,
        run(reductions=4),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "no data-parallel model": (
        Claim.REDUCTIONS_FALL,
        run(),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "the last pass is averaged": (
        Claim.RANKS_AGREE,
        run(reductions=3, unreduced=1),
        run(reductions=1),
        CONFIRMED,
        REFUTED,
    ),
    "fewer passes of one rank": (
        Claim.RANKS_AGREE,
        run(reductions=1, unreduced=3),
        run(reductions=1, unreduced=1),
        NO_EFFECT,
        REFUTED,
    ),
    "ranks agree in both": (
        Claim.RANKS_AGREE,
        run(reductions=4),
        run(reductions=1),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "one rank without averages": (Claim.RANKS_AGREE, run(), run(), NOT_MEASURED, NOT_MEASURED),
    "averages fall on both ranks": (
        Claim.REDUCTIONS_FALL,
        ranked(run(reductions=4), run(reductions=4)),
        ranked(run(reductions=1), run(reductions=1)),
        CONFIRMED,
        REFUTED,
    ),
    "averages fall on one rank only": (
        Claim.REDUCTIONS_FALL,
        ranked(run(reductions=4), run(reductions=4)),
        ranked(run(reductions=1), run(reductions=4)),
        NO_EFFECT,
        REFUTED,
    ),
    "averages fall and the ranks part": (
        Claim.REDUCTIONS_FALL,
        ranked(run(reductions=4), run(reductions=4)),
        ranked(run(reductions=1), run(reductions=1, fingerprint="b")),
        REFUTED,
        REFUTED,
    ),
    "the ranks' gradients come together": (
        Claim.RANKS_AGREE,
        ranked(run(fingerprint="a"), run(fingerprint=lambda i: "b" if i else "a")),
        ranked(run(fingerprint="c"), run(fingerprint="c")),
        CONFIRMED,
        REFUTED,
    ),
    "the ranks' gradients still differ": (
        Claim.RANKS_AGREE,
        ranked(run(fingerprint="a"), run(fingerprint="b")),
        ranked(run(fingerprint="a"), run(fingerprint=lambda i: "a" if i else "b")),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "ranks with samples of their own": (
        Claim.SAMPLES_DIFFER,
        ranked(fed("a", "b"), fed("b", "a")),
        ranked(fed("a", "c"), fed("b", "d")),
        CONFIRMED,
        REFUTED,
    ),
    "ranks that share their samples in both": (
        Claim.SAMPLES_DIFFER,
        ranked(fed("a", "b"), fed("b", "a")),
        ranked(fed("c"), fed("c")),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "one rank shares with nobody": (
        Claim.SAMPLES_DIFFER,
        fed("a"),
        fed("b"),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "epochs in another order": (
        Claim.EPOCHS_DIFFER,
        fed("a", "b", "c"),
        fed("a", "b", "c", "b", "a", "c"),
        CONFIRMED,
        REFUTED,
    ),
    "epochs in the same order in both": (
        Claim.EPOCHS_DIFFER,
        fed("a", "b"),
        fed("c", "d"),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "not one whole epoch": (
        Claim.EPOCHS_DIFFER,
        fed(*"abcdef"),
        fed(*"abcdef"),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "shards that are clipped together": (
        Claim.SHARDS_BOUNDED,
        ranked(run(max_norm=1.0, gradient_norm=1.0), run(max_norm=1.0, gradient_norm=1.0)),
        ranked(run(gradient_norm=0.6), run(gradient_norm=0.8)),
        CONFIRMED,
        REFUTED,
    ),
    "shards that are in bounds": (
        Claim.SHARDS_BOUNDED,
        ranked(run(max_norm=9.0), run(max_norm=9.0)),
        ranked(run(max_norm=9.0), run(max_norm=9.0)),
        NO_EFFECT,
        NO_EFFECT,
    ),
    "a search for nothing": (Claim.SEARCHES_FALL, run(searches=1), run(), CONFIRMED, REFUTED),
    "a search that finds something": (
        Claim.SEARCHES_FALL,
        run(searches=1, gradless=2),
        run(),
        REFUTED,
        REFUTED,
    ),
    "functions that run again for nothing": (
        Claim.RECOMPUTATIONS_FALL,
        run(recomputations=2),
        run(),
        CONFIRMED,
        REFUTED,
    ),
    "functions that run again for memory": (
        Claim.RECOMPUTATIONS_FALL,
        run(recomputations=2),
        TWICE,
        REFUTED,
        REFUTED,
    ),
    "error gone": (Claim.ERROR_GONE, ERROR, run(), CONFIRMED, REFUTED),
    "error replaced": (Claim.ERROR_GONE, ERROR, OTHER, NOT_MEASURED, NOT_MEASURED),
    "error stays": (Claim.ERROR_GONE, ERROR, ERROR, NO_EFFECT, NO_EFFECT),
    "no error": (Claim.ERROR_GONE, run(), run(), NO_EFFECT, NO_EFFECT),
    "a missing package is no error of the step": (
        Claim.ERROR_GONE,
        FOREIGN,
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "a fix that breaks the script": (Claim.PEAK_FALLS, run(), ERROR, REFUTED, NOT_MEASURED),
    "a run that timed out": (
        Claim.PEAK_FALLS,
        ended(TIMED_OUT, "did not come to an end within 5 s", count=3),
        run(),
        NOT_MEASURED,
        NOT_MEASURED,
    ),
    "different steps": (Claim.PEAK_FALLS, run(), run(unit=ITERATION), NOT_MEASURED, NOT_MEASURED),
}


@pytest.mark.parametrize("name", CASES)
def test_verdict(name: str) -> None:
    claim, before, after, forward, backward = CASES[name]
    verdict = compare(before, after, (claim,))
    assert (verdict.kind, bool(verdict.reason)) == (forward, True)
    swapped = compare(after, before, (claim,))
    assert swapped.kind == backward
    assert swapped.kind != CONFIRMED, "a fix in reverse must never be confirmed"


@pytest.mark.parametrize("claim", list(Claim))
@pytest.mark.parametrize("same", [run(), TWICE, GROWS, NODES, ERROR], ids=lambda r: r.ending.kind)
def test_a_run_compared_with_itself_shows_nothing(claim: Claim, same: Run) -> None:
    assert compare(same, same, (claim,)).kind in (NO_EFFECT, NOT_MEASURED)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (ended(FINISHED, ""), run(), "ends before the first optimizer step before the fix"),
        (FOREIGN, run(), "before the fix the script needs the package timm"),
        (run(), ended("exited", "exits with status 3"), "after the fix the script exits with"),
        (ERROR, run(), "raises RuntimeError: no at line 7"),
    ],
)
def test_a_run_without_steps_gets_a_sentence(before: Run, after: Run, words: str) -> None:
    verdict = compare(before, after, (Claim.PEAK_FALLS,))
    assert verdict.kind == NOT_MEASURED
    assert words in verdict.reason


def test_any_of_several_claims_confirms() -> None:
    verdict = compare(NODES, run(), (Claim.PEAK_FALLS, Claim.NODES_STOP))
    assert (verdict.kind, verdict.claim) == (CONFIRMED, Claim.NODES_STOP)


def test_growth_is_seen_between_the_steps_of_one_optimizer() -> None:
    both = run(12, optimizer=lambda i: i % 2, nodes=lambda i: 20 + 8 * (i // 2))
    assert growth(main_steps(both), lambda step: step.nodes, 0.5) == 8


def test_the_second_optimizer_can_confirm() -> None:
    before = run(8, optimizer=lambda i: i % 2, scale_left=lambda i: 65536.0 if i % 2 else 1.0)
    before = replace(
        before,
        steps=tuple(replace(s, update_norm=6553.6) if s.optimizer else s for s in before.steps),
    )
    after = run(8, optimizer=lambda i: i % 2)
    assert compare(before, after, (Claim.UPDATE_RESTORED,)).kind == CONFIRMED


def test_a_summary_never_invents_numbers() -> None:
    nothing = summarise(run(0))
    assert (nothing.peak, nothing.growth, nothing.gradient_norm) == (None, None, None)
    noisy = summarise(run(host=lambda i: 200 * MIB + (i * 7919) % 40000))
    assert noisy.host_growth == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (MIB, "1.00 MiB"), (-2048, "-2.00 KiB")],
)
def test_bytes_carry_their_unit(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    "seconds, kind",
    [
        # The first measurement of both texts, and the second one.
        ((0.1, 0.1, 0.1, 0.02), CONFIRMED),
        ((0.1, 0.1, 0.1, 0.1), NO_EFFECT),
        ((0.1, 0.02), CONFIRMED),
    ],
)
def test_time_is_denied_only_when_measured_again(
    seconds: tuple[float, ...], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter(seconds)
    monkeypatch.setattr(Bench, "run_once", lambda *_: run(seconds=next(taken)))
    path = tmp_path / "train.py"
    path.write_text("")
    bench = Bench(script(path), Limits())
    found = bench.compare("slow", "fast", (Claim.STEP_FASTER,), None, "train.py")
    assert found.verdict.kind == kind
    assert list(taken) == []
