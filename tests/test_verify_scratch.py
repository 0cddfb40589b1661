"""Scratch memory of reductions: bytes that a CUDA build of torch took on an H100, and ours."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oomlint.verify import partial_sums
from oomlint.verify.profiles import PROFILES
from oomlint.verify.scratch import scratch, sums_of

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
        ((4, 5, 6), [1], None),  # neither first nor last
        ((4, 5, 6), [0, 2], None),
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
