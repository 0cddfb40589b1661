"""Scratch memory of reductions that CUDA splits over several thread blocks.

Few outputs of many inputs leave most of a GPU idle, so that the inputs of one output go to several
blocks, whose partial results lie in scratch memory until the last block joins them. The rules are
those of torch's `ATen/native/cuda/Reduce.cuh`, the order of dimensions that of its TensorIterator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

THREADS = 512  # of a block at most
WARP = 32
VALUES = 256  # that one thread adds at most
FEWEST = 16  # for which another block is worth it
LONG = 128  # inputs from which several are read at once
MOST_OUTPUTS = 4  # that are read at once
SEMAPHORE = 4  # bytes


@dataclass(frozen=True, slots=True)
class Dimension:
    """One of a reduced tensor; strides in elements."""

    size: int
    stride: int
    made: int  # the result's stride, 0 where it is reduced


@dataclass(frozen=True, slots=True)
class Sums:
    """`outputs` sums of `inputs` values each; `along` where a sum's values are neighbours."""

    outputs: int
    inputs: int
    along: bool
    width: int  # bytes of a value
    partial: int  # bytes of a partial result
    vector: int = 4  # values that are read at once


def power(number: int) -> int:
    """The largest power of two up to `number`."""
    return 1 << max(0, number.bit_length() - 1)


def scratch(sums: Sums, processors: int, threads: int) -> tuple[int, int]:
    """Bytes of partial results and of semaphores; none where one block does each sum."""
    across, down, vector = sums.outputs, sums.inputs, 1
    if sums.along:
        across, down = sums.inputs, sums.outputs
        if across >= LONG:
            across //= sums.vector
    else:
        vector = sums.vector
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


def arranged(
    shape: tuple[int, ...], strides: tuple[int, ...], reduced: frozenset[int]
) -> tuple[Dimension, ...]:
    """The dimensions in the kernel's order, reduced ones first, neighbours joined."""
    found, made = [], 1
    for place in reversed(range(len(shape))):
        size = shape[place]
        if size == 1:
            continue
        found.append(Dimension(size, strides[place], 0 if place in reduced else made))
        made *= 1 if place in reduced else size
    for end in range(1, len(found)):
        at = end
        for place in reversed(range(end)):
            order = compared(found[place], found[at])
            if order < 0:
                break
            if order > 0:
                found[place], found[at], at = found[at], found[place], place
    return tuple(joined(found))


def compared(one: Dimension, other: Dimension) -> int:
    """Positive where the other comes first, 0 where nothing decides."""
    if (one.made == 0) != (other.made == 0):
        return 1 if other.made == 0 else -1
    for first, second in ((one.made, other.made), (one.stride, other.stride)):
        if first and second:
            if first != second:
                return 1 if first > second else -1
            if one.size > other.size:
                return 1
    return 0


def joined(dimensions: list[Dimension]) -> Iterator[Dimension]:
    """Dimensions that lie one after the other are one."""
    if not dimensions:
        return
    last, *rest = dimensions
    for one in rest:
        if last.size * last.stride == one.stride and last.size * last.made == one.made:
            last = Dimension(last.size * one.size, last.stride, last.made)
            continue
        yield last
        last = one
    yield last


def read_at_once(dimensions: tuple[Dimension, ...], offset: int, most: int) -> int:
    """Values; up to `most` inputs of one sum, or up to four outputs side by side."""
    reduced = sum(one.made == 0 for one in dimensions)
    along = is_along(dimensions)
    if dimensions[0 if along else reduced].stride != 1:
        return 1
    if along:
        return most if reduced == 1 else 1
    vector, inner = MOST_OUTPUTS, dimensions[reduced]
    for number in (offset, inner.size, *(one.stride for one in dimensions if one is not inner)):
        while number % vector:
            vector //= 2
    return vector


def is_along(dimensions: tuple[Dimension, ...]) -> bool:
    """Whether neighbours in memory belong to one sum."""
    kept = next((one for one in dimensions if one.made), None)
    return kept is None or dimensions[0].stride < kept.stride
