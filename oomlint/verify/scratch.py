"""Memory that operators take on CUDA only while they run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify import selecting, sorting
from oomlint.verify.copies import CONTIGUOUS, FACTORS, contiguous, factors, size
from oomlint.verify.profiles import Profile
from oomlint.verify.reducing import HALVES, KINDS, by_reduction, counted, summed

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
        # Every channel by itself, in a kernel of its own; the gradient of what was given comes
        # last, when the copies for that of the weights are gone.
        later = size(made) if func is BACKWARD and made is not None else 0
        return (max(0, sum(copies) - later),)
    # Each group makes its parts, from copies where its channels are not all there is of a sample,
    # and all parts are joined in the end.
    every = result[:2] if func is BACKWARD else (result,)
    parts = sum(size(one) for one in every if one is not None)
    taken = sum(map(size, read)) // groups if given.shape[0] > 1 else 0
    return *copies, max(parts, taken + columns(func, args, result))


def by_softmax(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """The product of gradient and output, laid out as the gradient unless that repeats itself."""
    grad, output = args[:2]
    product = grad.numel() * max(grad.element_size(), output.element_size())
    as_read = grad.is_contiguous() or (0 in grad.stride() and output.is_contiguous())
    return (product,) if as_read else (product, product)  # and a copy


def by_groups(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Factors of each channel that `group_norm` reads its input with, where it has weights."""
    half = args[0].dtype in HALVES
    if func is aten.native_group_norm.default:
        weight, bias, batch, channels, _, groups = args[1:7]
        whole, each = 4 * batch * channels, 4 * batch * groups
        statistics = (each, each) if half else ()
        return statistics if weight is None and bias is None else (*statistics, whole, whole)
    weight, batch, channels, _, groups = args[4:9]
    whole, each = 4 * batch * channels, 4 * batch * groups
    sums = (whole, whole) if weight is None else (whole, whole, whole)
    return *sums, each, each


def by_scan(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Running sums read what they are given in the dtype of the result, one after the other."""
    given = args[0]
    if given.dtype is not result.dtype:
        return (given.numel() * result.element_size(),)
    return () if given.is_contiguous() else (size(given),)


def by_embedding(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    return (*contiguous(func, args), *sorting.embedding(args, result))


def by_bags(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    return () if args[8] == LARGEST_OF_BAG else sorting.bags(args)


def by_loss(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """A loss of each value, before they are added up or averaged."""
    given, target, *rest = args
    reduction = rest[0] if rest else 1
    if not reduction:
        return ()
    count = math.prod(torch.broadcast_shapes(given.shape, target.shape))
    width = given.element_size()
    return count * width, *summed(count, width, profile)


def by_scatter(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Averages count what each place gets: the counts, the ones, and which counts are zero."""
    given, source, how = args[0], args[3], args[4]
    if how != "mean":
        return ()
    compared = given.numel() if func is SCATTER else 0
    return size(given), source.numel() * given.element_size(), compared


def by_roll(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """One dimension after the other, each into a new tensor."""
    return (size(args[0]),) if len(args) > 2 and len(args[2]) > 1 else ()


def by_distance(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """Each pair's share of the gradient."""
    one, other, distances = args[1], args[2], args[4]
    pairs = distances.numel() * one.shape[-1]
    copies = tuple(size(t) for t in (one, other) if not t.is_contiguous())
    return *copies, pairs * one.element_size()


def by_unfold(func: Any, args: Any, result: Any, profile: Profile) -> tuple[int, ...]:
    """`im2col` first makes its result as large as what it is given."""
    given = args[0]
    copies = () if given.is_contiguous() else (size(given),)
    return (*copies, size(given)) if size(result) > size(given) else copies


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
SCATTER = aten.scatter_reduce.two
LARGEST_OF_BAG = 2  # the mode of bags that sums nothing
Taken = Callable[[Any, Any, Any, Profile], tuple[int, ...]]
TAKEN: dict[Any, Taken] = {
    **dict.fromkeys(CONTIGUOUS, lambda func, args, *_: contiguous(func, args)),
    **dict.fromkeys(FACTORS, lambda func, args, *_: factors(func, args)),
    **dict.fromkeys(KINDS, by_reduction),
    aten.count_nonzero.dim_IntList: counted,
    FORWARD: by_convolution,
    BACKWARD: by_convolution,
    **dict.fromkeys((aten.cumsum.default, aten.cumprod.default), by_scan),
    SOFTMAX_BACKWARD: by_softmax,
    aten.native_group_norm.default: by_groups,
    aten.native_group_norm_backward.default: by_groups,
    aten.embedding_dense_backward.default: by_embedding,
    aten._embedding_bag_backward.default: by_bags,
    **dict.fromkeys((aten.mse_loss.default, aten.huber_loss.default), by_loss),
    aten.smooth_l1_loss.default: by_loss,
    **dict.fromkeys((SCATTER, aten.index_reduce.default), by_scatter),
    aten.roll.default: by_roll,
    aten._cdist_backward.default: by_distance,
    aten.im2col.default: by_unfold,
    aten.normal.Tensor_float: lambda _, __, result, *___: (size(result),),
    aten.topk.default: selecting.topk,
    **dict.fromkeys((aten.median.default, aten.nanmedian.default), selecting.median),
    **dict.fromkeys((aten.randperm.default, aten.randperm.generator), selecting.randperm),
    aten._ctc_loss_backward.default: lambda _, args, *__: (size(args[6]),),
    aten._ctc_loss_backward.Tensor: lambda _, args, *__: (size(args[6]),),
    aten.multinomial.default: selecting.multinomial,
    aten._index_put_impl_.default: lambda _, args, *__: sorting.added_by_index(args),
}
