"""What one run of a script left behind: a record per step, and how the run ended."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

from oomlint.verify.holdings import Holdings
from oomlint.verify.ledger import Held, Span
from oomlint.verify.probe import Notes

OPTIMIZER = "optimizer step"
ITERATION = "iteration"

# Ways a run ends. A run that ended otherwise than STOPPED or FINISHED is no measurement by itself.
STOPPED = "stopped"  # after the steps that were asked for
FINISHED = "finished"  # the script came to its own end
RAISED = "raised"
EXITED = "exited"
TIMED_OUT = "timed out"
OUT_OF_MEMORY = "out of memory"  # host memory above the limit
KILLED = "killed"
NEEDS_VALUES = "needs values"  # where tensors have shapes only
UNUSABLE = "unusable"  # it never came to the script


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt of an optimizer to step, or one iteration of a loop that has no optimizer.

    Bytes are at the end of the step; peaks are since the end of the one before. `requested` is
    what tensors asked for, `allocated` what the caching allocator gave. Norms are L2 over the
    parameters of the optimizer; the gradient's is in true units, as the optimizer uses it.
    """

    unit: str
    extent: int  # which entry into the loop the iteration belongs to
    optimizer: int  # ordinal of the optimizer, in order of first steps
    requested: int
    requested_peak: int
    allocated: int
    allocated_peak: int
    reserved: int
    live_tensors: int
    nodes: int
    host: int
    seconds: float
    gradient_norm: float | None = None
    update_norm: float | None = None
    loss: float | None = None
    skipped: bool = False  # the gradient scaler found inf or nan and did not step
    backwards: int = 0  # backward passes since the optimizer's last attempt
    held: int = 0  # backward passes whose gradients the attempt saw
    scale_left: float = 1.0  # factor still in the gradients that the optimizer used
    max_norm: float | None = None  # of the clipping that the script does
    norm_type: float | None = None
    bounded_norm: float | None = None  # of the clipped parameters at the step, in norm_type
    raw_norm: float | None = None  # before clipping, in true units
    device_allocations: int = 0  # requests that the cache could not serve
    waits: int | None = None  # of the host for the device, on the emulated one
    copies: int | None = None  # of tensors from the host, on the emulated device
    workers: int = 0  # processes that data loaders started
    worker_bytes: int | None = None  # of host memory that child processes share with nobody
    evaluating: int = 0  # modules around the optimizer's parameters that are in evaluation mode
    trainable: int | None = None  # elements of the optimizer's parameters that require gradients
    gradless: int = 0  # parameters that require a gradient and have none
    aliases: int = 0  # other live tensors in the memory of the optimizer's parameters
    scaler_calls: int = 0  # that scale a loss or unscale gradients, since the last attempt
    zero_share: float | None = None  # of the elements of the gradient
    reductions: int = 0  # buckets of gradients that data-parallel models averaged over the ranks
    unreduced: int = 0  # of `held`, backward passes that no such average holds
    advances: int = 0  # of the learning-rate schedule since the optimizer's last attempt
    # With several ranks and a data-parallel model: a digest of the gradient's bytes, and one for
    # each row that the model was given since the last attempt.
    fingerprint: str = ""
    samples: tuple[str, ...] = ()
    searches: int = 0  # of data-parallel models for parameters that got no gradient
    recomputations: int = 0  # of checkpointed functions in a backward pass
    output: float | None = None  # an iteration's: sum of the magnitudes of what models returned


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended; `message` is one sentence without the file's name."""

    kind: str
    message: str = ""
    row: int | None = None
    error: str = ""

    @property
    def cure(self) -> str:
        """What its user can do about it, as the end of a sentence, where that is known."""
        if "needs the package" in self.message:
            return "; --python names an interpreter that has it"
        return ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one text of a script."""

    device: str
    torch: str
    unit: str
    steps: tuple[Step, ...]
    ending: Ending
    warnings: tuple[str, ...] = ()  # that point at the script, once each
    other: tuple[Step, ...] | None = None  # of a second run, from another seed
    peers: tuple[tuple[Step, ...], ...] = ()  # steps of the other ranks; `steps` are the first's
    notes: Notes | None = None  # where a probe asked for them
    holdings: Holdings | None = None  # of the whole run, where it came to its end
    # The device's memory in order of time; the span of step n belongs to `steps[n - 1]`.
    spans: tuple[Span, ...] = ()
    lines: Mapping[str, str] = field(default_factory=dict)  # what is written there, by `file:row`
    # Parameters of a function that were stood in for: name, by what, how its part was known.
    stood: tuple[tuple[str, str, str], ...] = ()

    @property
    def measured(self) -> bool:
        return self.ending.kind in (STOPPED, FINISHED) and bool(self.steps)


def dump(value: Any) -> str:
    """A line of strict JSON; numbers that JSON lacks become strings."""
    return json.dumps(plain(value), allow_nan=False)


def plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


SPAN_FIELDS = tuple(field.name for field in fields(Span))


def step_line(step: Step) -> str:
    return dump({"step": asdict(step)})


def span_line(span: Span, lines: Mapping[str, str]) -> str:
    """A span, and what is written on lines that no span had before."""
    entry = {name: getattr(span, name) for name in SPAN_FIELDS}
    rows = {name: [astuple(held) for held in entry[name]] for name in ("at_peak", "at_end")}
    return dump({"span": {**entry, **rows}, "lines": lines})


def span_from(entry: dict[str, Any]) -> Span:
    rows = {name: tuple(Held(*row) for row in entry[name]) for name in ("at_peak", "at_end")}
    curves = {name: tuple(entry[name]) for name in ("allocated", "reserved")}
    return Span(**{**entry, **rows, **curves})


def load(path: Path) -> tuple[dict[str, Any], tuple[Step, ...], Ending | None]:
    """What a child wrote, as far as it came: head, steps and ending (None if it wrote none)."""
    head: dict[str, Any] = {}
    steps: list[Step] = []
    ending = None
    try:
        text = path.read_text("utf-8")
    except OSError:
        return head, (), None
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            break  # the line that was being written when the child died
        if "step" in entry:
            steps.append(step_from(entry["step"]))
        elif "span" in entry:
            head.setdefault("spans", []).append(span_from(entry["span"]))
            head.setdefault("lines", {}).update(entry["lines"])
        elif "warning" in entry:
            head.setdefault("warnings", []).append(entry["warning"])
        elif "ending" in entry:
            ending = Ending(**entry["ending"])
            head["moment"] = entry["moment"]
        else:
            head.update(entry)
    return head, tuple(steps), ending


def step_from(entry: dict[str, Any]) -> Step:
    floats = {field.name for field in fields(Step) if "float" in str(field.type)}
    values: dict[str, Any] = {
        key: float(value) if key in floats and value is not None else value
        for key, value in entry.items()
    }
    return Step(**{**values, "samples": tuple(entry.get("samples", ()))})
