"""Carries out a probe inside of the child: what was held goes to the journal at the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from oomlint.verify import record
from oomlint.verify.holdings import Holdings, to_entry
from oomlint.verify.meters import CudaMeter, EmulatedMeter, Meter
from oomlint.verify.watching import WatchedAllocator, Watcher


def begin(meter: Meter) -> Callable[[], str]:
    """Starts to watch; returns what writes the line of holdings. Comes before the recorder."""
    if isinstance(meter, EmulatedMeter):
        allocator = meter.device.allocator
        assert isinstance(allocator, WatchedAllocator)
        allocator.watcher = watcher = Watcher(meter.device)
        held: Callable[[], Holdings] = partial(watcher.holdings, meter)
    else:
        assert isinstance(meter, CudaMeter)
        held = Peaks(meter).holdings
    return lambda: record.dump({"holdings": to_entry(held())})


class Peaks:
    """Highest bytes of a real device, whose own peaks the recorder resets after every step."""

    def __init__(self, meter: CudaMeter) -> None:
        self.meter = meter
        self.requested = self.allocated = self.reserved = 0
        self.steps = self.peak_step = 0
        register_optimizer_step_post_hook(self.after_step)

    def after_step(self, *args: object) -> None:
        self.look()
        self.steps += 1

    def look(self) -> None:
        memory = self.meter.memory()
        if memory.requested_peak > self.requested:
            self.requested, self.peak_step = memory.requested_peak, self.steps
        self.allocated = max(self.allocated, memory.allocated_peak)
        stats = torch.cuda.memory_stats()
        self.reserved = max(self.reserved, stats.get("reserved_bytes.all.peak", 0))

    def holdings(self) -> Holdings:
        self.look()
        stats = torch.cuda.memory_stats()
        return Holdings(
            requested_peak=self.requested,
            allocated_peak=self.allocated,
            reserved_peak=self.reserved,
            capacity=torch.cuda.get_device_properties(0).total_memory,
            host=self.meter.host(),
            retries=stats.get("num_alloc_retries", 0),
            ooms=stats.get("num_ooms", 0),
            step=self.peak_step,
        )
