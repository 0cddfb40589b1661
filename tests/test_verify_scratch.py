"""Scratch memory of reductions: bytes that a CUDA build of torch took on an H100, and ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oomlint.verify import partial_sums
from oomlint.verify.profiles import PROFILES
from oomlint.verify.reducing import sums_of
from oomlint.verify.scratch import scratch

aten: Any = torch.ops.aten
# Shape, dtype, reduced dimension (None: all), and what the allocator was asked for in all.
TAKEN = [
    ((8192, 256), "float32", 0, 16777224),
    ((65536, 2), "bfloat16", 0, 260),
    ((20000, 3072), "bfloat16", 0, 138412128),
    ((20000, 3072), "float32", 0, 138412128),
    ((1024, 8000), "float32", 0, 65536000 + 252),
    ((1000, 256), "bfloat16", None, 132),
    ((1024, 3072), "bfloat16", None, 1540),
    ((20000, 128), "float32", None, 1256),
    ((1000, 256), "float32", None, 132),
    ((100, 7), "bfloat16", 0, 0),
    ((64, 2), "float32", None, 0),
    ((64, 256), "float32", None, 0),
    ((64, 8000), "bfloat16", 0, 0),
    ((1, 256), "float32", 1, 0),
]


@pytest.mark.parametrize(("shape", "dtype", "dim", "taken"), TAKEN)
def test_a_split_sum_takes_what_cuda_took(
    shape: tuple[int, int], dtype: str, dim: int | None, taken: int
) -> None:
    tensor = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    func = aten.sum.default if dim is None else aten.sum.dim_IntList
    args = (tensor,) if dim is None else (tensor, [dim])
    assert sum(scratch(func, args, None, PROFILES["H100"])) == taken


def test_fewer_processors_split_less() -> None:
    sums = partial_sums.Sums(1, 1 << 24, True, 4, 4)
    taken = {
        name: sum(partial_sums.scratch(sums, p.processors, p.threads))
        for name, p in PROFILES.items()
    }
    assert taken["T4"] < taken["RTX4090"] < taken["H100"]


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((4, 5, 6), [0, 1], (6, 20, False)),
        ((4, 5, 6), [-1], (20, 6, True)),
        ((4, 1, 6), [1, 2], (4, 6, True)),
        ((4, 5, 6), [], (1, 120, True)),
        ((4, 5, 6), [1], (24, 5, False)),
        ((4, 5, 6), [0, 2], (5, 24, True)),
        ((4, 1, 6), [1], None),  # nothing to add
    ],
)
def test_reduced_dimensions_are_joined(
    shape: tuple[int, ...], dims: list[int], expected: tuple[int, int, bool] | None
) -> None:
    found = sums_of(torch.empty(shape), dims)
    assert (found and (found.outputs, found.inputs, found.along)) == expected


def test_other_operators_take_nothing() -> None:
    tensor = torch.empty(4096, 4096, device="meta")
    assert scratch(aten.relu.default, (tensor,), tensor, PROFILES["H100"]) == ()


def on_meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


# What runs, and the bytes that the CUDA build asked for beside inputs and outputs.
OTHERS = [
    (aten.max.default, (on_meta(1024, 1024),), 516),
    (aten.argmax.default, (on_meta(1024, 1024),), 2052),
    (aten.max.dim, (on_meta(1024, 1024), 0), 33554464),
    (aten.std.correction, (on_meta(1024, 1024),), 2052),
    (aten.var_mean.correction, (on_meta(1024, 1024), [0]), 33554464),
    (aten.any.default, (on_meta(1024, 1024, dtype=torch.bool),), 132),
    (aten.sum.dim_IntList, (on_meta(64, 48, 1000), [0]), 0),
    (aten.count_nonzero.dim_IntList, (on_meta(1024, 1024), []), 9438212),
    (aten.topk.default, (on_meta(1024, 1024), 10), 1602815),
    (aten.topk.default, (on_meta(8, 50257), 50), 217631),
    (aten.topk.default, (on_meta(64, 1000), 5), 0),
    (aten.median.default, (on_meta(1024, 1024),), 33763839),
    (aten.randperm.default, (1024,), 16385),
    (aten.randperm.default, (1 << 20,), 42189311),
    (aten.multinomial.default, (on_meta(64, 5000), 500, True), 3840000),
    (aten.mse_loss.default, (on_meta(512, 700), on_meta(512, 700)), 1433780),
    (aten.roll.default, (on_meta(1024, 1024), [2, 3], [0, 1]), 4194304),
    (aten.im2col.default, (on_meta(2, 16, 64, 64), [3, 3], [1, 1], [1, 1], [1, 1]), 524288),
]


@pytest.mark.parametrize(("func", "args", "taken"), OTHERS)
def test_an_operator_takes_what_cuda_took(func: Any, args: Any, taken: int) -> None:
    named = {} if any(isinstance(one, torch.Tensor) for one in args) else {"device": "meta"}
    result = func(*args, **named)
    assert sum(scratch(func, args, result, PROFILES["H100"])) == taken
