"""Random requests of device memory under many settings, and what oomlint's allocator makes of them.

An operation is a line: `a ID BYTES` and `A ID BYTES STREAM` request, `f ID` frees, `e` empties the
cache, `r` resets the peaks, `F FRACTION` limits the process, `p` prints the statistics and `s` the
segments.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from oomlint.verify.allocator import Allocator, CapacityExceeded
from oomlint.verify.allocator_settings import parse
from oomlint.verify.blocks import Block
from oomlint.verify.sizes import GIB, KIB, MIB


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the allocator; `capacity` in bytes, `live` is how much the traffic keeps."""

    name: str
    options: str = ""
    capacity: int = 16 * GIB
    fraction: float | None = None
    streams: int = 1
    live: int = 3 * GIB


TIGHT = 700 * MIB
SETTINGS = (
    Setting("plain"),
    Setting("out of memory", capacity=TIGHT, live=TIGHT),
    Setting("odd capacity", capacity=TIGHT + 12345, live=TIGHT),
    Setting("fraction", capacity=2 * GIB, fraction=0.3, live=TIGHT),
    Setting("fraction by option", "per_process_memory_fraction:0.3", 2 * GIB, live=TIGHT),
    Setting("rejecting", "throw_on_cudamalloc_oom:True", TIGHT, live=TIGHT),
    Setting("max_split", "max_split_size_mb:24"),
    Setting("max_split, out of memory", "max_split_size_mb:24", TIGHT, live=TIGHT),
    Setting(
        "max_split, wide rounding",
        "max_split_size_mb:20,max_non_split_rounding_mb:48",
        TIGHT,
        streams=2,
        live=TIGHT,
    ),
    Setting("power of two", "roundup_power2_divisions:4", TIGHT, live=TIGHT),
    Setting("power of two by size", "roundup_power2_divisions:[2:8,16:4,64:1,>:16]"),
    Setting("power of two, coarse", "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"),
    Setting("collection", "garbage_collection_threshold:0.4", 2 * GIB, 0.5, live=TIGHT),
    Setting(
        "collection, split limit",
        "garbage_collection_threshold:0.7,max_split_size_mb:30",
        2 * GIB,
        0.4,
        2,
        TIGHT,
    ),
    Setting("large segment", "large_segment_size_mb:64", TIGHT, live=TIGHT),
    Setting(
        "large segment, split limit",
        "large_segment_size_mb:30,max_split_size_mb:30",
        TIGHT,
        live=TIGHT,
    ),
    Setting("odd large segment", "large_segment_size_mb:33", 2 * GIB, 0.5, live=GIB),
    Setting("expandable", "expandable_segments:True"),
    Setting("expandable, out of memory", "expandable_segments:True", TIGHT, live=TIGHT),
    Setting("expandable, two streams", "expandable_segments:True", TIGHT, None, 2, TIGHT),
    Setting(
        "expandable, everything",
        "expandable_segments:True,large_segment_size_mb:32,max_split_size_mb:40,"
        "roundup_power2_divisions:8,garbage_collection_threshold:0.5",
        2 * GIB,
        0.5,
        2,
        GIB,
    ),
    Setting("two streams", streams=2),
    Setting("three streams, out of memory", "", TIGHT, None, 3, TIGHT),
)

EDGES = (0, 1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 10 * MIB - 512, 10 * MIB - 1, 10 * MIB)


def size(dice: random.Random) -> int:
    """Bytes as programs ask for them: many small ones, some large, many twice, some at edges."""
    kind = dice.random()
    if kind < 0.3:
        return dice.randrange(1, 8 * KIB)
    if kind < 0.5:
        return dice.randrange(1, MIB)
    if kind < 0.7:
        return dice.randrange(MIB, 12 * MIB)
    if kind < 0.8:
        return dice.randrange(8 * MIB, 90 * MIB)
    if kind < 0.92:
        return dice.choice((3, 5, 7, 12, 18, 19, 20, 21, 25, 32, 47)) * MIB
    if kind < 0.96:
        return dice.choice(EDGES)
    return int(2 ** dice.uniform(9, 26))


def traffic(setting: Setting, operations: int, seed: int, every: int = 1) -> list[str]:
    """Operations on the device; after every `every` of them its statistics are asked for."""
    dice = random.Random(f"{setting.name} {seed}")
    found = [] if setting.fraction is None else [f"F {setting.fraction}"]
    live: list[tuple[int, int]] = []
    held = 0
    for number in range(operations):
        kind = dice.random()
        if kind < 0.004:
            found.append("e")
        elif kind < 0.006:
            found.append("r")
        elif live and (kind < 0.46 or held > setting.live):
            # Half of what is freed is young, as activations are.
            young = dice.random() < 0.5
            place = dice.randrange(max(0, len(live) - 8) if young else 0, len(live))
            name, freed = live.pop(place)
            held -= freed
            found.append(f"f {name}")
        else:
            wanted, stream = size(dice), dice.randrange(setting.streams)
            live.append((number, wanted))
            held += wanted
            found.append(f"A {number} {wanted} {stream}" if stream else f"a {number} {wanted}")
        if number % every == every - 1:
            found.append("p")
        if number % 500 == 499:
            found.append("s")
    return found


def play(setting: Setting, operations: list[str]) -> list[str]:
    """What oomlint's model answers to the operations."""
    device = Allocator(setting.capacity, settings=parse(setting.options))
    blocks: dict[str, Block | None] = {}
    found = []
    for operation in operations:
        kind, *rest = operation.split()
        if kind in "aA":
            try:
                blocks[rest[0]] = device.malloc(int(rest[1]), int(rest[2]) if kind == "A" else 0)
            except CapacityExceeded as error:
                blocks[rest[0]] = None
                found += [f"OOM {rest[0]} {rest[1]}", *without_process(str(error))]
        elif kind == "f":
            block = blocks.pop(rest[0])
            if block is not None:
                device.free(block)
        elif kind == "e":
            device.empty_cache()
        elif kind == "r":
            device.reset_peak()
        elif kind == "F":
            device.fraction = float(rest[0])
        elif kind == "p":
            found.append(statistics(device))
        elif kind == "s":
            found += sorted(segments(device, blocks))
    return found


def without_process(message: str) -> list[str]:
    """An out-of-memory text without what only a driver's management library knows."""
    before, mark, rest = message.partition("Including non-PyTorch memory")
    return [before + rest.partition("in use. ")[2] if mark else message]


def statistics(device: Allocator) -> str:
    state = device.statistics()
    pairs = {
        "alloc": state.allocated,
        "resv": state.reserved,
        "active": state.active,
        "req": state.requested,
        "insplit": state.inactive_split,
        "seg": state.segments,
        "nalloc": state.blocks,
        "small_resv": state.small.reserved,
        "large_resv": state.large.reserved,
    }
    counts = {
        "retries": state.retries,
        "ooms": state.ooms,
        "dev_alloc": state.device_allocations,
        "dev_free": state.device_frees,
    }
    shown = [f"{name}={counter.current}/{counter.peak}" for name, counter in pairs.items()]
    return " ".join(["p", *shown, *(f"{name}={count}" for name, count in counts.items())])


def segments(device: Allocator, blocks: dict[str, Block | None]) -> Iterator[str]:
    """Every segment with its blocks in the order of their addresses, `A` marking those in use."""
    device.statistics()
    found = [block for block in blocks.values() if block is not None]
    for pool in (device._pools.small, device._pools.large):
        found += [block for _, block in pool.free]
    found.sort(key=lambda block: (block.segment, block.offset))
    for _, group in groupby(enumerate(runs(found)), key=lambda entry: entry[1][0]):
        yield segment([block for _, (_, block) in group])


def runs(blocks: list[Block]) -> Iterator[tuple[int, Block]]:
    """Blocks with the number of the row of neighbours that they belong to."""
    row = 0
    before: Block | None = None
    for block in blocks:
        if before is None or block.previous is not before:
            row += 1
        before = block
        yield row, block


def segment(blocks: list[Block]) -> str:
    used = [block for block in blocks if block.allocated]
    whole, given = sum(b.size for b in blocks), sum(b.size for b in used)
    asked = sum(block.requested for block in used)
    head = f"total={whole} alloc={given} req={asked} large={int(not blocks[0].pool.small)}"
    parts = " ".join(f"{block.size}{'A' if block.allocated else '.'}" for block in blocks)
    return f"seg {head} stream={blocks[0].stream} : {parts}"
