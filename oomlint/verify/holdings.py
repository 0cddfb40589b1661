"""What a whole run held on the device: its peaks, and what was alive at the highest of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

PARAMETER = "parameter"
GRADIENT = "gradient"
OPTIMIZER_STATE = "optimizer state"
ACTIVATION = "activation"
INPUT = "input"
WORKSPACE = "workspace"
TEMPORARY = "temporary"  # of the backward pass or of the optimizer's step
OTHER = "other"
KINDS = (
    PARAMETER,
    GRADIENT,
    OPTIMIZER_STATE,
    ACTIVATION,
    INPUT,
    WORKSPACE,
    TEMPORARY,
    OTHER,
)


@dataclass(frozen=True, slots=True)
class Share:
    """Requested bytes and blocks that were alive at the peak, by what they have in common."""

    name: str  # a kind, or `file:row` of the line that took them
    size: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Holdings:
    """Peaks in bytes over the whole run, and what was alive when requested bytes were highest.

    `kinds` and `lines` are empty where nobody could look: on a real device without its history.
    """

    requested_peak: int
    allocated_peak: int
    reserved_peak: int
    capacity: int
    host: int  # bytes of resident memory at the end, without what the emulated device holds
    retries: int = 0  # times that the cache was given back to make room
    ooms: int = 0  # torch.OutOfMemoryError that were raised, whoever caught them
    step: int = 0  # finished steps when the peak came
    line: str = ""  # that took the block which made the peak
    kinds: tuple[Share, ...] = ()
    lines: tuple[Share, ...] = ()
    doubts: tuple[str, ...] = ()  # sentences on what was run and is not modelled exactly


def to_entry(holdings: Holdings) -> dict[str, Any]:
    return asdict(holdings)


def from_entry(entry: dict[str, Any]) -> Holdings:
    """What a child wrote; entries of a later version that are unknown here are left out."""
    known = {field.name for field in fields(Holdings)}
    values = {key: value for key, value in entry.items() if key in known}
    for key in ("kinds", "lines"):
        values[key] = tuple(Share(**share) for share in values.get(key, ()))
    return Holdings(**{**values, "doubts": tuple(values.get("doubts", ()))})


def confidence(holdings: Holdings) -> str:
    """`high` where everything that ran is modelled exactly, `medium` where it is not."""
    return "medium" if holdings.doubts else "high"
