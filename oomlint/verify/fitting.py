"""Finds the largest batch that fits a device: predicts it from three small runs, then tries it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from oomlint.errors import OomlintError
from oomlint.verify import knobs, trace
from oomlint.verify.allocator_settings import from_environment
from oomlint.verify.knobs import LOADER, LOADERS, Knob
from oomlint.verify.measure import Gauge, Measurement, text_of
from oomlint.verify.probe import Probe
from oomlint.verify.record import FINISHED, NEEDS_VALUES, RAISED, STOPPED
from oomlint.verify.series import main_steps
from oomlint.verify.sizes import GIB
from oomlint.verify.trace import Peaks, Series

STEPS = 3
BOUNDLESS = 1 << 50  # bytes; runs that are measured to predict others never run out
MOST = 1 << 16
CORRECTIONS = 4
# Of the host's free memory, for a run with values; the process itself takes about this much.
SHARE, PROCESS = 0.7, GIB
OUT_OF_MEMORY = "OutOfMemoryError"


@dataclass(frozen=True, slots=True)
class Trial:
    """A run at one batch size on a device of a given capacity."""

    batch: int
    fits: bool
    measured: Measurement


@dataclass(frozen=True, slots=True)
class Fit:
    """The largest batch that fits; 0 where not even one sample does.

    `predicted` is what the allocator model says of it, None where the runs at different batch
    sizes asked for different things, so that only their peaks could be extended by a line.
    """

    knob: Knob
    capacity: int
    shapes: bool  # whether the runs had no values
    why_values: str  # the line that needs them
    runs: tuple[Measurement, ...]  # at three batch sizes
    batches: tuple[int, ...]
    largest: int
    predicted: Peaks | None
    series: Series | None
    calm: int = 0  # the largest batch for which the allocator never gives its cache back
    trials: tuple[Trial, ...] = ()
    unaffordable: int = 0  # bytes of host memory that the trial would have needed

    @property
    def confirmed(self) -> Trial | None:
        return next((t for t in self.trials if t.batch == self.largest and t.fits), None)

    @property
    def beyond(self) -> Trial | None:
        """A run that shows that one sample more does not fit."""
        return next((t for t in self.trials if t.batch == self.largest + 1 and not t.fits), None)


@dataclass(slots=True)
class Fitter:
    """Runs one script at other batch sizes."""

    gauge: Gauge
    capacity: int
    named: str | None = None
    assumed: float | None = None
    shapes: bool = True
    why_values: str = ""
    text: str = ""
    knob: Knob = LOADERS
    look: Measurement | None = None

    def fit(self) -> Fit:
        """Raises OomlintError where there is no batch size, or nothing that depends on it."""
        self.prepare()
        return self.search()

    def prepare(self) -> None:
        """Finds the batch size and whether the script runs without values."""
        self.text = text_of(self.gauge.path)
        self.knob = self.find_knob()
        self.look = self.run(None, "as it is")
        ending = self.look.run.ending
        if ending.kind in (NEEDS_VALUES, RAISED) and ending.error != OUT_OF_MEMORY:
            self.shapes, self.why_values = False, ending.message
            if ending.kind == RAISED or self.knob.kind == LOADER:
                self.look = self.run(None, "as it is, with values")
        if self.knob.kind == LOADER:
            notes = self.look.run.notes
            if notes is None or notes.loader_batch is None:
                raise OomlintError(
                    f"{self.gauge.path} has no batch size that could be found: no argument or "
                    "number of such a name, no DataLoader; name it with --batch-argument"
                )
            self.knob = replace(self.knob, value=notes.loader_batch)

    def find_knob(self) -> Knob:
        try:
            return knobs.find(self.text, self.gauge.argv, self.named) or LOADERS
        except SyntaxError as error:
            where = f"{self.gauge.path}:{error.lineno}"
            raise OomlintError(f"{where}: is no Python: {error.msg}") from None
        except LookupError:
            raise OomlintError(
                f"--batch-argument: {self.gauge.path} has neither an argument nor a number of the "
                f"name `{self.named}`"
            ) from None

    def search(self) -> Fit:
        batches = batches_for(self.knob.value)
        traces, runs = [], []
        for batch in batches:
            found = self.run(batch, f"batch {batch}", traced=True)
            if found.run.ending.kind not in (STOPPED, FINISHED):
                raise OomlintError(f"{self.gauge.path} with a batch of {batch} {wrong(found)}")
            runs.append(found)
            if found.trace is None:
                raise OomlintError(f"{self.gauge.path} left no record of its requests")
            traces.append(found.trace)
        series = trace.series(batches, traces)
        if not grows(runs):
            raise OomlintError(
                f"{self.knob} changes nothing that {self.gauge.path} holds on the device; "
                "name what does with --batch-argument"
            )
        largest, predicted = self.predict(series, runs, batches)
        fit = Fit(
            knob=self.knob,
            capacity=self.capacity,
            shapes=self.shapes,
            why_values=self.why_values,
            runs=tuple(runs),
            batches=batches,
            largest=largest,
            predicted=predicted,
            series=series,
            calm=self.calm(series, predicted),
        )
        return self.confirm(fit)

    def predict(
        self, series: Series | None, runs: list[Measurement], batches: tuple[int, ...]
    ) -> tuple[int, Peaks | None]:
        if series is None:
            return by_line(runs, batches, self.capacity), None
        settings = from_environment()
        found = trace.largest(series, self.capacity, settings, MOST)
        return found, trace.replay(series.order, series.sizes(found), self.capacity, settings)

    def calm(self, series: Series | None, predicted: Peaks | None) -> int:
        if series is None or predicted is None or not predicted.retries:
            return 0
        return trace.largest(series, self.capacity, from_environment(), MOST, calm=True)

    def confirm(self, fit: Fit) -> Fit:
        """Tries the batch and one more; goes to where the first fits and the other does not."""
        needed = 0 if self.shapes else host_needed(fit)
        if needed > SHARE * available_memory():
            return replace(fit, unaffordable=needed)
        trials: dict[int, Trial] = {}
        largest = fit.largest
        for _ in range(CORRECTIONS):
            if largest and not self.tried(largest, trials).fits:
                largest -= max(1, largest // 100)
                continue
            if largest < MOST and self.tried(largest + 1, trials).fits:
                largest += max(1, largest // 100)
                continue
            break
        good = max((batch for batch, trial in trials.items() if trial.fits), default=0)
        moved = largest != fit.largest
        predicted = None if moved else fit.predicted
        return replace(
            fit,
            largest=good if moved else largest,
            predicted=predicted,
            trials=tuple(trials.values()),
        )

    def tried(self, batch: int, trials: dict[int, Trial]) -> Trial:
        if batch not in trials:
            found = self.run(batch, f"batch {batch}, on this capacity", capacity=self.capacity)
            trials[batch] = Trial(batch, fitted(found), found)
        return trials[batch]

    def run(
        self,
        batch: int | None,
        what: str,
        *,
        traced: bool = False,
        capacity: int = BOUNDLESS,
        change: Callable[[Probe], Probe] = lambda probe: probe,
    ) -> Measurement:
        """One run at a batch size, or at the script's own."""
        text, argv, loader = self.text, self.gauge.argv, None
        if batch is not None:
            text, argv, loader = self.knob.turned(batch, text, argv)
        steps = self.gauge.limits.steps
        probe = Probe(
            trace=traced,
            batch=loader,
            enough=min(steps, 64) + 1,
            shapes=self.shapes,
            assumed=self.assumed,
            silent=True,
        )
        gauge = replace(self.gauge, argv=argv, text=text)
        return gauge.measure(what, change(probe), capacity=capacity)


def batches_for(value: int | None) -> tuple[int, int, int]:
    """Three batch sizes at equal distances, below the script's own; one is no batch to many."""
    low = max(2, (value or 8) // 4)
    return low, 2 * low, 3 * low


def fitted(found: Measurement) -> bool:
    """Whether a run came to its end without one request that failed. Raises OomlintError."""
    held = found.run.holdings
    if held is not None and held.ooms:
        return False
    if found.run.ending.kind in (STOPPED, FINISHED):
        return True
    if found.run.ending.error == OUT_OF_MEMORY:
        return False
    raise OomlintError(f"{found.path} {' '.join(found.argv)} {wrong(found)}")


def wrong(found: Measurement) -> str:
    ending = found.run.ending
    row = f" at line {ending.row}" if ending.row else ""
    return f"{ending.message}{row}"


def grows(runs: list[Measurement]) -> bool:
    return runs[-1].held.requested_peak > runs[0].held.requested_peak


def by_line(runs: list[Measurement], batches: tuple[int, ...], capacity: int) -> int:
    """Where the line through the first and the last reserved peak meets the capacity."""
    low, high = (run.held.reserved_peak for run in (runs[0], runs[-1]))
    slope = (high - low) / (batches[-1] - batches[0])
    if slope <= 0:
        slope = (runs[-1].held.requested_peak - runs[0].held.requested_peak) / (
            batches[-1] - batches[0]
        )
    return max(0, min(MOST, int(batches[0] + (capacity - low) / slope)))


def host_needed(fit: Fit) -> int:
    """Bytes of host memory that a run with values at the largest batch takes."""
    peak = fit.predicted.requested if fit.predicted is not None else fit.capacity
    return int(peak) + PROCESS


def available_memory() -> int:
    """Bytes that the host can still give; no limit where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            rows = dict(line.split(":", 1) for line in file)
        return int(rows["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def growth(fit: Fit) -> int:
    """Bytes that the last of the three runs kept from its last but one step to the last."""
    steps = main_steps(fit.runs[-1].run)
    return steps[-1].requested - steps[-2].requested if len(steps) > 2 else 0
