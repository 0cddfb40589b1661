"""Follows every block of the emulated device: which line took it, what for, until when."""

from __future__ import annotations

import functools
import gc
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from oomlint.verify import holdings
from oomlint.verify.allocator import Allocator
from oomlint.verify.blocks import Block, Pools
from oomlint.verify.device import TAG, Device, storages
from oomlint.verify.doubts import doubts
from oomlint.verify.holdings import Holdings, Share
from oomlint.verify.ledger import Entry, Ledger, Span
from oomlint.verify.meters import Meter
from oomlint.verify.trace import EMPTY_CACHE, Trace
from oomlint.verify.user_lines import Places

MOST_LINES = 40


class Watcher:
    """Accounts for every block by the line that took it and by what it is for."""

    def __init__(self, device: Device, shares: int) -> None:
        self.device = device
        self.places = Places()
        self.ledger = Ledger(shares)
        self.taken: dict[Block, tuple[int, Entry]] = {}
        self.serials = count()
        # Blocks end anywhere, in the middle of the ledger's work, too: they queue.
        self.events: deque[tuple[int, Entry | None, int]] = deque()
        self.lock = threading.Lock()
        self.allocated = self.reserved = 0  # highest so far
        self.stepping = False
        self.trace: Trace | None = None  # of all requests, where somebody wants it
        on_construction(self.note)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)

    # -- what the allocator tells

    def took(self, block: Block, allocator: WatchedAllocator) -> None:
        serial, state = next(self.serials), allocator._statistics
        entry = Entry(block.size, self.places.line(), self.kind(), block.requested)
        self.taken[block] = serial, entry
        self.events.append((serial, entry, state.reserved.current))
        if self.trace is not None:
            self.trace.sizes.append(block.requested)
            self.trace.order.append(1 + serial)
        self.allocated = max(self.allocated, state.allocated.current)
        self.reserved = max(self.reserved, state.reserved.current)
        self.settle()

    def gave(self, block: Block) -> None:
        taken = self.taken.pop(block, None)
        if taken is not None:
            self.events.append((taken[0], None, 0))
            if self.trace is not None:
                self.trace.order.append(-1 - taken[0])

    def settle(self) -> None:
        """Enters what has happened; whoever is at it already does it for others."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            while self.events:
                serial, entry, reserved = self.events.popleft()
                if entry is None:
                    self.ledger.lose(serial)
                else:
                    self.ledger.reserve(reserved)
                    self.ledger.gain(serial, entry)
        finally:
            self.lock.release()

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
        self.ledger.steps += 1

    def note(self, optimizer: Any) -> None:
        for tensor, kind in parts_of(optimizer):
            self.mark(tensor, kind)

    def mark(self, tensor: torch.Tensor, kind: str) -> None:
        for storage in storages(tensor):
            self.mark_block(getattr(getattr(storage, TAG, None), "block", None), kind)

    def mark_block(self, block: Block | None, kind: str) -> None:
        taken = self.taken.get(block) if block is not None else None
        if taken is not None:
            taken[1].kind = kind

    def mark_rest(self) -> None:
        """What no optimizer tells."""
        with self.device.paused():
            for tensor in parts_of_modules():
                self.mark(tensor, holdings.PARAMETER)
        for hold in list(self.device.workspaces.values()):
            self.mark_block(hold.block, holdings.WORKSPACE)

    # -- accounts

    def look(self) -> None:
        return None  # it was told of every peak

    def pending(self) -> bool:
        self.settle()
        return self.ledger.timeline.events > 0

    def cut(self, step: int, shares: int) -> Span:
        self.mark_rest()
        self.settle()
        self.ledger.shares = shares
        self.ledger.reserve(self.device.allocator.statistics().reserved.current)
        return self.ledger.cut(step)

    def text(self, line: str) -> str:
        return self.places.text(line)

    def holdings(self, meter: Meter) -> Holdings:
        self.mark_rest()
        self.settle()
        state = self.device.allocator.statistics()
        return Holdings(
            requested_peak=self.ledger.top.value,
            allocated_peak=self.allocated,
            reserved_peak=self.reserved,
            capacity=self.device.allocator.capacity,
            host=meter.host(),
            retries=state.retries,
            ooms=state.ooms,
            doubts=doubts(self.device),
            **shares_at_top(self.ledger),
        )


def shares_at_top(ledger: Ledger) -> dict[str, Any]:
    """When requested bytes were highest, and by what kinds and lines."""
    top = ledger.top
    top.keep(ledger.live.values())
    alive = top.entries or []
    return {
        "step": top.moment,
        "line": top.maker.line if top.maker is not None else "",
        "kinds": shares((entry.kind, entry.requested) for entry in alive),
        "lines": shares((entry.line, entry.requested) for entry in alive)[:MOST_LINES],
    }


class WatchedAllocator(Allocator):
    """Tells a watcher of every block that it hands out and gets back."""

    watcher: Watcher  # set before anything is asked for

    def malloc(self, request: int, stream: int = 0, pools: Pools | None = None) -> Block | None:
        block = super().malloc(request, stream, pools)
        if block is not None:
            self.watcher.took(block, self)
        return block

    def free(self, block: Block) -> None:
        self.watcher.gave(block)
        super().free(block)

    def empty_cache(self) -> None:
        if self.watcher.trace is not None:
            self.watcher.trace.order.append(EMPTY_CACHE)
        super().empty_cache()


def on_construction(note: Callable[[Any], None]) -> None:
    """Calls `note` with every optimizer when it has its parameters: the first step may fail."""
    optimizer: Any = torch.optim.Optimizer
    original = optimizer.__init__

    @functools.wraps(original)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note(self)

    optimizer.__init__ = construct


def parts_of(optimizer: Any) -> Iterator[tuple[torch.Tensor, str]]:
    """The tensors that an optimizer knows, and what each is."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter in parameters:
        yield parameter, holdings.PARAMETER
        if parameter.grad is not None:
            yield parameter.grad, holdings.GRADIENT
    for tensor in flat(dict(optimizer.state)):
        yield tensor, holdings.OPTIMIZER_STATE


def parts_of_modules() -> Iterator[torch.Tensor]:
    """Parameters and buffers of all models, those that no optimizer trains included."""
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.nn.Module):
            yield from (*thing.parameters(recurse=False), *thing.buffers(recurse=False))


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
