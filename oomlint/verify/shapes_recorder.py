"""Counts the steps of a run whose tensors have no values."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from oomlint.verify.recorder import Recorder


class ShapesRecorder(Recorder):
    """Leaves out norms and losses."""

    def install(self) -> None:
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.wrap(torch.optim.Optimizer, "__init__", self.around_construction)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.here() and self.open and self.inside is None:
            self.inside = optimizer

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.inside is optimizer and self.here():
            self.inside = None
            self.attempt(self.follower(optimizer), {})
