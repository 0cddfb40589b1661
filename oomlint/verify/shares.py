"""Watches what one of several ranks computes: a digest of its gradient and of what it trains on."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch

from oomlint.verify.gradients import copied, values

# Rows of one step that are told apart; more would say nothing new.
MAX_SAMPLES = 256


class Shares:
    """The samples since the last step, and the gradient at it."""

    def __init__(self) -> None:
        self.samples: list[str] = []
        self.replicas = False  # a model runs of which every rank has all parameters

    def watch(self, given: tuple[Any, ...]) -> None:
        """Notes the rows of the first tensor that a data-parallel model is given."""
        self.replicas = True
        first = next((value for value in given if isinstance(value, torch.Tensor)), None)
        if first is None or not first.dim():
            return
        for row in first[: MAX_SAMPLES - len(self.samples)]:
            self.samples.append(digest([row]))

    def seen(self, parameters: list[torch.Tensor]) -> dict[str, Any]:
        samples, self.samples = tuple(self.samples), []
        if not self.replicas:
            return {"samples": samples}
        gradients = [values(p.grad) for p in parameters if p.grad is not None]
        return {"fingerprint": digest(gradients), "samples": samples}


def digest(tensors: list[torch.Tensor]) -> str:
    """Equal for tensors that are equal byte for byte."""
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        plain = copied(tensor).contiguous()
        found.update(ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()))
    return found.hexdigest()
