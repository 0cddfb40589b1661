"""Carries out what a probe asks of a child beside running: other batches, a trace, times."""

from __future__ import annotations

import time
from array import array
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from oomlint.verify import curing, record, trace
from oomlint.verify.inventory import Inventory
from oomlint.verify.loaders import Loaders
from oomlint.verify.probe import Notes, Probe
from oomlint.verify.probing import Source
from oomlint.verify.trace import Trace
from oomlint.verify.watching import Watcher


class Changes:
    """Comes before the recorder, whose hooks end the process."""

    def __init__(self, probe: Probe, source: Source, out: str) -> None:
        self.out = Path(out)
        self.trace: Trace | None = None
        if probe.trace and isinstance(source, Watcher):
            self.trace = source.trace = Trace(array("q"), array("q"), array("q"))
        self.loaders = Loaders(probe.batch, probe.enough)
        self.loaders.install()
        self.cures = curing.install(probe.remedies, probe.every)
        self.inventory = Inventory() if probe.stock else None
        if self.inventory is not None:
            self.inventory.install()
        self.moments = [time.process_time()]
        register_optimizer_step_post_hook(self.after_step)

    def after_step(self, *args: object) -> None:
        self.moments.append(time.process_time())
        if self.trace is not None:
            self.trace.ends.append(len(self.trace.order))

    def step_seconds(self) -> float | None:
        """Fewest processor seconds from step to step, after the first one's end."""
        return min((later - earlier for earlier, later in pairwise(self.moments[1:])), default=None)

    def close(self) -> str:
        """The line of notes."""
        if self.trace is not None:
            self.trace.save(trace.beside(self.out))
        changed = sum(cure.changed for cure in self.cures)
        facts = self.inventory.facts() if self.inventory is not None else None
        notes = Notes(self.loaders.first, self.step_seconds(), changed, facts)
        return record.dump({"notes": asdict(notes)})
