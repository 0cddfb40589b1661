"""The emulated CUDA device: CPU tensors with real values, tagged by storage as living on cuda:0."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oomlint.verify.allocator import Allocator, CapacityExceeded
from oomlint.verify.profiles import EMULATED, Profile
from oomlint.verify.scratch import multiplies, scratch
from oomlint.verify.streams import current

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
TAG = "_oomlint_hold"

real_device: Callable[[torch.Tensor], torch.device] = torch.Tensor.device.__get__


def target(value: Any) -> torch.device | None:
    """The device that a user's argument names; raises what CUDA raises where it has no such one."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = torch.device("cuda", value)
    named = value if isinstance(value, torch.device) else torch.device(value)
    if named.type == "cuda" and (named.index or 0) > 0:
        raise torch.AcceleratorError(
            "CUDA error: invalid device ordinal (the emulated machine has one device)"
        )
    return named


class Hold:
    """Ties a block of the allocator to the life of a storage.

    A storage's Python object lives exactly as long as the storage itself, also while only C++
    (a graph, a saved tensor) refers to it, so an attribute on it is a tag that cannot go stale.
    """

    __slots__ = ("allocator", "block", "size")

    def __init__(self, allocator: Allocator, size: int) -> None:
        self.allocator, self.size = allocator, size
        self.block = allocator.malloc(size, current.stream)

    def __del__(self) -> None:
        block = getattr(self, "block", None)
        if block is not None:
            self.allocator.free(block)


class State(threading.local):
    """What the running thread is doing: where copies go, and whether anything is recorded."""

    placement: torch.device | None = None
    paused: int = 0
    backward: bool = False


class Device:
    """The one emulated device of this process."""

    def __init__(self, allocator: Allocator, profile: Profile = EMULATED) -> None:
        self.allocator = allocator
        self.profile = profile
        self.state = State()
        self.waits = 0  # how often the host would have waited for a real device
        self.blocking: bool | None = None  # read at the first operation, as CUDA does
        self.copies = 0  # of tensors from the host
        self.operators: set[Any] = set()  # that ran on the device
        self.workspaces: dict[tuple[int, bool, int], Hold] = {}
        self.poisoned = False  # this process was forked from one that used the device
        os.register_at_fork(after_in_child=self.poison)

    def poison(self) -> None:
        self.poisoned = self.allocator.statistics().blocks.gained > 0

    def note_launch(self) -> None:
        """An operation begins on the device; with CUDA_LAUNCH_BLOCKING the host waits for it."""
        if self.blocking is None:
            self.blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        if self.blocking:
            self.waits += 1

    def note_work(self, func: Any, args: Any, result: Any) -> None:
        """What a real device needs for an operator beside its outputs."""
        self.operators.add(func)
        if not self.profile.workspace:
            return
        passing = [self.hold(size) for size in scratch(func, args, result, self.profile)]
        self.keep_workspace(func)
        passing.clear()

    def keep_workspace(self, func: Any) -> None:
        """cuBLAS has a workspace for each thread and stream; the backward has its own thread."""
        if not multiplies(func):
            return
        place = threading.get_ident(), self.state.backward, current.stream
        if place not in self.workspaces:
            self.workspaces[place] = self.hold(self.profile.workspace)

    def tag(self, tensor: torch.Tensor) -> None:
        """Puts the tensor's storage on the device; raises torch.OutOfMemoryError."""
        for storage in storages(tensor):
            self.tag_storage(storage)

    def tag_storage(self, storage: torch.UntypedStorage) -> None:
        if self.poisoned:
            raise RuntimeError(
                "Cannot re-initialize CUDA in forked subprocess. To use CUDA with "
                "multiprocessing, you must use the 'spawn' start method"
            )
        hold = getattr(storage, TAG, None)
        size = storage.nbytes()
        if hold is not None and hold.size == size:
            return
        setattr(storage, TAG, self.hold(size))

    def hold(self, size: int) -> Hold:
        """Memory for a storage; raises torch.OutOfMemoryError."""
        try:
            return Hold(self.allocator, size)
        except CapacityExceeded as error:
            raise torch.OutOfMemoryError(str(error)) from None

    def record_stream(self, tensor: torch.Tensor, stream: int) -> None:
        """Keeps the tensor's memory from being reused at once when it is freed."""
        for storage in storages(tensor):
            hold = getattr(storage, TAG, None)
            if hold is not None and hold.block is not None:
                self.allocator.record_stream(hold.block, stream)

    @contextlib.contextmanager
    def placing(self, device: torch.device) -> Iterator[None]:
        """New tensors of this thread go to `device`, whatever their inputs."""
        before = self.state.placement
        self.state.placement = device
        try:
            yield
        finally:
            self.state.placement = before

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What this thread computes here is on no device and is not counted."""
        self.state.paused += 1
        try:
            yield
        finally:
            self.state.paused -= 1


def storages(tensor: torch.Tensor) -> Iterator[torch.UntypedStorage]:
    """The storages behind a tensor; a sparse one has several, a functorch wrapper its value's."""
    try:
        yield tensor.untyped_storage()
        return
    except (NotImplementedError, RuntimeError):
        pass
    try:
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            yield from storages(torch._C._functorch.get_unwrapped(tensor))
        elif tensor.layout is torch.sparse_coo:
            yield tensor._indices().untyped_storage()
            yield tensor._values().untyped_storage()
        elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
            yield tensor.values().untyped_storage()
    except (NotImplementedError, RuntimeError):
        return


def on_device(tensor: torch.Tensor) -> bool:
    try:
        return hasattr(tensor.untyped_storage(), TAG)
    except (NotImplementedError, RuntimeError):
        return any(hasattr(storage, TAG) for storage in storages(tensor))


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


HOST_IS_FULL = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
LOWER = (torch.float16, torch.bfloat16)
aten: Any = torch.ops.aten
# `item()`, `float()`, `if tensor:`: the host needs a number that the device computes.
READS_NUMBER = aten._local_scalar_dense.default
FILLS = aten.copy_.default
# CUDA multiplies halves and adds in float32; CPUs do so too, but many times slower than this.
PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.addbmm.default,
        aten.convolution.default,
        aten.convolution_backward.default,
    }
)


def multiplied(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A product of halves, computed in float32 and rounded."""
    dtypes = {value.dtype for value in args if isinstance(value, torch.Tensor)}
    if len(dtypes) != 1 or not dtypes <= set(LOWER) or "out" in kwargs:
        return func(*args, **kwargs)
    wide = [value.float() if isinstance(value, torch.Tensor) else value for value in args]
    result, dtype = func(*wide, **kwargs), dtypes.pop()
    if isinstance(result, torch.Tensor):
        return result.to(dtype)
    return tuple(None if value is None else value.to(dtype) for value in result)


def apply(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


class Tracker(TorchDispatchMode):  # type: ignore[misc]
    """Places what operators return: on the device where that is asked for or an input is there."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        state = self.device.state
        asked = kwargs.get("device")
        if asked is not None and asked.type == "cuda":
            target(asked)
            kwargs = {**kwargs, "device": CPU}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if state.paused:
            return func(*args, **kwargs)
        run = multiplied if func in PRODUCTS else apply
        try:
            result = run(func, args, kwargs)
        except RuntimeError as error:
            self.explain(error, asked, args, kwargs)
            raise
        if func is READS_NUMBER and on_device(args[0]):
            self.device.waits += 1
        if func is FILLS and on_device(args[0]) and not on_device(args[1]):
            self.device.copies += 1
        if not self.placed(asked, args, kwargs):
            return result
        self.device.note_launch()
        outputs = (result,) if isinstance(result, torch.Tensor) else result
        if not isinstance(outputs, (list, tuple)):
            return result
        inputs: set[int] | None = None
        for output in tensors_in(outputs):
            for storage in storages(output):
                if not hasattr(storage, TAG):
                    # A view of a host tensor, or a host tensor written in place, stays there.
                    if inputs is None:
                        given = (*args, *kwargs.values())
                        inputs = {s._cdata for t in tensors_in(given) for s in storages(t)}
                    if storage._cdata in inputs:
                        continue
                self.device.tag_storage(storage)
        self.device.note_work(func, args, result)
        return result

    def explain(
        self, error: RuntimeError, asked: torch.device | None, args: Any, kwargs: dict[str, Any]
    ) -> None:
        """Raises CUDA's error where the host's memory ends before the device's would have."""
        found = HOST_IS_FULL.search(str(error))
        if found and self.placed(asked, args, kwargs):
            self.device.hold(int(found[1]))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else the first operator imports torch's compiler, which takes longer than small scripts.
        return False

    def placed(self, asked: torch.device | None, args: Any, kwargs: dict[str, Any]) -> bool:
        state = self.device.state
        if state.placement is not None:
            return bool(state.placement.type == "cuda")
        if asked is not None and asked.type == "cuda":
            return True
        given = False
        for tensor in tensors_in((*args, *kwargs.values())):
            if on_device(tensor):
                return True
            given = True
        # Formulas of the backward pass make tensors out of nothing, with the real device's name.
        return state.backward and not given


def emulated_device(tensor: torch.Tensor) -> torch.device:
    device = real_device(tensor)
    if device.type == "cpu" and on_device(tensor):
        return CUDA
    return device
