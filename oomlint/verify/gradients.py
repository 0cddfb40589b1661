"""What is known of an optimizer's gradients between two of its steps, and how large they are."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from oomlint.verify.modes import References


class Follower:
    """What is known of one optimizer's gradients between its attempts to step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.ordinal = -1
        self.attempts = 0
        self.backwards = 0
        self.advances = 0  # of its learning-rate schedule
        self.held = 0
        self.scale_left = 1.0
        self.reached = False  # the region gives it gradients or lets it step
        self.before: list[torch.Tensor] = []
        self.pending: dict[str, Any] = {}
        self.clipping: Clipping | None = None
        self.raw_norm: float | None = None  # before the last clipping, in true units
        self.models: References | None = None  # that hold its parameters, found at its first step

    def parameters(self) -> list[torch.Tensor]:
        optimizer = self.optimizer()
        if optimizer is None:
            return []
        return [p for group in optimizer.param_groups for p in group["params"]]

    def empty(self) -> bool:
        """Whether nothing of any backward pass is left in the gradients."""
        for parameter in self.parameters():
            gradient = parameter.grad
            if gradient is not None and bool(values(gradient).any()):
                return False
        return True

    def forget_if_empty(self) -> None:
        if self.held and self.empty():
            self.held, self.scale_left = 0, 1.0


class Clipping:
    """The last call that bounded gradients: over which parameters, by what."""

    def __init__(self, parameters: list[torch.Tensor], bound: float, norm_type: float) -> None:
        self.parameters = [weakref.ref(p) for p in parameters]
        self.bound, self.norm_type = bound, norm_type

    def identities(self) -> set[int]:
        return {id(parameter) for parameter in (ref() for ref in self.parameters)}

    def norm(self) -> float:
        alive = [p for p in (ref() for ref in self.parameters) if p is not None]
        return gradient_norm(alive, self.norm_type)


def values(gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.detach()
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def gradient_norm(parameters: list[torch.Tensor], norm_type: float = 2.0) -> float:
    """The norm over all gradients, summed in double precision; 0.0 where there are none."""
    norms = [
        float(torch.linalg.vector_norm(values(p.grad), norm_type, dtype=summed_in(p.grad)))
        for p in parameters
        if p.grad is not None
    ]
    if any(math.isnan(norm) for norm in norms):
        return math.nan
    if math.isinf(norm_type):
        return max(norms, default=0.0)
    return float(math.fsum(norm**norm_type for norm in norms) ** (1 / norm_type))


def zero_share(parameters: list[torch.Tensor]) -> float | None:
    """The share of the gradients' elements that are zero; None where there are no gradients."""
    found = [values(p.grad) for p in parameters if p.grad is not None]
    total = sum(gradient.numel() for gradient in found)
    kept = sum(int(torch.count_nonzero(on_host(gradient))) for gradient in found)
    return 1 - kept / total if total else None


def summed_in(gradient: torch.Tensor) -> torch.dtype | None:
    """Halves are summed as float32, without a copy on the device."""
    return torch.float32 if gradient.dtype in (torch.float16, torch.bfloat16) else None


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Counting on a real device would make its cache grow."""
    return tensor.cpu() if tensor.is_cuda and torch.version.cuda else tensor


def copied(parameter: torch.Tensor) -> torch.Tensor:
    plain = parameter.detach()
    there = on_host(plain)
    return plain.clone() if there is plain else there


def update_norm(after: list[torch.Tensor], before: list[torch.Tensor]) -> float:
    total = 0.0
    for now, then in zip(after, before, strict=False):
        moved = float(torch.linalg.vector_norm((copied(now) - then).float()))
        total += moved * moved
    return math.sqrt(total)
