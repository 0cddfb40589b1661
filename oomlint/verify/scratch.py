"""Memory that operators take on CUDA only while they run."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any

import torch

from oomlint.verify import partial_sums
from oomlint.verify.partial_sums import Sums
from oomlint.verify.profiles import Profile

aten: Any = torch.ops.aten
FORWARD = aten.convolution.default
BACKWARD = aten.convolution_backward.default
SOFTMAX_BACKWARD = aten._softmax_backward_data.default


def scratch(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Bytes of the blocks that an operator takes beside its outputs."""
    if func in (FORWARD, BACKWARD):
        return () if torch.backends.cudnn.enabled else (columns(func, args, result),)
    if func is SOFTMAX_BACKWARD:
        product = args[0].numel() * max(args[0].element_size(), args[1].element_size())
        return (product,) if args[0].is_contiguous() else (product, product)  # and a copy
    if func in REDUCTIONS:
        sums = sums_of(args[0], args[REDUCTIONS[func]] if len(args) > REDUCTIONS[func] else None)
        if sums is not None:
            return partial_sums.scratch(sums, profile.processors, profile.threads)
    return ()


def columns(func: Any, args: Any, result: Any) -> int:
    """The pixels that a convolution spreads out for cuBLAS; cuDNN's own needs are not known."""
    if func is FORWARD:
        given, weight, bias, stride, padding, _, transposed, _, groups = args
        made, mask = result, (True, True)
    else:
        made, given, weight, bias, stride, padding, _, transposed, _, groups, mask = args
    if groups != 1:
        return 0
    width = given.element_size()
    kernel = math.prod(weight.shape[2:])
    if transposed:
        # The bias is added by a product with ones.
        ones = func is FORWARD and bias is not None
        spread = weight.shape[1] * kernel * math.prod(given.shape[2:])
        return int(width * (spread + (math.prod(made.shape[2:]) if ones else 0)))
    flat = given.dim() < 5  # over one or two dimensions
    plain = flat and kernel == 1 and set(stride) == {1} and set(padding) == {0}
    if plain and not (func is BACKWARD and mask[0]):
        return 0
    return int(width * weight.shape[1] * kernel * math.prod(made.shape[2:]))


def sums_of(tensor: torch.Tensor, dims: Any) -> Sums | None:
    """What a reduction adds up, where it is over the first or the last dimensions, or over all."""
    if not tensor.is_contiguous() or not tensor.is_floating_point() or not tensor.numel():
        return None
    rank = tensor.dim()
    chosen = range(rank) if not dims and dims != 0 else dims if isinstance(dims, list) else [dims]
    reduced = {dim % rank for dim in chosen} if rank else set()
    sizes = [(place in reduced, size) for place, size in enumerate(tensor.shape) if size > 1]
    runs = [(key, math.prod(s for _, s in group)) for key, group in groupby(sizes, lambda e: e[0])]
    if len(runs) > 2 or not any(key for key, _ in runs):
        return None
    inputs = math.prod(size for key, size in runs if key)
    width = tensor.element_size()
    return Sums(tensor.numel() // inputs, inputs, runs[-1][0], width, max(width, 4))


# Where their dimensions stand among the arguments.
REDUCTIONS = {
    aten.sum.default: 9,
    aten.sum.dim_IntList: 1,
    aten.mean.default: 9,
    aten.mean.dim: 1,
    aten.linalg_vector_norm.default: 2,
}


def multiplies(func: Any) -> bool:
    """Whether an operator asks cuBLAS, or does so where cuDNN is off."""
    if func in (FORWARD, BACKWARD):
        return not torch.backends.cudnn.enabled
    return func in BLAS


BLAS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.addbmm.default,
        aten.mv.default,
        aten.addmv.default,
        aten.dot.default,
    }
)
