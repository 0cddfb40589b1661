"""What torch.cuda.memory records and snapshots of the emulated device, in torch 2.13's format."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from types import FrameType
from typing import Any

import torch

from oomlint.verify.allocator import Allocator
from oomlint.verify.allocator_settings import UNLIMITED, VARIABLES
from oomlint.verify.blocks import Block

OWN = os.path.join(os.path.dirname(__file__), "")
ENGINE = "_engine_run_backward"  # CUDA's backward runs in a thread that has no Python below this
MODES, CONTEXTS, STACKS = ("state", "all"), ("state", "alloc", "all"), ("python", "all")
BUCKETS = tuple(str(1 << power) for power in range(16))  # of sizes, in MiB
POOL = (0, 0)  # of what no torch.cuda.MemPool holds

Entry = dict[str, Any]
Frames = list[Entry]


class MemoryHistory:
    """Records what the allocator does while that is asked for, and takes snapshots at any time."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.entries: deque[Entry] = deque()
        self.frames: dict[Block, Frames] = {}  # of live blocks
        self.enabled = self.context = ""
        self.skipped: frozenset[str] = frozenset()
        self.metadata = ""

    def install(self) -> None:
        core: Any = torch._C
        core._cuda_record_memory_history = self.record
        core._cuda_record_memory_history_legacy = self.record_as_before
        core._cuda_memorySnapshot = self.snapshot
        core._cuda_isHistoryEnabled = lambda: bool(self.enabled)
        core._cuda_setMemoryMetadata = self.name
        core._cuda_getMemoryMetadata = lambda: self.metadata

    def name(self, metadata: str) -> None:
        self.metadata = metadata

    def record(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        clear_history: bool = False,
        compile_context: bool = False,
        global_record_annotations: bool = False,
        skip_actions: Iterable[str] = (),
    ) -> None:
        """Raises RuntimeError for a word that torch does not know."""
        known = (
            (enabled, MODES, "state"),
            (context, CONTEXTS, "context"),
            (stacks, STACKS, "stacks"),
        )
        for value, values, what in known:
            if value is not None and value not in values:
                words = ", ".join(f"'{one}'" for one in values)
                raise RuntimeError(f"expected {what} to be {words}, or None")
        if clear_history or enabled is None:
            self.entries.clear()
            self.frames.clear()
        if enabled is not None:
            self.entries = deque(self.entries, maxlen=min(max_entries, sys.maxsize))
        self.enabled, self.context = enabled or "", context or ""
        self.skipped = frozenset(skip_actions)
        self.allocator.observer = self.observe if enabled else None

    def record_as_before(
        self, enabled: bool, context: bool = True, entries: int = 1, *rest: Any
    ) -> None:
        self.record("all" if enabled else None, "all" if context else None, "all", entries)

    def observe(self, action: str, block: Block | None, size: int, stream: int) -> None:
        """Is told by the allocator; `size` are requested bytes, or those of a segment."""
        frames: Frames = []
        if self.context == "all" or (self.context and not action.startswith("free")):
            frames = list(stack(sys._getframe(1)))
        if block is not None and action == "alloc":
            self.frames[block] = frames
        elif block is not None and action == "free_completed":
            self.frames.pop(block, None)
        if self.enabled != "all" or action in self.skipped:
            return
        place = "addr" if block is not None else "device_free"
        where = self.allocator.address(block) if block is not None else self.allocator.free_now
        pool = self.allocator.pools_of(block) if block is not None else POOL
        entry = self.entry(action, place, where, size, pool, frames)
        self.entries.append({**entry, "stream": stream})

    def entry(
        self, action: str, place: str, where: int, size: int, pool: tuple[int, int], frames: Frames
    ) -> Entry:
        return {
            "action": action,
            place: where,
            "size": size,
            "stream": 0,
            "time_us": time.time_ns() // 1000,
            "compile_context": "N/A",
            "user_metadata": self.metadata,
            "pool_id": pool,
            "frames": frames,
        }

    # -- snapshots

    def snapshot(self, asked: Any = None) -> Entry:
        """`asked` names a pool; all are meant without it, and by that of all memory."""
        segments = list(self.segments())
        if asked is not None and tuple(asked[:2]) != POOL:
            segments = [one for one in segments if one["segment_pool_id"] == tuple(asked[:2])]
        found = {
            "segments": segments,
            "device_traces": [list(self.entries)],
            "allocator_settings": self.settings(),
            "external_annotations": [],
        }
        if self.enabled == "all":
            allocated = self.allocator.statistics().allocated.current
            self.entries.append(self.entry("snapshot", "addr", 0, allocated, POOL, []))
        return found

    def segments(self) -> Iterator[Entry]:
        """By address; an expandable one is as many as it has stretches with memory behind them."""
        blocks = sorted(self.allocator.blocks(), key=self.allocator.address)
        for _, group in groupby(blocks, key=lambda block: block.segment):
            stretch: list[Block] = []
            for block in group:
                if stretch and stretch[-1].offset + stretch[-1].size != block.offset:
                    yield self.segment(stretch)
                    stretch = []
                stretch.append(block)
            yield self.segment(stretch)

    def segment(self, blocks: list[Block]) -> Entry:
        first = blocks[0]
        active = [block for block in blocks if block.allocated or block.uses]
        return {
            "device": 0,
            "address": self.allocator.address(first),
            "total_size": sum(block.size for block in blocks),
            "allocated_size": sum(block.size for block in active if block.allocated),
            "active_size": sum(block.size for block in active),
            "requested_size": sum(block.requested for block in active),
            "stream": first.stream,
            "segment_type": "small" if first.pool.small else "large",
            "segment_pool_id": self.allocator.pools_of(first),
            "is_expandable": first.range is not None,
            "frames": [],
            "blocks": [self.block(block) for block in blocks],
        }

    def block(self, block: Block) -> Entry:
        state = "inactive"
        if block.allocated or block.uses:
            state = "active_allocated" if block.allocated else "active_pending_free"
        return {
            "address": self.allocator.address(block),
            "size": block.size,
            "requested_size": block.requested,
            "state": state,
            "frames": self.frames.get(block, []),
        }

    def settings(self) -> Entry:
        settings = self.allocator.settings
        split = settings.max_split
        return {
            "PYTORCH_CUDA_ALLOC_CONF": next(
                (os.environ[name] for name in VARIABLES if name in os.environ), ""
            ),
            "max_split_size": -1 if split >= UNLIMITED else split,
            "garbage_collection_threshold": settings.collection_threshold,
            "expandable_segments": settings.expandable,
            "roundup_power2_divisions": dict(zip(BUCKETS, settings.divisions, strict=True)),
        }


def stack(frame: FrameType | None) -> Iterator[Entry]:
    """Python's frames, the innermost first, without oomlint's."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == ENGINE:
            return
        if not code.co_filename.startswith(OWN):
            yield {"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno}
        frame = frame.f_back
