"""What a run is asked to do beside running: for `measure`, not for `verify`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Probe:
    """Asks a child for its holdings, and may change how the script runs."""

    trace: str | None = None  # file for the requests that the allocator served
