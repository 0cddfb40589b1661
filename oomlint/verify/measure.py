"""Measures one script as it is: runs it once and says what it held, and how that grew."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from oomlint.errors import OomlintError
from oomlint.source import Unreadable, read
from oomlint.verify import trace
from oomlint.verify.holdings import Holdings
from oomlint.verify.probe import Probe
from oomlint.verify.record import UNUSABLE, Run
from oomlint.verify.runner import Limits, run_text
from oomlint.verify.trace import Trace

TO_THE_END = sys.maxsize  # steps


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of a script, its arguments and its limits; `run.holdings` may be missing."""

    path: Path
    argv: tuple[str, ...]
    limits: Limits
    run: Run
    trace: Trace | None = None  # where a probe asked for it and the run came to write it

    @property
    def held(self) -> Holdings:
        """Raises OomlintError where the run ended before anybody could look."""
        if self.run.holdings is None:
            raise OomlintError(f"{self.path}: {self.run.ending.message}")
        return self.run.holdings


@dataclass(slots=True)
class Gauge:
    """Runs one script under changing arguments and probes."""

    path: Path
    argv: tuple[str, ...]
    limits: Limits
    quiet_stdout: bool = False
    watch: Callable[[str], None] | None = None
    text: str | None = None  # to run in place of the file's own

    def measure(self, what: str, probe: Probe | None = None, **changed: object) -> Measurement:
        """Raises OomlintError where nothing can be run at all, or the script cannot be read."""
        if self.watch is not None:
            self.watch(what)
        limits = replace(self.limits, **changed)  # type: ignore[arg-type]
        with TemporaryDirectory(prefix="oomlint-") as folder:
            run = run_text(
                self.path,
                self.text if self.text is not None else text_of(self.path),
                self.argv,
                None,
                limits,
                Path(folder),
                iterations=False,
                quiet_stdout=self.quiet_stdout,
                probe=probe or Probe(),
            )
            found = trace_in(Path(folder)) if probe is not None and probe.trace else None
        if run.ending.kind == UNUSABLE:
            raise OomlintError(run.ending.message)
        return Measurement(self.path, self.argv, limits, run, found)


def trace_in(folder: Path) -> Trace | None:
    files = list(folder.glob("*.trace"))
    try:
        return trace.load(files[0]) if files else None
    except (OSError, EOFError):
        return None


def text_of(path: Path) -> str:
    try:
        return read(path).text
    except Unreadable as error:
        raise OomlintError(f"{path}: {error}") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{path}: cannot be read: {reason}") from None
