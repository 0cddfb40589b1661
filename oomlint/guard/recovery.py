"""Runs work again with less at a time after the device's memory was not enough."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from oomlint.guard import watch
from oomlint.guard.watch import WillNotFit, size

log = logging.getLogger("oomlint.guard")
P = ParamSpec("P")
T = TypeVar("T")

# torch before 2.5 knows it by the longer name alone.
OutOfMemoryError: type[Exception] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
# cuBLAS makes its handles outside of torch's allocator, and says so in its own words.
HANDLE_FAILED = "CUBLAS_STATUS_ALLOC_FAILED"


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """What came of an attempt; true where it succeeded, and then `value` is what was returned.

    `error` is the text of the error. The error itself is gone: its traceback would keep the frames
    that failed, and with them their tensors and the graph, alive.
    """

    value: T | None
    error: str | None

    def __bool__(self) -> bool:
        return self.error is None


def attempt(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Attempt[T]:
    """Calls a function; where the device's memory is not enough, frees what it had taken.

    What the function made is freed only when nobody else holds it: keep tensors of the attempt in
    the function, and out of the caller's variables. Among several ranks the error is raised, since
    the others would wait in their collectives for one that tries again.
    """
    try:
        return Attempt(function(*args, **kwargs), None)
    except Exception as error:
        if not is_out_of_memory(error) or ranks() > 1:
            raise
        text = str(error)
    # Only here, outside of the handler, are the frames that failed gone.
    release()
    return Attempt(None, text)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a CUDA device's memory was not enough."""
    return isinstance(error, OutOfMemoryError) or (
        isinstance(error, RuntimeError) and HANDLE_FAILED in str(error)
    )


def release() -> None:
    """Frees cycles of objects that nobody uses, and gives cached blocks back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def ranks() -> int:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


class MicroBatches(Generic[T]):
    """A function of one micro-batch, called with a whole batch; made by `micro_batches`.

    `size` is how many samples it is called with at a time; None until a batch was too large.
    """

    def __init__(self, function: Callable[..., T], owners: Iterable[Any], size: int | None) -> None:
        functools.update_wrapper(self, function)
        self.function, self.owners, self.size = function, tuple(owners), size

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        watch.batches_are_cut = True
        count = batch_size(args, kwargs)
        while True:
            at_once = min(self.size or count, count)
            gradients = Gradients(self.owners)
            tried = attempt(self.run, count, at_once, args, kwargs)
            if tried:
                return tried.value  # type: ignore[return-value]
            gradients.restore()
            if at_once == 1:
                device = torch.device("cuda", torch.cuda.current_device())
                taken = torch.cuda.memory_allocated(device)
                message = (
                    f"one sample at a time is too much beside {size(taken)} that stay allocated"
                    f" ({tried.error})"
                )
                total = torch.cuda.get_device_properties(device).total_memory
                raise WillNotFit(message, device, taken, total)
            self.size = at_once // 2
            log.warning("%d samples at a time do not fit, so now %d", at_once, self.size)

    def run(self, count: int, at_once: int, args: Any, kwargs: Any) -> T:
        total: Any = None
        for start in range(0, count, at_once):
            stop = min(start + at_once, count)
            some, named = (part(given, start, stop, count) for given in (args, kwargs))
            result = self.function(*some, **named, share=(stop - start) / count)
            total = summed(total, result)
        return total  # type: ignore[no-any-return]


def micro_batches(
    *owners: Any, size: int | None = None
) -> Callable[[Callable[..., T]], MicroBatches[T]]:
    """Lets a function that goes backward run in as many micro-batches as memory asks for.

        @guard.micro_batches(model)
        def backward(images, labels, share):
            loss = criterion(model(images), labels) * share
            loss.backward()
            return loss

        loss = backward(images, labels)  # the whole batch

    The tensors among the arguments that are as long as the first one, in tuples, lists and
    mappings too, are cut along their first dimension; everything else is passed as it is. `share`
    is the part of the batch's samples in the micro-batch: times a mean over it, the sum over all is
    the mean over the batch. What the function returns is summed, detached.

    It begins with `size` samples at a time, or with all. After an out-of-memory error the gradients
    of `owners` (modules, optimizers or parameters) are what they were before the call, half as many
    samples are taken, and the batch begins anew; the size that fits is kept. Gradients that are
    there before the call are copied to the host, to be restored: call it on cleared ones.

    Raises WillNotFit where one sample is too much, ValueError without tensors or `size` below 1.
    """
    if size is not None and size < 1:
        raise ValueError(f"size is a number of samples, not {size}")
    return lambda function: MicroBatches(function, owners, size)


class Gradients:
    """The gradients of parameters as they are, to be restored when a backward pass failed."""

    def __init__(self, owners: Iterable[Any]) -> None:
        self.kept = [
            (parameter, None if parameter.grad is None else parameter.grad.to("cpu", copy=True))
            for owner in owners
            for parameter in parameters_of(owner)
        ]

    def restore(self) -> None:
        for parameter, gradient in self.kept:
            parameter.grad = None if gradient is None else gradient.to(parameter.device)


def parameters_of(owner: Any) -> list[Any]:
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    if isinstance(owner, torch.optim.Optimizer):
        return [parameter for group in owner.param_groups for parameter in group["params"]]
    return [owner] if isinstance(owner, torch.Tensor) else list(owner)


def batch_size(*given: Any) -> int:
    """The length of the first tensor. Raises ValueError where there is none."""
    waiting = list(given)
    while waiting:
        value = waiting.pop(0)
        if isinstance(value, torch.Tensor) and value.dim():
            return len(value)
        if isinstance(value, Mapping):
            waiting[:0] = value.values()
        elif isinstance(value, (list, tuple)):
            waiting[:0] = value
    raise ValueError("there is no tensor among the arguments to cut into micro-batches")


def part(value: Any, start: int, stop: int, count: int) -> Any:
    if isinstance(value, torch.Tensor):
        return value[start:stop] if value.dim() and len(value) == count else value
    if isinstance(value, Mapping):
        return {key: part(item, start, stop, count) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(part(item, start, stop, count) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(part(item, start, stop, count) for item in value)
    return value


def summed(total: Any, result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        result = result.detach()
    if isinstance(result, tuple):
        totals = total or [None] * len(result)
        return tuple(summed(*pair) for pair in zip(totals, result, strict=True))
    return result if total is None else total + result
