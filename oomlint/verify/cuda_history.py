"""Accounts for a real device's memory by what its allocator records of itself."""

from __future__ import annotations

import linecache
import os
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from oomlint.verify import history
from oomlint.verify.device import storages
from oomlint.verify.history import Stacks
from oomlint.verify.holdings import PARAMETER, Holdings
from oomlint.verify.ledger import Ledger, Span
from oomlint.verify.meters import CudaMeter, Meter
from oomlint.verify.watching import on_construction, parts_of, parts_of_modules, shares_at_top

# Events between two steps; where more happen, the first of them are lost.
MOST_EVENTS = 1 << 20


class CudaHistory:
    """Reads the allocator's history at the end of every step and begins a new one.

    A script that records a history of its own ends this one: there is only one at a time.
    """

    def __init__(self, meter: CudaMeter, shares: int) -> None:
        self.meter = meter
        self.folder = os.getcwd()  # a script may leave it, or remove it
        self.ledger = Ledger(shares, torch.cuda.memory_reserved())
        self.stacks = Stacks(self.name, own=os.path.dirname(__file__))
        self.files: dict[str, str] = {}
        self.labels: list[tuple[int, str]] = []
        self.requested = self.allocated = self.reserved = 0  # highest so far
        self.begin = torch.cuda.memory._record_memory_history
        self.recording = self.restart()
        torch.cuda.memory._record_memory_history = self.give_way
        on_construction(self.note)
        register_optimizer_step_pre_hook(self.note)
        register_optimizer_step_post_hook(self.after_step)

    def restart(self) -> bool:
        """Whether this torch can forget what was read already."""
        try:
            self.begin(
                "all", context="alloc", stacks="python", max_entries=MOST_EVENTS, clear_history=True
            )
        except (TypeError, RuntimeError):
            return False
        return True

    def give_way(self, *args: Any, **kwargs: Any) -> None:
        self.recording = False
        self.begin(*args, **kwargs)

    def name(self, filename: str) -> str:
        try:
            name = str(Path(filename).relative_to(self.folder))
        except ValueError:
            name = filename
        self.files[name] = filename
        return name

    def note(self, optimizer: Any, *args: object) -> None:
        for tensor, kind in parts_of(optimizer):
            self.labels += [(address, kind) for address in addresses(tensor)]

    def after_step(self, optimizer: Any, *args: object) -> None:
        self.note(optimizer)
        self.ledger.steps += 1

    # -- accounts

    def look(self) -> None:
        """Peaks since the recorder set them back last."""
        memory = self.meter.memory()
        self.requested = max(self.requested, memory.requested_peak)
        self.allocated = max(self.allocated, memory.allocated_peak)
        reserved = torch.cuda.memory_stats().get("reserved_bytes.all.peak", 0)
        self.reserved = max(self.reserved, reserved)

    def replay(self) -> None:
        """Enters what the allocator has recorded since the last time."""
        if not self.recording:
            return
        device = torch.cuda.current_device()
        entries = torch.cuda.memory._snapshot()["device_traces"][device]
        self.recording = self.restart()
        history.replay(entries, self.ledger, self.stacks)
        for address, kind in self.labels:
            self.ledger.label(address, kind)
        self.labels.clear()

    def pending(self) -> bool:
        self.replay()
        return self.ledger.timeline.events > 0

    def cut(self, step: int, shares: int) -> Span:
        self.replay()
        for tensor in parts_of_modules():
            for address in addresses(tensor):
                self.ledger.label(address, PARAMETER)
        self.ledger.shares = shares
        return self.ledger.cut(step)

    def text(self, line: str) -> str:
        name, _, row = line.rpartition(":")
        file = self.files.get(name)
        return linecache.getline(file, int(row)).strip() if file else ""

    def holdings(self, meter: Meter) -> Holdings:
        self.look()
        stats = torch.cuda.memory_stats()
        return Holdings(
            requested_peak=self.requested,
            allocated_peak=self.allocated,
            reserved_peak=self.reserved,
            capacity=torch.cuda.get_device_properties(0).total_memory,
            host=meter.host(),
            retries=stats.get("num_alloc_retries", 0),
            ooms=stats.get("num_ooms", 0),
            **shares_at_top(self.ledger),
        )


def addresses(tensor: torch.Tensor) -> list[int]:
    """Where its memory begins; a sparse tensor has several places."""
    return [int(storage.data_ptr()) for storage in storages(tensor)]
