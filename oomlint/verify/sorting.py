"""Scratch memory of sorting, and of gradients that CUDA sums by sorting their indices."""

from __future__ import annotations

import math
from typing import Any

import torch

INDEX = 8  # bytes of an index
FEW = 3072  # indices up to which the gradient of an embedding is summed without sorting
TILE, WIDE_TILE = 5376, 4608  # pairs that one thread block sorts, and with keys of eight bytes
SHORT = 4096  # lines up to which each is sorted by itself
LONG = 1_000_000  # lines from which one occupies the device
FEW_LINES = 128  # of which all values are sorted at once
SINGLE = 2304  # that are sorted by one block alone
DIGIT = 8  # bits of a pass
LINES = 10  # of a gradient that one thread sums
STEP = 256  # to which cub rounds each part of its scratch memory


def sort_pairs(count: int, values: int, width: int = INDEX) -> int:
    """Bytes that cub takes to sort `count` keys of `width` bytes, below `values`, with indices."""
    if count <= SINGLE:
        return 1
    passes = -(-max(1, values).bit_length() // DIGIT)
    blocks = -(-count // (WIDE_TILE if width == INDEX else TILE))
    parts = (passes * 2048, blocks * 1024, count * width, count * INDEX, passes * 4)
    return sum(-(-part // STEP) * STEP for part in parts) + STEP - 1


def sort(given: torch.Tensor, dim: int) -> tuple[int, ...]:
    """Bytes that `sort` takes beside values and indices: of one long line, of some, of many."""
    if not given.dim() or given.shape[dim] <= SHORT:
        return ()
    count, width, line = given.numel(), given.element_size(), given.shape[dim]
    bits, indices = 1 << (8 * width - 1), INDEX * count
    across = dim % given.dim() != given.dim() - 1 or not given.is_contiguous()
    copies = (width * count, width * count, indices) if across else ()
    if line == count or line >= LONG:
        return *copies, INDEX * line, sort_pairs(line, bits, width)
    if count // line < FEW_LINES:
        return *copies, indices, indices, width * count, sort_pairs(count, bits, width)
    return *copies, indices, count * (width + INDEX) + STEP - 1


def embedding(args: Any, result: torch.Tensor) -> tuple[int, ...]:
    """Bytes at the peak of an embedding's gradient: of `grad`, `indices` and the table's lines."""
    grad, indices, lines, _, scaled = args
    count = indices.numel()
    if count <= FEW and not scaled:
        return ()
    frequencies = (INDEX * count, 2 * INDEX) if scaled else ()
    return *frequencies, *by_segment(count, lines, grad.shape[-1], max(4, result.element_size()))


def by_segment(count: int, lines: int, width: int, partial: int) -> tuple[int, ...]:
    """The larger of two moments: sorting, and the partial sums of each line's gradients."""
    segments = min(count, lines)
    pieces = count // LINES + segments
    indices = INDEX * count
    sorted_ = indices, indices, indices
    sorting = sort_pairs(count, lines)
    places = INDEX * segments, INDEX * segments, INDEX * pieces
    sums = pieces * width * partial
    return (*sorted_, sorting) if sorting > sum(places) + sums else (*sorted_, *places, sums)


def bags(args: Any) -> tuple[int, ...]:
    """The same of a table whose lines are summed by bags."""
    grad, indices, lines = args[0], args[1], args[6]
    return by_segment(indices.numel(), lines, grad.shape[-1], max(4, grad.element_size()))


def added_by_index(args: Any) -> tuple[int, ...]:
    """Bytes of `_index_put_impl_`, which is what indexing has for a gradient."""
    target, indices = args[:2]
    if len(args) < 4 or not args[3]:
        return ()
    given = [one for one in indices if one is not None and one.dtype is not torch.bool]
    if not given:
        return ()
    count = torch.broadcast_shapes(*(one.shape for one in given)).numel()
    size, lines = INDEX * count, math.prod(target.shape[: len(indices)])
    return size, size, size, size, sort_pairs(count, lines)
