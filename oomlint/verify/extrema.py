"""The largest, smallest or middle value of a whole tensor, whose gradient CUDA spreads otherwise.

By `evenly_distribute_backward` of torch's `FunctionsManual.cpp`: on CUDA the values that are equal
to the result are marked and counted without a look at the result, which may be no number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify.attending import transformed
from oomlint.verify.device import on_device

aten: Any = torch.ops.aten
OPERATORS = (aten.max.default, aten.min.default, aten.median.default, aten.nanmedian.default)
KEY = "AutogradCPU"


class Extremum(torch.autograd.Function):  # type: ignore[misc]
    """One value of all."""

    @staticmethod
    def forward(ctx: Any, operator: Any, given: torch.Tensor) -> torch.Tensor:
        with torch._C._AutoDispatchBelowAutograd():
            value: torch.Tensor = operator(given)
        ctx.save_for_backward(given, value)
        return value

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        given, value = ctx.saved_tensors
        without, is_none = given.isnan(), value.isnan()
        mask = (given == value).logical_or_(without.logical_and(is_none))
        return None, mask * (grad / mask.sum())


def install(library: torch.library.Library) -> None:
    for operator in OPERATORS:
        name = operator.name().removesuffix(".default")
        kernel = find(operator, torch.library.get_kernel(name, KEY))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl(name.removeprefix("aten::"), kernel, KEY, with_keyset=True)


def find(operator: Any, own: Any) -> Callable[..., Any]:
    """The kernel of an operator; `own` is the one that torch has."""

    def run(keys: Any, given: torch.Tensor) -> Any:
        if not on_device(given) or transformed():
            return own.call_boxed(keys, given)
        return Extremum.apply(operator, given)

    return run
