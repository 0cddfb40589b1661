"""Networks and losses that stand in for a function's own: they take what they are given."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from oomlint.verify.batches import Outputs, built, tensor
from oomlint.verify.permissive import Permissive
from oomlint.verify.plan import names_of
from oomlint.verify.values_by_name import CLASSES, VOCABULARY, WIDTH

LAYERS, RATE = 6, 0.05
# A name for scores at every position of a sequence, whatever the targets are.
BY_POSITION, FLAT = "scores_by_position", "scores_of_all_positions"
LOSS = re.compile(r"loss|^err|cost|objective|(^|_)(nll|elbo|kl)", re.IGNORECASE)
LABEL = re.compile(r"^(label|target|gt)s?\d*$|^gt_|_(label|target)s?$", re.IGNORECASE)
HIDDEN = re.compile(r"hidden|state|mems?$|^h\d?$|^hx$|cache", re.IGNORECASE)


class Network(nn.Module):  # type: ignore[misc]
    """A small network whose output is what the targets of the running guess can be compared with.

    `outputs` says, for a call and for each method that the function uses, what the result is
    used as; `goal` is the kind of the targets, None where there are none; `shape` that of the first
    output, where it is known.
    """

    def __init__(
        self, outputs: dict[str, Any], goal: str | None, other: Any, shape: tuple[int, ...] = ()
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.plan = outputs, goal, other
        self.shape = shape
        self.device = other.own_device

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.answer("", args, kwargs)

    def answer(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outputs, goal, _ = self.plan
        given = list(tensors((*args, *kwargs.values())))
        structure = outputs.get(method, "loss" if LOSS.search(method) else method or "output")
        features = self.features(given)
        if goal is None and any(LABEL.search(name) for name in names_of(structure)):
            goal = "label"  # the network makes them itself, as for pairs of views
        return built(structure, lambda name: self.output(name, goal, given, features), Outputs)

    def features(self, given: list[torch.Tensor]) -> torch.Tensor:
        """One row a sample, from everything that was given."""
        size = next((len(value) for value in given if value.dim()), 1)
        total = self.head.weight.new_zeros(size, WIDTH)
        for value in given:
            if value.dim() and len(value) == size:
                total = total + self.encoded(value)
        return self.layers(total)

    def encoded(self, value: torch.Tensor) -> torch.Tensor:
        weight = self.head.weight
        value = value.to(weight.device)  # words that only the network would make tokens of
        if value.is_floating_point():
            flat = value.to(weight.dtype).reshape(len(value), 1, -1)
            if flat.shape[2] % WIDTH == 0:
                return flat.reshape(len(value), -1, WIDTH).mean(1)
            return functional.adaptive_avg_pool1d(flat, WIDTH)[:, 0]
        rows = self.table(value.long().abs() % VOCABULARY)
        return rows.reshape(len(value), -1, WIDTH).mean(1)

    def output(
        self, name: str, goal: str | None, given: list[torch.Tensor], features: torch.Tensor
    ) -> torch.Tensor:
        scores = self.head(features)
        if LOSS.search(name):
            return scores.pow(2).mean()
        if HIDDEN.search(name):
            return features[None]
        if LABEL.search(name):
            return torch.zeros(len(features), dtype=torch.long, device=scores.device)
        if self.shape and name == self.first():
            return shaped(scores, self.shape)
        if name == FLAT:
            return self.output(BY_POSITION, goal, given, features).reshape(-1, VOCABULARY)
        if goal in ("label", "boxes", "index") and name != BY_POSITION:
            return scores[:, :CLASSES]
        like = given[0] if given else features
        by_position = goal == "tokens" or name == BY_POSITION
        if by_position or (goal is None and not like.is_floating_point()):
            # Of several sequences the last one is the decoder's.
            ids = next((v for v in given[::-1] if not v.is_floating_point() and v.dim() == 2), None)
            if ids is not None:
                return self.head(self.table(ids.long() % VOCABULARY) + features[:, None])
            return scores
        # In (0, 1), so that a binary cross entropy takes it with and without logits.
        level = torch.sigmoid(scores[:, :1])
        match goal:
            case "number":
                return level
            case "floats":
                return level[:, 0]
            case "dense" | "heat" if like.dim() == 4:
                plane = like.to(level.dtype).mean(1, keepdim=True)
                maps = CLASSES if goal == "dense" else 1
                pixels = scores[:, :maps, None, None] * 0.1 + plane
                return pixels if goal == "dense" else torch.sigmoid(pixels)
        return level.reshape(-1, *[1] * (like.dim() - 1)) * torch.sigmoid(like.to(level.dtype))

    def first(self) -> str:
        """The output that is compared with the targets."""
        names = names_of(self.plan[0].get("", "output"))
        return next((n for n in names if not any(p.search(n) for p in (LOSS, HIDDEN, LABEL))), "")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "plan" not in vars(self):
                raise
        if name == "module":
            return self
        if name == "no_sync":
            return contextlib.nullcontext
        outputs, _, other = self.plan
        if name in outputs:
            return Facet(self, name, other)
        known = other.give(name)
        return Facet(self, name, other) if isinstance(known, Permissive) else known


def shaped(scores: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The scores, as often as they have to be repeated to fill a shape; all within (0, 1)."""
    flat = torch.sigmoid(scores.reshape(-1))
    count = math.prod(shape)
    return flat.repeat(-(-count // len(flat)))[:count].reshape(shape)


class Engine(Network):
    """A network that goes backward and steps by itself, as DeepSpeed's."""

    def __init__(
        self, outputs: dict[str, Any], goal: str | None, other: Any, shape: tuple[int, ...] = ()
    ) -> None:
        super().__init__(outputs, goal, other, shape)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=RATE)

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward()

    def step(self, *args: Any, **kwargs: Any) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class Facet:
    """A method or a part of a network that only the function knows."""

    def __init__(self, network: Network, name: str, other: Any) -> None:
        self.network, self.name, self.other = network, name, other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.network.answer(self.name, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if hasattr(nn.Module, name):
            return getattr(self.network, name)
        return getattr(getattr(self.other, self.name), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.network.layers)


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in nested arguments; of a list of equal ones the stack that it stands for."""
    if tensor(value):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from tensors(inner)
    elif isinstance(value, (list, tuple)):
        if len(value) > 2 and all(tensor(v) and v.shape == value[0].shape for v in value):
            yield torch.stack(list(value))
            return
        for inner in value:
            yield from tensors(inner)


class Loss(nn.Module):  # type: ignore[misc]
    """Cross entropy for integer targets, mean squared error for others."""

    def __init__(self, outputs: dict[str, Any], other: Any) -> None:
        super().__init__()
        self.plan = outputs, other
        self.weight_dict = {"loss_one": 1.0, "loss_two": 1.0}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        found = list(tensors((*args, *kwargs.values())))
        loss = compared(found)
        structure = self.plan[0].get("", "loss")
        return built(structure, lambda name: loss if structure == name else loss * 0.5, Outputs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "plan" not in vars(self):
                raise
        return getattr(self.plan[1], name)


def compared(found: list[torch.Tensor]) -> torch.Tensor:
    """A loss of the first of these against the second. Raises IndexError where there is none."""
    output = next((value for value in found if value.requires_grad), found[0])
    others = [value for value in found if value is not output]
    if not others:
        return output.float().pow(2).mean()
    target = others[0]
    if target.is_floating_point() or not output.is_floating_point():
        if output.shape != target.shape and output.numel() == target.numel():
            target = target.reshape(output.shape)
        if output.shape != target.shape:
            return output.float().pow(2).mean() + 0 * target.float().mean()
        return functional.mse_loss(output.float(), target.float())
    if output.dim() == target.dim() + 1 and output.shape[:-1] == target.shape:
        output = output.movedim(-1, 1)
    if output.dim() != target.dim() + 1:
        return output.float().pow(2).mean()
    return functional.cross_entropy(output, target.clamp(0, output.shape[1] - 1))


class Stepper:
    """A gradient scaler of timm's kind: one call goes backward, clips and steps."""

    def __init__(self) -> None:
        self.scaler = torch.amp.GradScaler("cuda")

    def __call__(
        self,
        loss: torch.Tensor,
        optimizer: Any,
        clip_grad: float | None = None,
        clip_mode: str = "norm",
        parameters: Any = None,
        create_graph: bool = False,
        need_update: bool = True,
        **others: Any,
    ) -> torch.Tensor | None:
        self.scaler.scale(loss).backward(create_graph=create_graph)
        if not (need_update and others.get("update_grad", True)):
            return None
        norm = None
        if parameters is not None:
            self.scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(list(parameters), clip_grad or 1e9)
        self.scaler.step(optimizer)
        self.scaler.update()
        return norm

    def state_dict(self) -> Any:
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scaler.load_state_dict(state)


class Accelerator:
    """What Accelerate's and Fabric's objects do for one process; anything else is permitted."""

    is_main_process = is_local_main_process = sync_gradients = True
    num_processes, process_index = 1, 0

    def __init__(self, device: Any, other: Any) -> None:
        self.device, self.other = device, other

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        loss.backward(**kwargs)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def prepare(self, *things: Any) -> Any:
        return things if len(things) != 1 else things[0]

    setup = prepare

    def gather(self, value: Any) -> Any:
        return value

    reduce = gather_for_metrics = unwrap_model = gather
    setup_dataloaders = prepare

    def accumulate(self, *models: Any) -> Any:
        return contextlib.nullcontext()

    autocast = no_sync = no_backward_sync = accumulate

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "other":
            raise AttributeError(name)
        return getattr(self.other, name)


def schedule(optimizer: Any, other: Any) -> Any:
    """A learning rate that falls by a twentieth a step."""

    class Schedule(torch.optim.lr_scheduler.LambdaLR):  # type: ignore[misc]
        def step(self, epoch: Any = None, *args: Any, **kwargs: Any) -> None:
            super().step()

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(other, name)

    falling: Callable[[int], float] = lambda step: 0.95**step  # noqa: E731
    return Schedule(optimizer, falling)
