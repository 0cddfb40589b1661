"""Runs a script at a batch that does not fit with each remedy, and measures what it brought."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from oomlint.errors import OomlintError
from oomlint.verify import trace
from oomlint.verify.allocator_settings import from_environment
from oomlint.verify.fitting import (
    BOUNDLESS,
    PROCESS,
    SHARE,
    Fit,
    Fitter,
    available_memory,
    wrong,
)
from oomlint.verify.measure import Measurement
from oomlint.verify.probe import Probe
from oomlint.verify.record import FINISHED, STOPPED
from oomlint.verify.remedies import (
    ATTENTION,
    AUTOCAST,
    REMEDIES,
    TOGETHER,
    Remedy,
    Tried,
)
from oomlint.verify.trace import Peaks

MICRO_TITLE = "micro-batches of {} added up over {}"
MICRO_TRIES = 3
PACE_STEPS, PACE_BATCH = 4, 2
PACE_SECONDS = 30.0  # for a run that only tells how long a step takes


@dataclass(frozen=True, slots=True)
class Wanted:
    """A batch, what it takes as the script is, and what was tried to make it fit."""

    batch: int
    needs: Peaks | None
    tried: tuple[Tried, ...]
    unaffordable: int = 0  # bytes of host memory that runs with values would have needed


@dataclass(slots=True)
class Trier:
    """Runs one fitter's script with remedies."""

    fitter: Fitter
    fit: Fit
    batch: int
    plain_seconds: float | None = None
    affordable: bool = True  # whether runs with values at the small batch are

    def run(self) -> Wanted:
        needs = self.needs()
        host = 0 if self.fit.shapes else (needs.requested if needs else self.fit.capacity) + PROCESS
        if host > SHARE * available_memory():
            return Wanted(self.batch, needs, (), host)
        self.affordable = self.fit.runs[0].held.requested_peak + PROCESS < (
            SHARE * available_memory()
        )
        self.plain_seconds = self.seconds(lambda probe: probe)
        return Wanted(self.batch, needs, tuple(self.tried()))

    def needs(self) -> Peaks | None:
        """What the batch takes as the script is, by the runs at smaller ones."""
        series = self.fit.series
        if series is None:
            return None
        sizes = series.sizes(self.batch)
        return trace.replay(series.order, sizes, BOUNDLESS, from_environment())

    def tried(self) -> Iterator[Tried]:
        first = [self.try_one(remedy) for remedy in REMEDIES if remedy.name != TOGETHER]
        yield from first
        yield self.try_micro_batches()
        joint = next(remedy for remedy in REMEDIES if remedy.name == TOGETHER)
        pairs = zip(first, REMEDIES, strict=False)
        alone = [one for one, remedy in pairs if remedy.name in joint.parts]
        if sum(one.ran for one in alone) > 1 and not any(one.fits for one in alone):
            yield self.try_one(joint)

    def try_one(self, remedy: Remedy) -> Tried:
        def change(probe: Probe) -> Probe:
            return replace(probe, remedies=remedy.parts)

        found = self.fitter.run(self.batch, remedy.title, traced=True, change=change)
        changed = found.run.notes.changed if found.run.notes is not None else 0
        if not changed:
            reason = remedy.lacking
            if remedy.name == ATTENTION:
                reason = written_out(self.fitter) or reason
            return Tried(remedy.title, remedy.numbers, reason=reason)
        pace = None
        if AUTOCAST not in remedy.parts:  # halves are slow on a CPU, and nowhere else
            pace = self.pace(self.seconds(change))
        return self.judged(found, remedy.title, remedy.numbers, pace)

    def try_micro_batches(self) -> Tried:
        """The largest micro-batch that divides the batch and fits."""
        numbers = "the same but for batch norms"
        counts = [n for n in range(2, self.batch + 1) if self.batch % n == 0]
        likely = [n for n in counts if self.batch // n <= self.fit.largest]
        tried = Tried(MICRO_TITLE.format("?", "?"), numbers, "no smaller batch fits either")
        for every in likely[:MICRO_TRIES]:
            small = self.batch // every
            title = MICRO_TITLE.format(small, every)

            def change(probe: Probe, every: int = every) -> Probe:
                return replace(probe, every=every, enough=(probe.enough or 1) * every)

            found = self.fitter.run(small, title, traced=True, change=change)
            tried = self.judged(found, title, numbers, None)
            if tried.fits:
                break
        return tried

    def judged(self, found: Measurement, title: str, numbers: str, pace: float | None) -> Tried:
        if found.run.ending.kind not in (STOPPED, FINISHED) or found.trace is None:
            return Tried(title, numbers, reason=f"with it the script {wrong(found)}")
        settings = from_environment()
        order, sizes = found.trace.order, found.trace.sizes
        fits = trace.replay(order, sizes, self.fit.capacity, settings) is not None
        held = found.held
        return Tried(
            title, numbers, "", held.requested_peak, held.reserved_peak, fits=fits, pace=pace
        )

    def seconds(self, change: object) -> float | None:
        """Of the processor for a step at a small batch, with values."""
        if not self.affordable:
            return None
        assert callable(change)
        fitter = replace(self.fitter, shapes=False)
        limits = replace(fitter.gauge.limits, timeout=PACE_SECONDS, steps=PACE_STEPS)
        fitter.gauge = replace(fitter.gauge, limits=limits)
        found = fitter.run(PACE_BATCH, "time of a step", change=change)
        if found.run.ending.kind not in (STOPPED, FINISHED) or found.run.notes is None:
            self.affordable = False  # the others would not end in time either
            return None
        return found.run.notes.step_seconds

    def pace(self, seconds: float | None) -> float | None:
        if not seconds or not self.plain_seconds:
            return None
        return seconds / self.plain_seconds


def written_out(fitter: Fitter) -> str:
    """Why attention that the script writes out was not replaced; empty where there is none."""
    from oomlint.settings import SettingsFinder
    from oomlint.verify import findings_of

    settings = SettingsFinder(isolated=True).for_file(fitter.gauge.path)
    try:
        _, findings = findings_of(fitter.gauge.path, settings)
    except OomlintError:
        return ""
    rows = [str(finding.row) for finding in findings if finding.code == "OOM501"]
    if not rows:
        return ""
    lines = f"line {rows[0]}" if len(rows) == 1 else f"lines {', '.join(rows)}"
    return (
        f"it cannot be put in place of the scores that are written out at {lines}; call "
        "torch.nn.functional.scaled_dot_product_attention there and measure again"
    )
