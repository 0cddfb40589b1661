"""Which attention kernel CUDA takes for given tensors, and the memory that it takes and saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from oomlint.verify.profiles import Profile
from oomlint.verify.sizes import up

FLASH, EFFICIENT, MATH = "flash", "efficient", "math"
HALVES = (torch.float16, torch.bfloat16)
HEAD_STEP = 8  # to which flash attention pads the width of a head
WIDEST_HEAD = 256  # of flash attention
BIAS_STEP = 8  # the efficient kernels read masks of so many columns at once
GRADIENT_STEP = 16  # and write their gradients so
LINES = 32  # to which the efficient kernels round the number of queries
QUERIES = 128  # and flash attention's backward


@dataclass(frozen=True, slots=True)
class Shape:
    """Batch, heads of the queries, queries, keys, width of a head and of a value's."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    value_width: int

    @property
    def rows(self) -> int:
        return self.batch * self.heads * self.queries


def shape_of(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Shape:
    batch, heads, queries, width = query.shape
    return Shape(batch, heads, queries, key.shape[-2], width, value.shape[-1])


def kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    grouped: bool,
    capability: tuple[int, int],
) -> str:
    """The order of torch's `sdp_utils`; cuDNN's kernel counts as flash attention."""
    switches, tensors = torch.backends.cuda, (query, key, value)
    if any(t.dim() != 4 or not t.numel() or t.stride(-1) != 1 for t in tensors):
        return MATH
    if query.shape[0] != key.shape[0] or key.shape[:3] != value.shape[:3]:
        return MATH
    dtype, width = query.dtype, query.shape[-1]
    if (
        (switches.flash_sdp_enabled() or switches.cudnn_sdp_enabled())
        and dtype in HALVES
        and capability >= (8, 0)
        and mask is None
        and width == value.shape[-1] <= WIDEST_HEAD
        and (grouped or query.shape[1] == key.shape[1])
        and not (causal and query.shape[2] != key.shape[2])
    ):
        return FLASH
    step = 16 // dtype.itemsize if dtype in HALVES or capability >= (8, 0) else 1
    known = dtype in HALVES and (dtype is torch.float16 or capability >= (8, 0))
    if (
        switches.mem_efficient_sdp_enabled()
        and (known or dtype is torch.float32)
        and not grouped
        and query.shape[1] == key.shape[1]
        and width % step == value.shape[-1] % step == 0
    ):
        return EFFICIENT
    return MATH


def saved(kind: str, shape: Shape, needed: bool) -> tuple[int, ...]:
    """Bytes that are saved for the backward beside the tensors, those of the sums first."""
    if kind == FLASH:
        return shape.rows * 4, 16, 8  # logarithms of the sums, the state of the random numbers
    lines = up(shape.queries, LINES) if needed else 0
    return (shape.batch * shape.heads * lines * 4,)


def taken(
    kind: str, shape: Shape, dtype: torch.dtype, dropout: float, profile: Profile
) -> tuple[int, ...]:
    """Bytes that the forward takes only while it runs."""
    if kind == EFFICIENT:
        wide = dtype in HALVES and shape.value_width > QUERIES
        return (shape.rows * shape.value_width * 4,) if wide else ()
    if dropout:
        return (16,)
    parts = splits(shape, profile)
    if parts == 1:
        return ()
    return parts * shape.rows * 4, parts * shape.rows * rounded(shape.width) * 4


def rounded(width: int) -> int:
    return up(width, 32 if width <= QUERIES else 64)


def splits(shape: Shape, profile: Profile) -> int:
    """In how many parts flash attention takes the keys, where it would leave processors idle."""
    per_block = 256 if shape.width <= 64 else 128 if shape.width <= QUERIES else 64
    blocks = -(-shape.keys // per_block)
    work = shape.batch * shape.heads * -(-shape.queries // 64)
    processors = profile.processors * 2
    if work >= 0.8 * processors:
        return 1
    efficiency = {}
    for parts in range(1, min(128, processors, blocks) + 1):
        if parts == 1 or -(-blocks // parts) != -(-blocks // (parts - 1)):
            waves = work * parts / processors
            efficiency[parts] = waves / math.ceil(waves)
    best = max(efficiency.values())
    return next(parts for parts, share in efficiency.items() if share >= 0.85 * best)


def flash_backward(shape: Shape) -> tuple[int, int]:
    """Bytes of the sums of products and of the gradient of the queries in float32."""
    lines = shape.batch * shape.heads * up(shape.queries, QUERIES)
    return lines * 4, lines * rounded(shape.width) * 4


def efficient_workspace(shape: Shape, half: bool) -> int:
    """Bytes in which the efficient kernels' backward adds up gradients."""
    width = max(shape.width, shape.value_width)
    per_block = 64 if width <= 64 else 128
    blocks = -(-shape.queries // per_block)
    # One part of the gradient of the queries: a tile, a lock and a counter.
    if half and 64 < width <= 128:
        tiles = blocks * (128 * 128 + 4)
    else:
        tiles = blocks * -(-shape.width // 64) * (per_block * 64 + 4)
    parts = 0
    if half and width > 128:
        splits = max(1, min(-(-shape.keys // 64), 200 // (shape.batch * shape.heads)))
        parts = splits * 64 * (up(shape.width, 128) + up(shape.value_width, 128))
    return shape.batch * shape.heads * up(tiles + parts, 4) * 4
