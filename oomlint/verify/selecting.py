"""Scratch memory of choosing: the largest values, a median, random places, a random order.

By torch's `TensorTopK.cu`, `Sorting.cpp`, `MultinomialKernel.cu`, `Distributions.cpp` and
`Randperm.cu`; the sizes agree with those that a CUDA build of torch 2.13 asked its allocator for.
"""

from __future__ import annotations

import math
from typing import Any

from oomlint.verify import sorting
from oomlint.verify.copies import size
from oomlint.verify.profiles import Profile
from oomlint.verify.sorting import INDEX

# From so many lines (up to the next number) on, those of this length go to several thread blocks.
SEVERAL_BLOCKS = ((0, 20000), (21, 10000), (41, 8000), (81, 5000), (200, 3000), (800, 800))
MANY_LINES, MANY = 4000, 400
THREADS, BLOCKS = 256, 6  # of a block, and blocks that one processor has registers for
FEWEST, MOST = 4, 64  # values that one thread reads
DIGITS = 256  # that a pass tells apart
COUNT = 4  # bytes of a counter
SCAN = 1279  # bytes that cub takes to add up the counters by line


def topk(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Bytes of the digits' counters of each block, and of what sorts more values than a block."""
    given, count = args[:2]
    if not given.dim():
        return ()
    dim = args[2] if len(args) > 2 else -1
    copies = () if given.is_contiguous() else (size(given),)
    chosen = by_digit(given.numel(), given.shape[dim], given.element_size(), profile)
    if count <= sorting.SHORT:
        return *copies, *chosen
    values = result[0]
    sorts = size(values), size(result[1]), *sorting.sort(values, dim)
    return *copies, *max(chosen, sorts, key=sum)


def by_digit(values: int, line: int, width: int, profile: Profile) -> tuple[int, ...]:
    """Nothing where one block finds the largest values of a line."""
    lines = values // max(line, 1)
    if line < several_blocks_from(lines):
        return ()
    share = -(-values // (profile.processors * BLOCKS * THREADS))
    blocks = lines * -(-line // (min(max(share, FEWEST), MOST) * THREADS))
    places = 2 * lines * max(width, COUNT)  # what is looked for before and after a pass
    digits = 2 * blocks * DIGITS, COUNT * lines * DIGITS
    return width * lines, 2 * COUNT * lines, places, *digits, COUNT * blocks, COUNT * blocks, SCAN


def several_blocks_from(lines: int) -> int:
    """The shortest line that is worth several blocks."""
    if lines > MANY_LINES:
        return MANY
    return next(length for least, length in reversed(SEVERAL_BLOCKS) if lines >= least)


def median(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """All values are sorted."""
    given = args[0]
    return size(given), INDEX * given.numel(), *sorting.sort(given.flatten(), 0)


def multinomial(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Without replacement the largest of weighted random numbers; with it three distributions."""
    given, count, replacement = args[0], args[1], len(args) > 2 and args[2]
    if replacement and count > 1:
        return (size(given),) * 3
    if count == 1:
        return (size(given),)
    line, width = given.shape[-1], given.element_size()
    return size(given), result.numel() * width, *by_digit(given.numel(), line, width, profile)


def randperm(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Random keys, wide enough that few are equal, sort the numbers."""
    count = result.numel()
    if not count:
        return ()
    pairs = count - (6 * count * count + 1) / (12 * math.log(0.9))
    bits = min(64, math.ceil(math.log2(pairs)))
    width = 4 if bits <= 32 else 8
    sorts = sorting.sort_pairs(count, 1 << (bits - 1), width)
    return size(result), width * count, width * count, sorts
