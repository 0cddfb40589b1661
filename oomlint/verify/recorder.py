"""Watches a running script from inside: optimizers, scalers, clipping, backward passes."""

from __future__ import annotations

import functools
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils.checkpoint
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from oomlint.verify.gradients import (
    Clipping,
    Follower,
    copied,
    gradient_norm,
    update_norm,
    zero_share,
)
from oomlint.verify.host import worker_bytes
from oomlint.verify.meters import Meter, live_nodes
from oomlint.verify.modes import aliases, evaluating, models_of
from oomlint.verify.outputs import Outputs
from oomlint.verify.recomputing import Checkpoints
from oomlint.verify.record import ITERATION, OPTIMIZER, Step
from oomlint.verify.reductions import Reductions
from oomlint.verify.shares import Shares

# Functions that the loss modules call, too. What an evaluation computes is its only loss.
LOSSES = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "ctc_loss"),
)


class Recorder:
    """Counts steps and hands the record of each to `emit`; calls `stop` after `wanted` of them."""

    def __init__(
        self,
        meter: Meter,
        wanted: int,
        emit: Callable[[Step], None],
        stop: Callable[[], None],
        bounded: bool = False,
        iterations: bool = True,
        several: bool = False,
        turn: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`turn` is told the number of a step that is over, or 0 where one may begin."""
        self.meter, self.wanted, self.emit, self.stop, self.turn = meter, wanted, emit, stop, turn
        self.recorded = 0
        self.process, self.thread = os.getpid(), threading.get_ident()
        self.followers: dict[int, Follower] = {}
        self.order = 0
        self.recorded = 0
        self.inside: Any = None  # the optimizer whose step is running
        self.scaling: Any = None  # the optimizer whose scaler.step is running
        self.scaled = False  # a scaled loss was seen in the running backward pass
        self.scale = 1.0
        self.advancing = False  # a scheduler's step is running, or its constructor's first one
        self.losses: list[float] = []  # that were propagated back
        self.computed: list[float] = []  # that loss functions returned
        self.outputs = Outputs(meter)
        self.scaler_calls = 0
        self.true_loss: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()
        # With a region, steps count from its first entry on.
        self.open = not bounded
        self.depth = 0
        self.extent = 0
        # Steps are the optimizer's where one is at work in the region, else its iterations.
        self.training = not bounded or not iterations
        self.iterations = 0
        self.fresh = True
        self.moment = time.perf_counter()
        # Up to the start of the step.
        self.allocations, self.waits, self.copies = 0, 0, 0
        self.workers = 0
        self.reductions = Reductions()
        self.shares = Shares() if several else None
        self.checkpoints = Checkpoints()
        self.sharding = False  # the script has loaded what shards models

    # -- installation

    def install(self) -> None:
        register_optimizer_step_pre_hook(self.before_step)
        register_optimizer_step_post_hook(self.after_step)
        self.wrap(torch.optim.Optimizer, "__init__", self.around_construction)
        self.wrap(torch.amp.GradScaler, "scale", self.around_scale)
        self.wrap(torch.amp.GradScaler, "unscale_", self.around_unscale)
        self.wrap(torch.amp.GradScaler, "step", self.around_scaler_step)
        self.wrap(torch.autograd, "backward", self.around_backward)
        self.wrap(torch.optim.lr_scheduler.LRScheduler, "_initial_step", self.around_first_advance)
        for scheduler in vars(torch.optim.lr_scheduler).values():
            if is_scheduler(scheduler) and "step" in vars(scheduler):
                self.wrap(scheduler, "step", self.around_advance)
        loading: Any = torch.utils.data.dataloader
        self.wrap(loading._MultiProcessingDataLoaderIter, "__init__", self.around_workers)
        self.wrap(DistributedDataParallel, "forward", self.around_parallel_forward)
        self.wrap(torch.utils.checkpoint, "checkpoint", self.around_checkpoint)
        self.wrap(DistributedDataParallel, "register_comm_hook", self.around_reduction_hook)
        for name in LOSSES:
            self.wrap(torch.nn.functional, name, self.around_loss)
        if not self.training:
            self.wrap(torch.nn.Module, "__call__", self.around_module)
        for module in (torch.nn.utils, torch.nn.utils.clip_grad):
            self.wrap(module, "clip_grad_norm_", self.around_clip_norm)
            self.wrap(module, "clip_grad_value_", self.around_clip_value)

    def wrap(self, owner: Any, name: str, around: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.here():
                return original(*args, **kwargs)
            return around(original, *args, **kwargs)

        # TorchScript compiles the function that it finds under the second name.
        vars(wrapper).update({"__script_if_tracing_wrapper": True, "__original_fn": original})
        setattr(owner, name, wrapper)

    def here(self) -> bool:
        """Forked workers and other threads are not the training loop."""
        return os.getpid() == self.process and threading.get_ident() == self.thread

    # -- regions

    def __enter__(self) -> None:
        if not self.here():
            return
        self.depth += 1
        self.extent += 1
        self.fresh = True
        if not self.open:
            self.open = True
            self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self.here():
            return
        if kind is None:
            self.finish_iteration()
        self.depth -= 1

    def tick(self) -> None:
        """A new iteration of the region's loop begins."""
        if not self.here():
            return
        if self.fresh:
            self.fresh = False
            if not self.training:
                self.start()
            return
        self.finish_iteration()

    def finish_iteration(self) -> None:
        if self.training or self.depth != 1:
            return
        losses = self.computed
        loss = math.fsum(losses) / len(losses) if losses else None
        self.record(ITERATION, {"loss": loss, "output": self.outputs.new()})
        self.iterations += 1
        if self.iterations >= self.wanted:
            self.stop()

    # -- optimizer steps

    def follower(self, optimizer: torch.optim.Optimizer) -> Follower:
        key = id(optimizer)
        found = self.followers.get(key)
        if found is None or found.optimizer() is not optimizer:
            found = self.followers[key] = Follower(optimizer)
        return found

    def around_construction(self, original: Any, optimizer: Any, *args: Any, **kw: Any) -> None:
        original(optimizer, *args, **kw)
        self.follower(optimizer)

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Returns other arguments where a closure is to be watched, as torch's hooks may."""
        if not self.here() or not self.open or self.inside is not None:
            return None
        self.inside = optimizer
        follower = self.follower(optimizer)
        with self.meter.paused(), torch.no_grad():
            follower.pending = self.look(follower, optimizer)
            follower.before = [copied(p) for p in follower.parameters()]
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if not callable(closure):
            return None

        def watched() -> Any:
            result = closure()
            with self.meter.paused(), torch.no_grad():
                follower.pending = self.look(follower, optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def look(self, follower: Follower, optimizer: Any) -> dict[str, Any]:
        """What the optimizer is about to use."""
        follower.forget_if_empty()
        pending = getattr(optimizer, "grad_scale", None)
        left = follower.scale_left
        divisor = 1.0
        if pending is not None:  # a fused step divides inside its kernel
            divisor = float(pending)
            left /= divisor
        clip = follower.clipping
        if follower.models is None:
            follower.models = models_of(follower.parameters())
        return {
            "gradient_norm": gradient_norm(follower.parameters()) / divisor,
            "backwards": follower.backwards,
            "held": follower.held,
            "scale_left": left,
            "max_norm": clip.bound if clip else None,
            "norm_type": clip.norm_type if clip else None,
            "bounded_norm": clip.norm() / divisor if clip else None,
            "raw_norm": follower.raw_norm,
            "evaluating": evaluating(follower.models),
            "trainable": sum(p.numel() for p in follower.parameters() if p.requires_grad),
            "gradless": sum(p.requires_grad and p.grad is None for p in follower.parameters()),
            "aliases": aliases(follower.parameters()),
            "advances": follower.advances,
            "zero_share": zero_share(follower.parameters()),
            "reductions": self.reductions.taken(),
            "unreduced": min(self.reductions.unreduced, follower.held),
            "searches": self.reductions.searched(),
            "recomputations": self.checkpoints.taken(),
            **(self.shares.seen(follower.parameters()) if self.shares is not None else {}),
        }

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.inside is not optimizer or not self.here():
            return
        self.inside = None
        follower = self.follower(optimizer)
        with self.meter.paused(), torch.no_grad():
            moved = update_norm(follower.parameters(), follower.before)
        follower.before = []
        self.attempt(follower, {**follower.pending, "update_norm": moved})

    def around_scaler_step(
        self, original: Any, scaler: Any, optimizer: Any, *a: Any, **k: Any
    ) -> Any:
        follower = self.follower(optimizer)
        attempts = follower.attempts
        with self.meter.paused(), torch.no_grad():
            follower.forget_if_empty()
        self.inside = None
        held, passed = follower.held, follower.backwards
        result = original(scaler, optimizer, *a, **k)
        if self.open and scaler.is_enabled() and follower.attempts == attempts:
            seen = {"held": held, "backwards": passed, "update_norm": 0.0, "skipped": True}
            self.attempt(follower, seen)
        return result

    def attempt(self, follower: Follower, seen: dict[str, Any]) -> None:
        if follower.ordinal < 0:
            follower.ordinal = self.order
            self.order += 1
        follower.attempts += 1
        losses, self.losses = self.losses, []
        calls, self.scaler_calls = self.scaler_calls, 0
        loss = math.fsum(losses) / len(losses) if losses else None
        if self.depth:
            self.training = follower.reached = True
        if self.counts(follower):
            self.record(
                OPTIMIZER,
                {**seen, "optimizer": follower.ordinal, "loss": loss, "scaler_calls": calls},
            )
        follower.backwards = follower.advances = 0
        follower.raw_norm = None
        if self.counts(follower) and follower.attempts >= self.wanted:
            self.stop()

    def counts(self, follower: Follower) -> bool:
        """Whether this optimizer is one of those that the region trains."""
        known = any(other.reached for other in self.followers.values())
        return self.training and (follower.reached or not known)

    # -- schedules

    def around_advance(self, original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> Any:
        """Schedulers that hold others step these too: only the outermost advances the schedule."""
        outermost = not self.advancing
        self.advancing = True
        try:
            result = original(scheduler, *args, **kwargs)
        finally:
            self.advancing = not outermost
        if outermost:
            self.follower(scheduler.optimizer).advances += 1
        return result

    def around_first_advance(self, original: Any, scheduler: Any) -> None:
        outer, self.advancing = self.advancing, True
        try:
            original(scheduler)
        finally:
            self.advancing = outer

    def around_workers(self, original: Any, iterator: Any, loader: Any) -> None:
        self.workers += int(loader.num_workers)
        original(iterator, loader)

    # -- backward passes, scaling, clipping

    def around_backward(self, original: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            self.note_loss(tensor)
        with self.meter.paused(), torch.no_grad():
            for follower in self.alive():
                follower.forget_if_empty()
        self.scaled = False
        self.watch_shards()
        if self.depth:
            self.training = True
        with self.reductions.passing():
            result = original(tensors, *args, **kwargs)
        with self.meter.paused(), torch.no_grad():
            for follower in self.alive():
                if not follower.empty():
                    follower.backwards += 1
                    follower.held += 1
                    follower.reached = follower.reached or self.depth > 0
                    if self.scaled:
                        follower.scale_left = self.scale
        return result

    def around_parallel_forward(self, original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        self.reductions.watch(model)
        if self.shares is not None:
            with self.meter.paused(), torch.no_grad():
                self.shares.watch((*args, *kwargs.values()))
        return original(model, *args, **kwargs)

    def around_checkpoint(self, original: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        return original(self.checkpoints.counting(function), *args, **kwargs)

    def around_reduction_hook(self, original: Any, model: Any, state: object, hook: Any) -> None:
        original(model, state, self.reductions.counting(hook))

    def watch_shards(self) -> None:
        """What a sharded model does itself, once the script has loaded the module for it."""
        fsdp = sys.modules.get("torch.distributed.fsdp")
        if fsdp is not None and not self.sharding:
            self.sharding = True
            self.wrap(fsdp.FullyShardedDataParallel, "clip_grad_norm_", self.around_sharded_clip)

    def around_sharded_clip(
        self, original: Any, model: Any, max_norm: Any, norm_type: Any = 2.0
    ) -> Any:
        norm = original(model, max_norm, norm_type)
        with self.meter.paused(), torch.no_grad():
            clipping = Clipping(list(model.parameters()), float(max_norm), float(norm_type))
            self.note_clipping(clipping, float(norm))
        return norm

    def alive(self) -> Iterator[Follower]:
        return (f for f in list(self.followers.values()) if f.optimizer() is not None)

    def note_loss(self, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or tensor.numel() != 1:
            return
        with self.meter.paused(), torch.no_grad():
            value = self.true_loss.pop(tensor, None)
            self.losses.append(float(tensor.detach()) if value is None else value)

    def around_loss(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and not self.training:
            with self.meter.paused(), torch.no_grad():
                self.computed.append(float(loss.detach()))
        return loss

    def around_module(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self.training or not self.depth:
            return original(*args, **kwargs)
        return self.outputs.around(original, *args, **kwargs)

    def around_scale(self, original: Any, scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        if not scaler.is_enabled():
            return scaled
        self.scaler_calls += 1
        if isinstance(scaled, torch.Tensor) and isinstance(outputs, torch.Tensor):
            self.mark(scaled, outputs, float(scaler.get_scale()))
        elif isinstance(scaled, (list, tuple)):
            for one, plain in zip(scaled, outputs, strict=True):
                if isinstance(one, torch.Tensor):
                    self.mark(one, plain, float(scaler.get_scale()))
        return scaled

    def mark(self, scaled: torch.Tensor, plain: torch.Tensor, scale: float) -> None:
        if plain.numel() == 1:
            with self.meter.paused(), torch.no_grad():
                self.true_loss[scaled] = float(plain.detach())
        if not scaled.requires_grad:
            return

        def reached(gradient: torch.Tensor) -> None:
            self.scaled, self.scale = True, scale

        scaled.register_hook(reached)

    def around_unscale(self, original: Any, scaler: Any, optimizer: Any) -> None:
        original(scaler, optimizer)
        if scaler.is_enabled():
            self.scaler_calls += 1
            self.follower(optimizer).scale_left /= float(scaler.get_scale())

    def around_clip_norm(
        self, original: Any, parameters: Any, max_norm: Any, norm_type: Any = 2.0, *a: Any, **k: Any
    ) -> Any:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        result = original(listed, max_norm, norm_type, *a, **k)
        with self.meter.paused(), torch.no_grad():
            self.note_clipping(Clipping(listed, float(max_norm), float(norm_type)), float(result))
        return result

    def around_clip_value(
        self, original: Any, parameters: Any, clip_value: Any, *a: Any, **k: Any
    ) -> Any:
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        with self.meter.paused(), torch.no_grad():
            largest = gradient_norm(listed, math.inf)
        original(listed, clip_value, *a, **k)
        self.note_clipping(Clipping(listed, float(clip_value), math.inf), largest)

    def note_clipping(self, clipping: Clipping, norm: float) -> None:
        """Tells the optimizers that share these parameters; `norm` is the one before clipping."""
        clipped = clipping.identities()
        for follower in self.alive():
            if any(id(parameter) in clipped for parameter in follower.parameters()):
                follower.clipping = clipping
                follower.raw_norm = norm / follower.scale_left

    # -- records

    def start(self) -> None:
        self.computed = []
        self.outputs.new()
        self.turn(0)
        self.meter.reset_peak()
        memory = self.meter.memory()
        self.allocations = memory.device_allocations
        self.waits, self.copies, self.workers = memory.waits or 0, memory.copies or 0, 0
        self.moment = time.perf_counter()

    def record(self, unit: str, seen: dict[str, Any]) -> None:
        seconds = time.perf_counter() - self.moment
        memory = self.meter.memory()
        step = Step(
            unit=unit,
            extent=self.extent,
            requested=memory.requested,
            requested_peak=memory.requested_peak,
            allocated=memory.allocated,
            allocated_peak=memory.allocated_peak,
            reserved=memory.reserved,
            live_tensors=memory.blocks,
            nodes=live_nodes(),
            host=self.meter.host(),
            device_allocations=memory.device_allocations - self.allocations,
            waits=None if memory.waits is None else memory.waits - self.waits,
            copies=None if memory.copies is None else memory.copies - self.copies,
            workers=self.workers,
            worker_bytes=worker_bytes(),
            seconds=seconds,
            optimizer=seen.pop("optimizer", 0),
            **seen,
        )
        self.recorded += 1
        self.emit(step)
        self.turn(self.recorded)
        self.start()


def is_scheduler(value: object) -> bool:
    """Whether a member of torch's module is one of its schedulers."""
    return isinstance(value, type) and issubclass(value, torch.optim.lr_scheduler.LRScheduler)
