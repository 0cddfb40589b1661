"""What the operators that reduce tensors take on CUDA while they run.

Bytes of a partial result, and how many values are read at once, are the template arguments with
which torch's `ATen/native/cuda/Reduce*.cu` instantiate the kernel that is in `Reduce.cuh`.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from oomlint.verify import partial_sums
from oomlint.verify.partial_sums import Sums
from oomlint.verify.profiles import Profile

aten: Any = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
ALL = 9  # no argument: everything is reduced


@dataclass(frozen=True, slots=True)
class Kind:
    """How an operator reduces; `dims` is where its dimensions stand among the arguments."""

    dims: int
    partial: int = 0  # bytes of a partial result, 0: as wide as a value, and wider than a half
    vector: int = 4  # inputs that are read at once
    halves: int = 4  # of halves
    converts: bool = False  # to the dtype of the result first


def added(dims: int) -> Kind:
    return Kind(dims, halves=8, converts=True)


def largest(dims: int) -> Kind:
    """The same kernel keeps partial results as narrow as the values."""
    return Kind(dims, partial=-1)


def placed(dims: int) -> Kind:
    """A value with its index."""
    return Kind(dims, partial=16)


def moment(dims: int) -> Kind:
    """A mean, a deviation and two counts."""
    return Kind(dims, partial=16, vector=2, halves=2)


KINDS = {
    aten.sum.default: added(ALL),
    aten.sum.dim_IntList: added(1),
    aten.sum.IntList_out: added(1),
    aten.nansum.default: added(1),
    aten.mean.default: added(ALL),
    aten.mean.dim: added(1),
    aten.linalg_vector_norm.default: added(2),
    aten.amax.default: largest(1),
    aten.amin.default: largest(1),
    aten.max.default: largest(ALL),
    aten.min.default: largest(ALL),
    aten.max.dim: placed(1),
    aten.min.dim: placed(1),
    aten.argmax.default: placed(1),
    aten.argmin.default: placed(1),
    aten.std.correction: moment(1),
    aten.var.correction: moment(1),
    aten.std_mean.correction: moment(1),
    aten.var_mean.correction: moment(1),
    aten.any.default: Kind(ALL, partial=1),
    aten.all.default: Kind(ALL, partial=1),
    aten.any.dim: Kind(1, partial=1),
    aten.all.dim: Kind(1, partial=1),
}


def by_reduction(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    kind, given = KINDS[func], args[0]
    dims = args[kind.dims] if len(args) > kind.dims else None
    made = result if kind.converts and isinstance(result, torch.Tensor) else given
    copies = converted(given, made)
    width = made.element_size() if copies else given.element_size()
    sums = sums_of(given, dims, kind, width)
    return *copies, *parts_of(sums, profile)


def parts_of(sums: Sums | None, profile: Profile) -> tuple[int, ...]:
    """Bytes of the partial results and of the counters of a reduction."""
    if sums is None:
        return ()
    return partial_sums.scratch(sums, profile.processors, profile.threads)


def summed(count: int, width: int, profile: Profile) -> tuple[int, ...]:
    """The same for the sum of `count` values of `width` bytes, side by side."""
    found = sums((count,), (1,), 0, frozenset((0,)), width, max(width, 4), 8 if width == 2 else 4)
    return parts_of(found, profile)


def converted(given: torch.Tensor, made: torch.Tensor) -> tuple[int, ...]:
    """Bytes of a copy in the result's dtype, which only sums of halves do without."""
    if given.dtype is made.dtype or (given.dtype in HALVES and made.dtype is torch.float32):
        return ()
    return (given.numel() * made.element_size(),)


def sums_of(
    tensor: torch.Tensor, dims: Any, kind: Kind = KINDS[aten.sum.default], width: int = 0
) -> Sums | None:
    """What a reduction adds up; None where there is nothing to add."""
    rank = tensor.dim()
    chosen = range(rank) if not dims and dims != 0 else dims if isinstance(dims, list) else [dims]
    reduced = frozenset(dim % rank for dim in chosen) if rank else frozenset()
    width = width or tensor.element_size()
    partial = kind.partial or max(width, 4)
    vector = kind.halves if width == 2 else kind.vector
    place = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    return sums(*place, reduced, width, width if partial < 0 else partial, vector)


@functools.lru_cache(maxsize=4096)
def sums(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    offset: int,
    reduced: frozenset[int],
    width: int,
    partial: int,
    vector: int,
) -> Sums | None:
    dimensions = partial_sums.arranged(shape, strides, reduced)
    inputs = math.prod(one.size for one in dimensions if not one.made)
    outputs = math.prod(one.size for one in dimensions if one.made)
    if inputs <= 1 or not outputs:
        return None
    vector = partial_sums.read_at_once(dimensions, offset, vector)
    return Sums(outputs, inputs, partial_sums.is_along(dimensions), width, partial, vector)


def counted(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """`count_nonzero` compares, and adds what is not zero as integers."""
    given, dims = args[0], list(args[1])
    sums = sums_of(given, dims, KINDS[aten.sum.default], result.element_size())
    return given.numel(), given.numel() * result.element_size(), *parts_of(sums, profile)
