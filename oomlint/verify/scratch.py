"""Memory that operators take on CUDA only while they run."""

from __future__ import annotations

import math
from typing import Any

import torch

aten: Any = torch.ops.aten
FORWARD = aten.convolution.default
BACKWARD = aten.convolution_backward.default


def scratch(func: Any, args: Any, result: Any) -> int:
    """Bytes that an operator takes beside its outputs; 0 where that is cuDNN's own affair."""
    if func not in (FORWARD, BACKWARD) or torch.backends.cudnn.enabled:
        return 0
    if func is FORWARD:
        given, weight, bias, stride, padding, _, transposed, _, groups = args
        made, mask = result, (True, True)
    else:
        made, given, weight, bias, stride, padding, _, transposed, _, groups, mask = args
    if given.dim() != 4 or groups != 1:
        return 0
    width = given.element_size()
    kernel = math.prod(weight.shape[2:])
    if transposed:
        # The pixels of the outputs, spread out; the bias is added by a product with ones.
        ones = func is FORWARD and bias is not None
        spread = weight.shape[1] * kernel * math.prod(given.shape[2:])
        return int(width * (spread + (math.prod(made.shape[2:]) if ones else 0)))
    plain = kernel == 1 and set(stride) == {1} and set(padding) == {0}
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
