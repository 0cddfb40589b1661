"""Draws what was found to fit: for a terminal or a pipe, and as a document for machines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from oomlint.verify.document import head
from oomlint.verify.drawing import Drawing
from oomlint.verify.fitting import MOST, Fit, growth
from oomlint.verify.holdings import confidence
from oomlint.verify.measure import Measurement
from oomlint.verify.measure_table import device_of
from oomlint.verify.record import plain
from oomlint.verify.remedies import EIGHT_BIT, Tried
from oomlint.verify.series import size
from oomlint.verify.trying import Wanted

BENT = 0.01  # share of all requests that grows with the square of the batch
TRIED_HEADS = ("with", "requested", "reserved", "time", "", "numbers")
HEADS = ("batch", "requested", "allocated", "reserved", "left", "")


@dataclass(frozen=True, slots=True)
class Found:
    """The largest batch, and a larger one that was wanted."""

    fit: Fit
    wanted: Wanted | None


def answer(fit: Fit) -> str:
    """The sentence that was asked for."""
    place = size(fit.capacity)
    if not fit.largest:
        return f"Not even a batch of 1 fits {place}."
    at_least = "at least " if fit.largest >= MOST else ""
    return f"The largest batch that fits {place} is {at_least}{fit.largest:,} ({fit.knob})."


def margin(fit: Fit) -> Iterator[str]:
    """How far the answer is from its edge, and what it rests on."""
    trial = fit.confirmed
    reserved = trial.measured.held.reserved_peak if trial is not None else None
    if reserved is None and fit.predicted is not None:
        reserved = fit.predicted.reserved
    if reserved is not None:
        left = fit.capacity - reserved
        yield f"It leaves {size(left)} of the capacity, {left / fit.capacity:.1%}."
        if 0 < fit.calm < fit.largest:
            yield (
                "To make room the allocator gives its cache back, which costs time; up to a batch "
                f"of {fit.calm:,} it does not have to."
            )
    if trial is not None and fit.beyond is not None:
        yield "A run with it came to its end on this capacity; with one sample more it did not."
    elif trial is not None:
        yield "A run with it came to its end on this capacity."
    elif fit.unaffordable:
        yield (
            f"It is predicted only: a run with values would take {size(fit.unaffordable)} of this "
            "machine's memory, which has not as much."
        )
    if fit.series is None:
        yield (
            "The runs at different batch sizes asked for different things, so that only their "
            "peaks were extended by a line: the prediction is rough."
        )
    elif fit.series.bend(fit.largest) > BENT:
        yield "Some tensors grow with the square of the batch."
    if fit.shapes:
        yield "The runs had no values: what the script would do with a number was not asked."
    elif fit.why_values:
        yield f"The runs had values, for {fit.why_values}."
    grown = growth(fit)
    if grown > 0:
        left = (fit.capacity - reserved) if reserved is not None else 0
        yield (
            f"Memory grows by {size(grown)} a step: after some {left // grown:,} steps more it "
            "will not fit."
        )
    yield "What the CUDA context takes outside of the allocator is not counted."


def rows(fit: Fit) -> Iterator[tuple[str, ...]]:
    for batch, found in zip(fit.batches, fit.runs, strict=True):
        yield measured_row(fit, batch, found, "measured")
    if fit.predicted is not None and fit.largest:
        peaks = fit.predicted
        sizes = (peaks.requested, peaks.allocated, peaks.reserved)
        yield row(fit, fit.largest, sizes, "predicted")
    for trial in sorted(fit.trials, key=lambda trial: trial.batch):
        what = "run on the capacity" if trial.fits else "runs out of memory"
        yield measured_row(fit, trial.batch, trial.measured, what)


def measured_row(fit: Fit, batch: int, found: Measurement, what: str) -> tuple[str, ...]:
    held = found.held
    sizes = (held.requested_peak, held.allocated_peak, held.reserved_peak)
    return row(fit, batch, sizes, what)


def row(fit: Fit, batch: int, sizes: tuple[int, ...], what: str) -> tuple[str, ...]:
    left = fit.capacity - sizes[-1]
    over = f"-{size(-left)}" if left < 0 else size(left)
    return (f"{batch:,}", *(size(value) for value in sizes), over, what)


def draw(found: Found, *, terminal: bool, color: bool, width: int | None) -> str:
    """The answer, what it rests on, the runs, and what would make the wanted batch fit."""
    fit = found.fit
    drawing = Drawing(terminal=terminal, color=color, width=width)
    last = fit.runs[-1]
    steps = len(last.run.steps)
    drawing.sentence(
        f"{last.path} on {device_of(last)}, torch {last.run.torch}, {steps} steps a run"
    )
    drawing.space()
    drawing.sentence(answer(fit), "bold")
    for sentence in margin(fit):
        drawing.sentence(sentence)
    drawing.table(HEADS, list(rows(fit)), words=1)
    if found.wanted is not None:
        draw_wanted(drawing, found.wanted)
    drawing.sentence(f"Confidence: {confidence(last.held)}")
    for doubt in last.held.doubts:
        drawing.sentence(f"- {doubt}")
    return drawing.text()


def draw_wanted(drawing: Drawing, wanted: Wanted) -> None:
    drawing.sentence(needs(wanted), "bold")
    if wanted.unaffordable:
        drawing.sentence(
            f"Nothing was tried with it: runs with values would take {size(wanted.unaffordable)} "
            "of this machine's memory, which has not as much."
        )
        drawing.space()
        return
    ran = [one for one in wanted.tried if one.ran]
    if ran:
        drawing.table(TRIED_HEADS, [tried_row(one) for one in ran], words=2)
    for one in wanted.tried:
        if not one.ran:
            drawing.sentence(f"- {one.title}: not run: {one.reason}")
    drawing.sentence(f"- {EIGHT_BIT}")
    drawing.space()


def needs(wanted: Wanted) -> str:
    took = f" needs {size(wanted.needs.reserved)} as the script is" if wanted.needs else ""
    fitting = sum(one.fits for one in wanted.tried)
    tried = sum(one.ran for one in wanted.tried)
    made = f": {fitting} of {tried} changes that were run make it fit" if tried else ""
    return f"A batch of {wanted.batch:,}{took or ' does not fit'}{made}."


def tried_row(one: Tried) -> tuple[str, ...]:
    time = "-" if one.pace is None else f"{one.pace:.2f}x"
    sizes = (size(one.requested), size(one.reserved))
    return (one.title, *sizes, time, "fits" if one.fits else "does not fit", one.numbers)


def document(found: Found) -> dict[str, Any]:
    """Everything as JSON values, but for the requests themselves."""
    fit, wanted = found.fit, found.wanted
    last = fit.runs[-1]
    values = plain(
        {
            **head("fits", last.path),
            "arguments": list(last.argv),
            "limits": asdict(last.limits),
            "capacity": fit.capacity,
            "batch": {"kind": fit.knob.kind, "name": fit.knob.name, "own": fit.knob.value},
            "largest": fit.largest,
            "predicted": asdict(fit.predicted) if fit.predicted is not None else None,
            "confirmed": fit.confirmed is not None,
            "sentences": list(margin(fit)),
            "confidence": confidence(last.held),
            "runs": [
                {"batch": batch, "fits": None, "holdings": asdict(found.held)}
                for batch, found in zip(fit.batches, fit.runs, strict=True)
            ],
            "trials": [
                {
                    "batch": trial.batch,
                    "fits": trial.fits,
                    "holdings": asdict(trial.measured.held),
                }
                for trial in fit.trials
            ],
            "without_retries": fit.calm,
            "wanted": None if wanted is None else asdict(wanted),
        }
    )
    assert isinstance(values, dict)
    return values
