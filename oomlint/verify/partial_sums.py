"""Scratch memory of sums that CUDA splits over several thread blocks.

Few outputs of many inputs leave most of a GPU idle, so that the inputs of one output go to several
blocks, whose partial results lie in scratch memory until the last block adds them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

THREADS = 512  # of a block at most
WARP = 32
VALUES = 256  # that one thread adds at most
FEWEST = 16  # for which another block is worth it
SEMAPHORE = 4  # bytes


@dataclass(frozen=True, slots=True)
class Sums:
    """`outputs` sums of `inputs` values each; `along` where a sum's values are neighbours."""

    outputs: int
    inputs: int
    along: bool
    width: int  # bytes of a value
    partial: int  # bytes of a partial result
    aligned: bool = True  # whether four values can be read at once


def power(number: int) -> int:
    """The largest power of two up to `number`."""
    return 1 << max(0, number.bit_length() - 1)


def scratch(sums: Sums, processors: int, threads: int) -> tuple[int, int]:
    """Bytes of partial results and of semaphores; none where one block does each sum."""
    across, down, vector = sums.outputs, sums.inputs, 1
    if sums.along:
        across, down = sums.inputs, sums.outputs
        if across >= 128:
            across //= 8 if sums.width == 2 else 4
    elif sums.aligned:
        vector = math.gcd(4, sums.outputs)
        across //= vector
    most = THREADS // vector
    wide, high = (power(size) if size < most else most for size in (across, down))
    block_width = min(wide, WARP)
    block_height = min(high, most // block_width)
    block_width = min(wide, most // block_height)
    step_input, step_output = (block_width, 1) if sums.along else (1, block_width)
    values = -(-sums.inputs // step_input)
    split = values >= min(block_height * 16, VALUES)
    if split:
        step_input *= block_height
    else:
        step_output *= block_height
    values = -(-sums.inputs // step_input)
    grid = -(-(sums.outputs // vector) // step_output)
    target = processors * (threads // (block_width * block_height))
    if not split or values < VALUES or grid > target:
        return 0, 0
    blocks = max(min(-(-target // grid), -(-values // FEWEST)), -(-values // VALUES))
    if blocks <= 1:
        return 0, 0
    size = sums.partial * sums.outputs * blocks
    return size if sums.along else size * block_width * vector, SEMAPHORE * grid
