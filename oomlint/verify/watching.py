"""Follows every block of the emulated device: which line took it, what for, until when."""

from __future__ import annotations

import gc
import os
import site
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

import oomlint
from oomlint.verify import holdings
from oomlint.verify.allocator import Allocator
from oomlint.verify.blocks import Block
from oomlint.verify.device import TAG, Device, storages
from oomlint.verify.doubts import doubts
from oomlint.verify.holdings import Holdings, Share
from oomlint.verify.meters import Meter

MOST_EVENTS = 1 << 18  # that wait to be looked through
MOST_LINES = 40


@dataclass(slots=True, eq=False)
class Taken:
    """One request that the allocator served."""

    serial: int
    size: int  # requested bytes
    line: str
    kind: str


class Watcher:
    """Knows what is alive, and what was at the highest peak of requested bytes."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.places = Places()
        self.serials = count()
        self.taken: dict[Block, Taken] = {}
        self.alive: dict[int, Taken] = {}
        self.events: list[tuple[Taken, bool]] = []
        self.size = 0  # of what is alive before the events
        self.peak = 0
        self.allocated = self.reserved = 0  # highest so far
        self.at_peak: tuple[Taken, ...] = ()
        self.maker: Taken | None = None
        self.steps = self.peak_step = 0
        self.stepping = False
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)

    # -- what the allocator tells

    def took(self, block: Block, allocator: WatchedAllocator) -> None:
        taken = Taken(next(self.serials), block.requested, self.places.line(), self.kind())
        self.taken[block] = taken
        self.events.append((taken, True))
        state = allocator._statistics
        self.allocated = max(self.allocated, state.allocated.current)
        self.reserved = max(self.reserved, state.reserved.current)
        if len(self.events) >= MOST_EVENTS:
            self.settle()

    def gave(self, block: Block) -> None:
        taken = self.taken.pop(block, None)
        if taken is not None:
            self.events.append((taken, False))

    def kind(self) -> str:
        """What a new block is taken for, as far as that is known by now."""
        state = self.device.state
        if state.placement is not None:
            return holdings.INPUT
        if self.stepping:
            return holdings.TEMPORARY
        if torch.is_grad_enabled():
            return holdings.ACTIVATION
        return holdings.TEMPORARY if state.backward else holdings.OTHER

    # -- steps

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.note(optimizer)
        self.stepping = True

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self.stepping = False
        self.note(optimizer)
        self.settle()
        self.steps += 1

    def note(self, optimizer: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self.mark(parameters, holdings.PARAMETER)
        self.mark((p.grad for p in parameters if p.grad is not None), holdings.GRADIENT)
        state = (value for values in optimizer.state.values() for value in flat(values))
        self.mark(state, holdings.OPTIMIZER_STATE)

    def note_modules(self) -> None:
        """Models that no optimizer trains."""
        for thing in gc.get_objects():
            if issubclass(type(thing), torch.nn.Module):
                parts = (*thing.parameters(recurse=False), *thing.buffers(recurse=False))
                self.mark(parts, holdings.PARAMETER)

    def mark(self, tensors: Iterable[Any], kind: str) -> None:
        for tensor in tensors:
            for storage in storages(tensor):
                self.mark_block(getattr(getattr(storage, TAG, None), "block", None), kind)

    def mark_block(self, block: Block | None, kind: str) -> None:
        taken = self.taken.get(block) if block is not None else None
        if taken is not None:
            taken.kind = kind

    def settle(self) -> None:
        """Looks through the events since the last time for a higher peak."""
        events, self.events = self.events, []
        size = self.size
        highest, place = self.peak, -1
        for index, (taken, came) in enumerate(events):
            size += taken.size if came else -taken.size
            if size > highest:
                highest, place = size, index
        if place >= 0:
            for taken, came in events[: place + 1]:
                self.apply(taken, came)
            self.peak, self.at_peak = highest, tuple(self.alive.values())
            self.maker, self.peak_step = events[place][0], self.steps
        for taken, came in events[place + 1 :]:
            self.apply(taken, came)
        self.size = size

    def apply(self, taken: Taken, came: bool) -> None:
        if came:
            self.alive[taken.serial] = taken
        else:
            self.alive.pop(taken.serial, None)

    # -- the end

    def holdings(self, meter: Meter) -> Holdings:
        with self.device.paused():
            self.note_modules()
        for hold in self.device.workspaces.values():
            self.mark_block(hold.block, holdings.WORKSPACE)
        self.settle()
        state = self.device.allocator.statistics()
        return Holdings(
            requested_peak=self.peak,
            allocated_peak=self.allocated,
            reserved_peak=self.reserved,
            capacity=self.device.allocator.capacity,
            host=meter.host(),
            retries=state.retries,
            ooms=state.ooms,
            step=self.peak_step,
            line=self.maker.line if self.maker is not None else "",
            kinds=shares((taken.kind, taken.size) for taken in self.at_peak),
            lines=shares((taken.line, taken.size) for taken in self.at_peak)[:MOST_LINES],
            doubts=doubts(self.device.operators, self.device.profile),
        )


class WatchedAllocator(Allocator):
    """Tells a watcher of every block that it hands out and gets back."""

    watcher: Watcher  # set before anything is asked for

    def malloc(self, request: int, stream: int = 0) -> Block | None:
        block = super().malloc(request, stream)
        if block is not None:
            self.watcher.took(block, self)
        return block

    def free(self, block: Block) -> None:
        self.watcher.gave(block)
        super().free(block)


class Places:
    """Names the line of the user's code that is being executed."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}  # what a line of each file begins with; empty: not theirs
        own = sysconfig.get_paths()
        roots = {own[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        roots |= {
            os.path.dirname(oomlint.__file__),
            os.path.dirname(os.path.dirname(torch.__file__)),
        }
        roots |= {*site.getsitepackages(), site.getusersitepackages()}
        self.foreign = tuple(os.path.join(os.path.realpath(root), "") for root in roots)

    def line(self) -> str:
        """`file:row` of the innermost frame that is neither Python's, torch's nor a package's."""
        frame = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            start = self.known.get(name)
            if start is None:
                start = self.known[name] = self.start(name)
            if start:
                return f"{start}{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def start(self, name: str) -> str:
        if not os.path.isfile(name) or os.path.realpath(name).startswith(self.foreign):
            return ""
        try:
            return f"{Path(name).relative_to(Path.cwd())}:"
        except ValueError:
            return f"{name}:"


def flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from flat(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)


def shares(pairs: Iterable[tuple[str, int]]) -> tuple[Share, ...]:
    """The sums by name, the largest first."""
    sizes: dict[str, int] = defaultdict(int)
    blocks: dict[str, int] = defaultdict(int)
    for name, size in pairs:
        sizes[name] += size
        blocks[name] += 1
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    return tuple(Share(name, sizes[name], blocks[name]) for name in order)
