"""Memory that operators take on CUDA only while they run."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby
from typing import Any

import torch

from oomlint.verify import partial_sums, sorting
from oomlint.verify.copies import CONTIGUOUS, FACTORS, contiguous, factors, size
from oomlint.verify.partial_sums import Sums
from oomlint.verify.profiles import Profile

aten: Any = torch.ops.aten
FORWARD = aten.convolution.default
BACKWARD = aten.convolution_backward.default
SORT = aten.sort.stable
SOFTMAX_BACKWARD = aten._softmax_backward_data.default


def scratch(
    func: Any, args: Any, result: Any, profile: Profile, named: dict[str, Any] | None = None
) -> tuple[int, ...]:
    """Bytes of the blocks that an operator takes beside its outputs; `named` are more arguments."""
    taken = TAKEN.get(func)
    if func is SORT:
        return sorting.sort(args[0], (named or {}).get("dim", -1))
    return () if taken is None else taken(func, args, result, profile)


def by_convolution(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """With cuDNN nothing: what it takes is not known."""
    return () if torch.backends.cudnn.enabled else unfolded(func, args, result)


def unfolded(func: Any, args: Any, result: Any) -> tuple[int, ...]:
    """What a convolution takes that spreads pixels out for cuBLAS."""
    if func is FORWARD:
        given, weight, transposed, groups = args[0], args[1], args[6], args[8]
        read, made = (given,), result
    else:
        read, weight, transposed, groups = args[:2], args[2], args[7], args[9]
        given, made = args[1], result[0]
    copies = tuple(size(one) for one in (*read, weight) if not one.is_contiguous())
    if groups == 1:
        return *copies, columns(func, args, result)
    if given.shape[1] == groups and not transposed:
        return copies  # every channel by itself, in a kernel of its own
    # Each group makes its part, and all parts are joined in the end.
    parts = size(made) if made is not None else 0
    running = sum(map(size, read)) // groups + columns(func, args, result)
    return *copies, max(parts, running)


def by_softmax(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """The product of gradient and output, laid out as the gradient unless that repeats itself."""
    grad, output = args[:2]
    product = grad.numel() * max(grad.element_size(), output.element_size())
    as_read = grad.is_contiguous() or (0 in grad.stride() and output.is_contiguous())
    return (product,) if as_read else (product, product)  # and a copy


def by_reduction(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    place = REDUCTIONS[func]
    sums = sums_of(args[0], args[place] if len(args) > place else None)
    parts = () if sums is None else partial_sums.scratch(sums, profile.processors, profile.threads)
    return parts if result is None else (*converted(args[0], result), *parts)


def converted(given: torch.Tensor, made: torch.Tensor) -> tuple[int, ...]:
    """Bytes of a copy in the result's dtype, which only sums of halves do without."""
    if given.dtype is made.dtype or (given.dtype in HALVES and made.dtype is torch.float32):
        return ()
    return (given.numel() * made.element_size(),)


def by_groups(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Factors of each channel that `group_norm` reads its input with."""
    if func is aten.native_group_norm.default:
        batch, channels, groups, sums = args[3], args[4], args[6], 0
    else:
        batch, channels, groups, sums = args[5], args[6], args[8], 3
    half = args[0].dtype in HALVES
    whole, each = 4 * batch * channels, 4 * batch * groups
    if not sums:
        return (each, each, whole, whole) if half else (whole, whole)
    return whole, whole, whole, each, each


def by_embedding(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    return (*contiguous(func, args), *sorting.embedding(args, result))


def columns(func: Any, args: Any, result: Any) -> int:
    """The pixels of one group that a convolution spreads out for cuBLAS."""
    if func is FORWARD:
        given, weight, bias, stride, padding, _, transposed, _, _ = args
        made, mask = result, (True, True)
    else:
        made, given, weight, bias, stride, padding, _, transposed, _, _, mask = args
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


HALVES = (torch.float16, torch.bfloat16)
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
Taken = Callable[[Any, Any, Any, Profile], tuple[int, ...]]
TAKEN: dict[Any, Taken] = {
    **dict.fromkeys(CONTIGUOUS, lambda func, args, *_: contiguous(func, args)),
    **dict.fromkeys(FACTORS, lambda func, args, *_: factors(func, args)),
    **dict.fromkeys(REDUCTIONS, by_reduction),
    FORWARD: by_convolution,
    BACKWARD: by_convolution,
    SOFTMAX_BACKWARD: by_softmax,
    aten.native_group_norm.default: by_groups,
    aten.native_group_norm_backward.default: by_groups,
    aten.embedding_dense_backward.default: by_embedding,
    aten._embedding_bag_backward.default: lambda _, args, *__: sorting.bags(args),
    aten._ctc_loss_backward.default: lambda _, args, *__: (size(args[6]),),
    aten._ctc_loss_backward.Tensor: lambda _, args, *__: (size(args[6]),),
    aten.multinomial.default: lambda _, args, *__: (size(args[0]),),
    aten._index_put_impl_.default: lambda _, args, *__: sorting.added_by_index(args),
}
