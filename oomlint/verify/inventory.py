"""Takes stock of a running script for the textbook's formula: parameters, optimizers, layers."""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from oomlint.verify.device import storages
from oomlint.verify.textbook import Facts, Layer, Optimizer, Weights, state_of
from oomlint.verify.watching import flat, on_construction

# Forward passes of a model in which its parameters are looked at: they may be frozen after one.
LOOKS = 2
LEAST_AXES, MODEL_AXES = 3, 3  # of scores (heads may be folded into the batch); of what a layer has


@dataclass(slots=True)
class Frame:
    """A module whose forward runs: whether it called others, and the scores that it made."""

    calls: bool = False
    heads: tuple[int, int, int] | None = None  # batch, heads, length
    fused: bool = False


class Inventory:
    """Counts what the formula asks for while the script runs; it changes nothing."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.looks: dict[int, int] = defaultdict(int)  # by model
        self.weights: dict[int, tuple[int, int, bool]] = {}  # elements, their size, whether trained
        self.optimizers: dict[int, Optimizer] = {}
        self.autocast = self.backward = False
        self.outputs = self.most_outputs = 0
        self.layers: list[Layer] = []
        self.most_layers: list[Layer] = []
        self.gradients = self.state = 0

    def install(self) -> None:
        register_module_forward_pre_hook(self.enter)
        register_module_forward_hook(self.leave, always_call=True)
        on_construction(self.note_optimizer)
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        functional: Any = torch.nn.functional
        self.wrap(functional, "scaled_dot_product_attention", self.note_fused)
        for owner in (functional, torch, torch.Tensor):
            self.wrap(owner, "softmax", self.note_scores)
        self.wrap(torch.autograd, "backward", self.note_backward)

    def wrap(self, owner: Any, name: str, note: Any) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return original(*args, **kwargs)

        # TorchScript compiles the function that it finds under the second name.
        vars(wrapper).update({"__script_if_tracing_wrapper": True, "__original_fn": original})
        setattr(owner, name, wrapper)

    # -- modules

    def enter(self, module: Any, args: Any) -> None:
        if self.frames:
            self.frames[-1].calls = True
        self.frames.append(Frame())

    def leave(self, module: Any, args: Any, output: Any) -> None:
        if not self.frames:
            return
        frame = self.frames.pop()
        if not self.frames and self.looks[id(module)] < LOOKS:
            self.looks[id(module)] += 1
            for parameter in module.parameters():
                self.note_parameter(parameter)
        if not keeps():
            return
        tensors = [t for t in flat(output) if t.is_cuda]
        if not frame.calls:
            self.autocast |= torch.is_autocast_enabled("cuda")
            self.outputs += sum(t.numel() * t.element_size() for t in tensors)
        if frame.heads is not None:
            self.note_layer(frame, tensors)

    def note_layer(self, frame: Frame, tensors: list[torch.Tensor]) -> None:
        """The width is that of what the module around the attention returns, or one further out."""
        assert frame.heads is not None
        batch, heads, length = frame.heads
        shape = tuple(tensors[0].shape) if tensors else ()
        if len(shape) == MODEL_AXES and length in shape[:2]:
            # Heads that were folded into the batch are told apart by the module's own batch.
            whole = shape[0] * shape[1] // length
            heads = batch * heads // whole if whole and batch * heads % whole == 0 else heads
            self.layers.append(Layer(whole, length, shape[2], heads, frame.fused))
        elif self.frames:
            self.frames[-1].heads, self.frames[-1].fused = frame.heads, frame.fused

    def note_fused(self, query: Any, *args: Any, **kwargs: Any) -> None:
        self.note_attention(query.shape[:-1], fused=True)

    def note_scores(self, scores: Any, *args: Any, **kwargs: Any) -> None:
        shape = tuple(getattr(scores, "shape", ()))
        if len(shape) > 1 and shape[-1] == shape[-2]:
            self.note_attention(shape[:-1], fused=False)

    def note_attention(self, shape: Any, *, fused: bool) -> None:
        if not self.frames or not keeps() or len(shape) + 1 < LEAST_AXES:
            return
        *batch, length = (int(size) for size in shape)
        first, heads = (batch[0], batch[1]) if len(batch) > 1 else (batch[0], 1)
        self.frames[-1].heads, self.frames[-1].fused = (first, heads, length), fused

    def note_backward(self, *args: Any, **kwargs: Any) -> None:
        self.backward = True
        if self.outputs >= self.most_outputs:
            self.most_outputs, self.most_layers = self.outputs, self.layers
        self.outputs, self.layers = 0, []

    # -- parameters and optimizers

    def note_parameter(self, parameter: torch.Tensor) -> None:
        if parameter.is_cuda:
            known = parameter.numel(), parameter.element_size(), parameter.requires_grad
            self.weights[id(parameter)] = known

    def note_optimizer(self, optimizer: Any) -> None:
        parameters = parameters_of(optimizer)
        for parameter in parameters:
            self.note_parameter(parameter)
        elements = sum(p.numel() for p in parameters if p.requires_grad and p.is_cuda)
        name = type(optimizer).__name__
        kept = state_of(name, optimizer.defaults)
        self.optimizers[id(optimizer)] = Optimizer(name, kept, elements)

    def before_step(self, optimizer: Any, *args: object) -> None:
        self.note_optimizer(optimizer)
        gradients = [p.grad for p in parameters_of(optimizer) if p.grad is not None]
        self.gradients = max(self.gradients, size_of(gradients))

    def after_step(self, optimizer: Any, *args: object) -> None:
        self.state = max(self.state, size_of(flat(dict(optimizer.state))))

    def facts(self) -> Facts:
        if self.outputs > self.most_outputs:  # a pass that never came to its backward
            self.most_outputs, self.most_layers = self.outputs, self.layers
        sizes = sorted({size for _, size, _ in self.weights.values()})
        return Facts(
            weights=tuple(self.weights_of(size) for size in sizes),
            optimizers=tuple(self.optimizers.values()),
            autocast=self.autocast,
            outputs=self.most_outputs,
            layers=tuple(self.most_layers),
            parameters=sum(count * size for count, size, _ in self.weights.values()),
            gradients=self.gradients,
            state=self.state,
            backward=self.backward or bool(self.optimizers),
        )

    def weights_of(self, size: int) -> Weights:
        counts = {True: 0, False: 0}
        for count, own, trained in self.weights.values():
            counts[trained] += count if own == size else 0
        return Weights(size, counts[True], counts[False])


def keeps() -> bool:
    """Whether what runs now is the forward of a training step, and no repetition of it."""
    return torch.is_grad_enabled() and bool(torch._C._current_graph_task_id() < 0)


def parameters_of(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def size_of(tensors: Any) -> int:
    """Bytes on the device."""
    return sum(s.nbytes() for t in tensors if t.is_cuda for s in storages(t))
