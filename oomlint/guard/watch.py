"""Watches optimizers: whether their state will fit, and when memory comes near its end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from oomlint.guard.state import (
    RULES,
    Bytes,
    in_blocks,
    missing,
    predict_state,
    rule_of,
    state_bytes,
)

log = logging.getLogger("oomlint.guard")
told_that_nothing_is_guarded = False
# Set by `micro_batches`: then forward and backward take as much memory as there is, and no more.
batches_are_cut = False


@dataclass(frozen=True, slots=True)
class Usage:
    """What one device holds for this process, in bytes, after a step of an optimizer.

    `peak` is the most that was allocated since torch's peak statistics were reset last, `capacity`
    what this process may take, `steps` how many steps were watched.
    """

    device: torch.device
    allocated: int
    reserved: int
    peak: int
    capacity: int
    steps: int

    def __str__(self) -> str:
        share = self.reserved / self.capacity
        return (
            f"after {self.steps:,} steps {share:.0%} of {self.device} is reserved:"
            f" {size(self.reserved)} of {size(self.capacity)}, of which {size(self.allocated)} are"
            f" allocated ({size(self.peak)} at the peak)"
        )


class LimitReached(Exception):
    """Reserved memory passed the limit; raised by the step behind which `on_limit` was called."""

    def __init__(self, usage: Usage) -> None:
        super().__init__(f"stopped, because {usage}")
        self.usage = usage


class WillNotFit(Exception):
    """The run needs more memory than the device has for it.

    `needed` and `available` are bytes, `device` is a torch.device. No `RuntimeError`, so that
    code which handles CUDA's own errors does not take it for one and tries again.
    """

    def __init__(self, message: str, device: torch.device, needed: int, available: int) -> None:
        super().__init__(message)
        self.device, self.needed, self.available = device, needed, available


class Guard:
    """What `attach` returns. Used as a context manager it removes itself at the end."""

    def __init__(
        self,
        optimizers: Iterable[torch.optim.Optimizer],
        limit: float,
        on_limit: Callable[[Usage], object] | None,
        stop: bool | None,
        capacity: int | None,
        on_misfit: str,
    ) -> None:
        self.limit, self.on_limit, self.stop = limit, on_limit, stop
        self.capacity, self.on_misfit = capacity, on_misfit
        self.steps = 0
        # By device, in bytes: the reserved ones from which on it calls, the highest peak that was
        # looked at, and what a step is known to need with all state that was made or predicted.
        self.limits: dict[torch.device, float] = {}
        self.peaks: Bytes = {}
        self.needs: Bytes = {}
        self.emptied: set[torch.device] = set()
        self.passed: set[torch.device] = set()
        self.watched = [Watched(self, optimizer) for optimizer in optimizers]

    def find_devices(self, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                device = parameter.device
                if device.type == "cuda" and device not in self.limits:
                    self.limits[device] = self.limit * self.may_take(device)

    def may_take(self, device: torch.device) -> int:
        """Bytes of the device that this process may reserve, others left out of account."""
        if self.capacity is not None:
            return self.capacity
        total = torch.cuda.get_device_properties(device).total_memory
        with contextlib.suppress(AttributeError):  # torch before 2.5 does not tell the fraction
            total = int(total * torch.cuda.get_per_process_memory_fraction(device))
        return int(total)

    def available(self, device: torch.device) -> int:
        """Bytes that this process can have in all: what it holds, and what nobody does."""
        free, _ = torch.cuda.mem_get_info(device)
        return min(self.may_take(device), int(free) + reserved(device))

    def check_before(self, optimizer: torch.optim.Optimizer, closure: bool) -> None:
        """Raises WillNotFit where the state that a first step makes cannot fit."""
        rule = rule_of(optimizer)
        wanted = in_blocks(missing(optimizer, rule, by_gradient=not closure)) if rule else {}
        for device in self.limits:
            state, now = wanted.get(device, 0), held(device)
            peak = torch.cuda.max_memory_allocated(device)
            # Another peak is of this pass, also where the statistics were reset in between.
            if not closure and peak != self.peaks.get(device, peak):
                self.needs[device] = max(self.needs.get(device, 0), peak)
            self.peaks[device] = peak
            if rule is None:
                continue
            adds = f"{name_of(optimizer)} adds {size(state)} of state"
            self.demand(optimizer, device, now + state, f"{adds} to {size(now)} of other tensors")
            self.add_state(optimizer, device, state, adds)
        told = predict_state(optimizer)
        log.info(
            "%s: %s", name_of(optimizer), "unknown, so learnt" if told is None else listed(told)
        )

    def learn(self, optimizer: torch.optim.Optimizer, before: Bytes) -> None:
        """After the first step of an optimizer that is not known; raises WillNotFit."""
        made = state_bytes(optimizer)
        for device in self.limits:
            # Master weights are no state to torch, but are made by the first step as well.
            state = max(made.get(device, 0), held(device) - before.get(device, 0))
            log.info("%s: %s", name_of(optimizer), listed({device: state}))
            adds = f"{name_of(optimizer)} made {size(state)} of state at its first step"
            self.add_state(optimizer, device, state, adds)

    def add_state(
        self, optimizer: torch.optim.Optimizer, device: torch.device, state: int, adds: str
    ) -> None:
        """What forward and backward took without a state, they take beside it from now on."""
        need = self.needs.get(device, 0)
        if not need or batches_are_cut:
            return
        self.needs[device] = need + state
        text = f"{adds}, and forward and backward took {size(need)} without it"
        self.demand(optimizer, device, need + state, text)
        pieces = torch.cuda.max_memory_reserved(device) - torch.cuda.max_memory_allocated(device)
        if need + state + pieces > self.available(device) >= need + state:
            log.warning(
                "the run may not fit: %s. That is %s of %s on %s, and %s were reserved beside it",
                *(text, size(need + state), size(self.available(device)), device, size(pieces)),
            )

    def demand(
        self, optimizer: torch.optim.Optimizer, device: torch.device, needed: int, why: str
    ) -> None:
        available = self.available(device)
        if needed <= available:
            return
        message = (
            f"the run cannot fit: {why}. That is {size(needed)}, and {device} has"
            f" {size(available)} for this process. {ways_out(optimizer, device)}"
        )
        if self.on_misfit == "warn":
            log.warning("%s", message)
            return
        raise WillNotFit(message, device, needed, available)

    def pass_limit(self, device: torch.device) -> None:
        if device in self.passed:
            return
        if device not in self.emptied:
            # What is only cached is no need: the next step shows what the run takes.
            self.emptied.add(device)
            torch.cuda.empty_cache()
            return
        self.passed.add(device)
        usage = self.usage(device)
        if self.on_limit is None:
            log.warning("%s", usage)
            return
        self.on_limit(usage)
        if self.stop or (self.stop is None and not batches_are_cut):
            raise LimitReached(usage)

    def usage(self, device: torch.device | str | int = "cuda") -> Usage:
        """What a device holds now. Needs CUDA."""
        where = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        return Usage(
            device=where,
            allocated=held(where),
            reserved=reserved(where),
            peak=torch.cuda.max_memory_allocated(where),
            capacity=self.may_take(where),
            steps=self.steps,
        )

    def remove(self) -> None:
        """Takes the guard off its optimizers; may be called twice."""
        for one in self.watched:
            one.remove()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()


class Watched:
    """One optimizer's hooks. A copy of the optimizer, pickled or not, has none of them."""

    def __init__(self, guard: Guard, optimizer: torch.optim.Optimizer) -> None:
        self.guard = guard
        self.held: Bytes | None = None  # when its first step began
        guard.find_devices(optimizer)
        for device in guard.limits:
            guard.peaks.setdefault(device, torch.cuda.max_memory_allocated(device))
        # torch's compiler would follow hooks into questions that it cannot compile.
        before, after = (torch.compiler.disable(hook) for hook in (self.before, self.after))
        self.first = optimizer.register_step_pre_hook(before)
        self.every = optimizer.register_step_post_hook(after)

    def before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self.held is not None:
            return
        self.guard.find_devices(optimizer)
        self.held = {device: held(device) for device in self.guard.limits}
        closure = len(args) > 1 or kwargs.get("closure") is not None
        self.guard.check_before(optimizer, closure)

    def after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.guard.steps += 1
        if self.held:
            self.first.remove()
            before, self.held = self.held, {}
            if rule_of(optimizer) is None:
                self.guard.learn(optimizer, before)
        for device, most in self.guard.limits.items():
            if reserved(device) > most:
                self.guard.pass_limit(device)

    def remove(self) -> None:
        self.first.remove()
        self.every.remove()


def attach(
    *optimizers: torch.optim.Optimizer,
    limit: float = 0.9,
    on_limit: Callable[[Usage], object] | None = None,
    stop: bool | None = None,
    capacity: int | None = None,
    on_misfit: str = "raise",
) -> Guard:
    """Watches the steps of optimizers on CUDA devices.

    Right before its first step, when gradients are there and state is not, each optimizer's state
    is predicted; where it cannot fit, `WillNotFit` is raised, or with `on_misfit="warn"` logged.

    When reserved memory passes `limit`, a share of what the process may take of a device (or of
    `capacity` bytes), what is merely cached is given back once. When it passes again, `on_limit`
    is called with the `Usage`, once for a device, behind a step that is complete: parameters,
    optimizer and scaler can be saved. Then `LimitReached` is raised, unless `stop` is False or
    `micro_batches` cuts the batches, to which the end of the memory is none. Without `on_limit` a
    warning is logged.

    Without CUDA nothing is watched, which is logged once. Raises TypeError for what is no
    optimizer, ValueError for a limit outside of (0, 1] or another word than those.
    """
    global told_that_nothing_is_guarded
    if not 0 < limit <= 1:
        raise ValueError(f"limit is a share of the memory in (0, 1], not {limit}")
    if on_misfit not in ("raise", "warn"):
        raise ValueError(f'on_misfit is "raise" or "warn", not {on_misfit!r}')
    inner = [unwrapped(optimizer) for optimizer in optimizers]
    if not torch.cuda.is_available():
        if not told_that_nothing_is_guarded:
            told_that_nothing_is_guarded = True
            log.warning("torch sees no CUDA device, so no optimizer is guarded")
        inner = []
    return Guard(inner, limit, on_limit, stop, capacity, on_misfit)


def unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """The optimizer whose step runs the hooks: Accelerate's, for one, holds the real one."""
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"guard.attach takes optimizers, not {type(optimizer).__name__}")
    return optimizer


def held(device: torch.device) -> int:
    return statistic(device, "allocated_bytes")


def reserved(device: torch.device) -> int:
    return statistic(device, "reserved_bytes")


def statistic(device: torch.device, name: str) -> int:
    # torch.cuda.memory_reserved sorts some hundred names of statistics for one number.
    found: Any = torch.cuda.memory_stats_as_nested_dict(device)
    return int(found[name]["all"]["current"]) if found else 0


def name_of(optimizer: torch.optim.Optimizer) -> str:
    return type(optimizer).__name__


def ways_out(optimizer: torch.optim.Optimizer, device: torch.device) -> str:
    """What would take less, with its number where that is known."""
    factored = in_blocks(missing(optimizer, RULES["Adafactor"])).get(device, 0)
    return (
        f"Less is taken by an optimizer with less state (torch.optim.Adafactor: {size(factored)}),"
        " by sharding it, by fewer trainable parameters or by smaller activations."
    )


def listed(held: Bytes) -> str:
    return ", ".join(f"{size(count)} on {device}" for device, count in held.items()) or "nothing"


def size(count: int) -> str:
    if abs(count) < 1024:
        return f"{count} bytes"
    value, unit = count / 1024, 0
    while abs(value) >= 1024 and unit < 2:
        value, unit = value / 1024, unit + 1
    return f"{value:,.2f} {('KiB', 'MiB', 'GiB')[unit]}"
