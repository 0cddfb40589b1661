"""What a run is asked to do beside running: for `measure`, not for `verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oomlint.verify.textbook import Facts, facts_from


@dataclass(frozen=True, slots=True)
class Notes:
    """What a probed run leaves beside its record."""

    loader_batch: int | None  # that the script gives its first loader
    step_seconds: float | None  # of the processor, least of the later steps
    changed: int  # places where a remedy made a difference
    facts: Facts | None = None  # what the textbook's formula asks, where somebody wanted it


def notes_from(entry: dict[str, Any]) -> Notes:
    """What a child wrote of them as JSON."""
    facts = entry.get("facts")
    return Notes(**{**entry, "facts": facts_from(facts) if facts is not None else None})


SHAPES = (
    "torch._meta_registrations",
    "torch._subclasses.fake_impls",
    "torch.fx.experimental.symbolic_shapes",
)


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks a child for its holdings, and may change how the script runs."""

    trace: bool = False  # leaves the requests that the allocator served beside the record
    batch: int | None = None  # of the loaders that are like the first one
    enough: int | None = None  # batches that every loader has at least; it begins its data again
    remedies: tuple[str, ...] = ()  # names of remedies.REMEDIES' parts
    every: int = 1  # steps that add up to one of an optimizer
    silent: bool = False  # what the script prints is dropped
    shapes: bool = False  # tensors have no values
    stock: bool = False  # what the textbook's formula asks is noted
    assumed: float | None = None  # what stands for a number that is read from a tensor

    @property
    def modules(self) -> tuple[str, ...]:
        """What such runs load beside torch."""
        return SHAPES if self.shapes else ()


def probe_from(entry: dict[str, Any]) -> Probe:
    """What was written of a probe as JSON."""
    return Probe(**{**entry, "remedies": tuple(entry["remedies"])})
