"""What a rule author imports: Rule, Finding, Fix, Safety, Severity, Claim, Waypoint."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from oomlint.analysis import Model
    from oomlint.token_patterns import TokenPattern

REPOSITORY = "https://github.com/oomlint/oomlint"
# Of the codes of oomlint's own rules; third parties choose another.
PREFIX = "OOM"

FAMILIES = {
    "0": "oomlint's own comments",
    "1": "graphs and tensors kept alive",
    "2": "gradients across steps",
    "3": "mixed precision",
    "4": "allocator, loading and OOM handling",
    "5": "model code",
    "6": "distributed training",
    "9": "advice (off by default)",
}


class Severity(Enum):
    """How bad the flagged code is, by what it does when it runs."""

    ERROR = "error"  # wrong numbers, an exception, or certain OOM
    WARNING = "warning"  # memory or time is wasted
    ADVICE = "advice"  # worth knowing


class Safety(Enum):
    """Whether a fix leaves the numbers that the code computes as they are."""

    SAFE = "safe"
    UNSAFE = "unsafe"


class Claim(Enum):
    """What `oomlint verify` must measure for a fix to count as confirmed (before -> after)."""

    PEAK_FALLS = "the peak of device bytes falls"
    GROWTH_STOPS = "device bytes stop growing from step to step"
    NODES_STOP = "live autograd nodes stop growing from step to step"
    GRADIENT_SHRINKS = "the gradient norm at the step falls by the number of micro-batches"
    GRADIENT_WHOLE = "the step sees the gradient of the whole window"
    GRADIENT_STOPS_GROWING = "the gradient norm at the step stops growing with the steps"
    GRADIENT_RESTORED = "the gradient norm at the step rises to its true value"
    NORM_BOUNDED = "the gradient norm at the step respects max_norm"
    PARAMETERS_MOVE = "the parameters move"
    UPDATE_RESTORED = "the parameter update gets its true size"
    TRAINS_IN_TRAINING_MODE = "no training step runs a module in evaluation mode"
    GRADIENT_RISES = "the gradient norm of the first step rises"
    KEPT_WEIGHTS_STAY = "no tensor that is kept shares memory with the parameters that a step moves"
    SCHEDULE_FROM_START = "the first step uses the first learning rate of the schedule"
    SCHEDULE_PER_STEP = "the schedule advances once for each step"
    WINDOWS_EQUAL = "the first window has as many micro-batches as the others"
    STEPS_TAKEN = "the gradient scaler skips fewer steps"
    SCALER_AT_REST = "the gradient is the same without the work of a gradient scaler"
    GRADIENTS_SURVIVE = "fewer elements of the gradient are zero"
    FEWER_TRAIN = "fewer parameters are trained"
    REDUCTIONS_FALL = "gradients are averaged over the ranks less often"
    RANKS_AGREE = "a step sees no gradient that was not averaged over the ranks"
    SAMPLES_DIFFER = "the ranks train on different samples"
    EPOCHS_DIFFER = "every epoch brings the samples in another order"
    SHARDS_BOUNDED = "the gradient norm over all ranks respects max_norm"
    SEARCHES_FALL = "the gradient is the same with fewer searches for unused parameters"
    RECOMPUTATIONS_FALL = "fewer functions run again in the backward pass, with no higher peak"
    GRADIENTS_ARRIVE = "more parameters get a gradient"
    STEP_FASTER = "a step takes less time"
    ERROR_GONE = "the error is gone"
    WARNING_GONE = "the warning is gone"
    BYTES_FALL = "fewer device bytes stay allocated"
    DEVICE_ALLOCATIONS_FALL = "the allocator asks the device for memory less often"
    WAITS_FALL = "the host waits for the device less often"
    COPIES_FALL = "fewer tensors are copied from the host to the device"
    FEWER_WORKERS = "data loaders start fewer worker processes"
    WORKER_BYTES_FALL = "worker processes hold fewer bytes of their own"
    RUNS_AGREE = "two runs from different states of the random generators agree"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replaces the code points `start:end` by `content`; an insertion has start == end."""

    start: int
    end: int
    content: str


@dataclass(frozen=True, slots=True)
class Fix:
    """One remedy: a title in the imperative, its edits in ascending order, and its safety."""

    title: str
    edits: tuple[Edit, ...]
    safety: Safety


@dataclass(frozen=True, slots=True)
class Waypoint:
    """One event on the path that proves a finding; rows and columns are 1-based code points.

    `filename` is absolute, or empty for the file that holds the finding.
    """

    what: str
    row: int
    column: int
    end_row: int
    end_column: int
    filename: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A defect in one file; offsets and columns count code points, rows and columns start at 1."""

    code: str
    name: str
    message: str
    severity: Severity
    start: int
    end: int
    row: int
    column: int
    end_row: int
    end_column: int
    fix: Fix | None = None
    path: tuple[Waypoint, ...] = ()

    @property
    def url(self) -> str | None:
        return rule_url(self.code, self.name)


def rule_url(code: str, name: str) -> str | None:
    """The page of one of oomlint's own rules; None for a third party's."""
    if not code.startswith(PREFIX):
        return None
    return f"{REPOSITORY}/blob/main/docs/rules/{page_name(code, name)}"


def page_name(code: str, name: str) -> str:
    return f"{code.lower()}-{name}.md"


class Rule:
    """One question put to the model of a file; the docstring is the rule's only documentation."""

    code: ClassVar[str]
    name: ClassVar[str]
    severity: ClassVar[Severity]
    # All of these groups must have at least one word in the file for the rule to fire (sound).
    tokens: ClassVar[tuple[tuple[str, ...], ...]]
    # Where there are any, at least one must be in the file; strings and comments count.
    texts: ClassVar[tuple[str, ...]] = ()
    # Where words say too little: what must be found, too, in the code without texts (sound).
    token_pattern: ClassVar[TokenPattern | None] = None
    # Any one of these measured on a fix confirms it.
    claims: ClassVar[tuple[Claim, ...]]
    default: ClassVar[bool] = True
    preview: ClassVar[bool] = False
    # Whether it is about comments that silence others, and so is asked after them.
    of_comments: ClassVar[bool] = False
    # Whether it is about cells, and so asked of notebooks and of scripts with `# %%` only.
    of_cells: ClassVar[bool] = False

    taken: ClassVar[dict[str, type[Rule]]] = {}

    def __init_subclass__(cls) -> None:
        if not re.fullmatch(r"[A-Z]{3}\d{3}", cls.code):
            raise TypeError(f"{cls.__qualname__}: `{cls.code}` is no code of the form OOM101")
        other = Rule.taken.setdefault(cls.code, cls)
        if other is not cls and (other.__module__, other.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise TypeError(f"{cls.code} is taken by {other.__module__}.{other.__qualname__}")

    def check(self, model: Model) -> Iterator[Finding]:
        raise NotImplementedError

    @classmethod
    def explanation(cls) -> str:
        return inspect.cleandoc(cls.__doc__ or "")

    @classmethod
    def summary(cls) -> str:
        """The first sentence of "What it does"."""
        body = cls.explanation().split("## What it does", 1)[-1].strip()
        return " ".join(body.split("\n\n", 1)[0].split())

    @classmethod
    def url(cls) -> str | None:
        return rule_url(cls.code, cls.name)
