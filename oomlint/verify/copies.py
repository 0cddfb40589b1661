"""Copies that CUDA's kernels make of tensors whose elements do not lie as they are read."""

from __future__ import annotations

from typing import Any

import torch

aten: Any = torch.ops.aten

# Operators whose kernels want some arguments contiguous, and where these stand.
CONTIGUOUS: dict[Any, tuple[int, ...]] = {
    aten._softmax.default: (0,),
    aten._log_softmax.default: (0,),
    aten._log_softmax_backward_data.default: (0, 1),
    aten.native_layer_norm.default: (0,),
    aten.native_layer_norm_backward.default: (0, 1),
    aten.embedding_dense_backward.default: (0, 1),
    aten._cdist_forward.default: (0, 1),
}
# Products by cuBLAS, and where their matrices stand.
FACTORS: dict[Any, tuple[int, int]] = {
    aten.mm.default: (0, 1),
    aten.bmm.default: (0, 1),
    aten.addmm.default: (1, 2),
    aten.baddbmm.default: (1, 2),
}


def contiguous(func: Any, args: Any) -> tuple[int, ...]:
    """Bytes of the copies of arguments that are not contiguous."""
    tensors = (args[place] for place in CONTIGUOUS[func])
    return tuple(size(tensor) for tensor in tensors if not tensor.is_contiguous())


def factors(func: Any, args: Any) -> tuple[int, ...]:
    """Bytes of the copies of matrices that cuBLAS cannot read."""
    tensors = (args[place] for place in FACTORS[func])
    return tuple(size(tensor) for tensor in tensors if not readable(tensor))


def readable(matrices: torch.Tensor) -> bool:
    """Whether lines or columns lie side by side, one after the other without overlap."""
    if matrices.is_contiguous():
        return True
    (lines, columns), (line, column) = matrices.shape[-2:], matrices.stride()[-2:]
    by_line = column == 1 and line >= max(1, columns)
    by_column = line == 1 and column >= max(1, lines)
    return bool(by_line or by_column)


def size(tensor: torch.Tensor) -> int:
    return int(tensor.numel() * tensor.element_size())
