"""The emulated CUDA device: CPU tensors with real values, tagged by storage as living on cuda:0."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from oomlint.verify.allocator import Allocator, CapacityExceeded
from oomlint.verify.profiles import EMULATED, Profile
from oomlint.verify.scratch import multiplies, scratch
from oomlint.verify.streams import current

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
TAG = "_oomlint_hold"
UNSURE = "_oomlint_unsure"  # C++ made this storage and does not say for which device
PINNED = "_oomlint_pinned"
# A dispatch mode would be seen by autograd, which then sums gradients out of place and takes other
# formulas than on a real device. Nothing else in torch uses this key, and nobody looks for it.
KEY = torch._C._parse_dispatch_key("Fake")
KEYS = torch._C.DispatchKeySet(KEY)

real_device: Callable[[torch.Tensor], torch.device] = torch.Tensor.device.__get__


class Hold:
    """Ties a block of the allocator to the life of a storage.

    A storage's Python object lives exactly as long as the storage itself, also while only C++
    (a graph, a saved tensor) refers to it, so an attribute on it is a tag that cannot go stale.
    """

    __slots__ = ("allocator", "block", "size")

    def __init__(self, allocator: Allocator, size: int) -> None:
        self.allocator, self.size = allocator, size
        self.block = allocator.malloc(size, current.stream, current.pools)

    def __del__(self) -> None:
        block = getattr(self, "block", None)
        if block is not None:
            self.allocator.free(block)


WARNS, REFUSES = 1, 2
SYNCHRONIZES = "called a synchronizing CUDA operation"
Runner = Callable[[Any, Any, Any, Any], Any]


class State(threading.local):
    """What the running thread is doing: where copies go, and whether anything is recorded."""

    placement: torch.device | None = None
    paused: int = 0
    backward: bool = False
    within: bool = False  # an operator on the device that is composed of others


class Device:
    """The one emulated device of this process."""

    def __init__(self, allocator: Allocator, profile: Profile = EMULATED) -> None:
        self.allocator = allocator
        self.profile = profile
        self.state = State()
        self.waits = 0  # how often the host would have waited for a real device
        self.watchful = 0  # what torch.cuda.set_sync_debug_mode asks for
        self.generator: Any = None  # of random numbers
        self.blocking: bool | None = None  # read at the first operation, as CUDA does
        self.copies = 0  # of tensors from the host
        self.doubts: set[str] = set()  # of what the script did and the model leaves out
        self.operators: set[Any] = set()  # that ran on the device
        self.runner: Runner | None = None  # of operators, in place of their kernels
        self.workspaces: dict[tuple[int, bool, int], Hold] = {}
        self.poisoned = False  # this process was forked from one that used the device
        os.register_at_fork(after_in_child=self.poison)

    def poison(self) -> None:
        self.poisoned = self.allocator.statistics().blocks.gained > 0

    def wait(self) -> None:
        """The host would wait here for a real device; raises RuntimeError where it may not."""
        self.waits += 1
        if self.watchful == REFUSES:
            raise RuntimeError(SYNCHRONIZES)
        if self.watchful == WARNS:
            warnings.warn(SYNCHRONIZES, stacklevel=3)

    def note_launch(self) -> None:
        """An operation begins on the device; with CUDA_LAUNCH_BLOCKING the host waits for it."""
        if self.blocking is None:
            self.blocking = os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0")
        if self.blocking:
            self.waits += 1

    def note_work(self, func: Any, args: Any, result: Any, named: dict[str, Any]) -> None:
        """What a real device needs for an operator beside its outputs."""
        self.operators.add(func)
        if not self.profile.workspace:
            return
        passing = [self.hold(size) for size in scratch(func, args, result, self.profile, named)]
        self.keep_workspace(func)
        passing.clear()

    def keep_workspace(self, func: Any) -> None:
        """cuBLAS has a workspace for each thread and stream; the backward has its own thread."""
        if not multiplies(func):
            return
        place = threading.get_ident(), self.state.backward, current.stream
        if place not in self.workspaces:
            self.workspaces[place] = self.hold(self.profile.chosen_workspace())

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
    def within(self, placed: bool) -> Iterator[None]:
        """Around the parts of an operator that works on the device, or on the host."""
        before = self.state.within
        self.state.within = placed
        try:
            yield
        finally:
            self.state.within = before

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
    except ValueError:  # a parameter without a shape yet refuses what its class does not know
        with torch._C.DisableTorchFunctionSubclass():
            storage = tensor.untyped_storage()
        yield storage
        return
    except (NotImplementedError, RuntimeError):
        pass
    try:
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            yield from storages(torch._C._functorch.get_unwrapped(tensor))
        else:
            # These are operators as well, which would ask for the storages of what they are given.
            with torch._C._ExcludeDispatchKeyGuard(KEYS):
                parts = parts_of_sparse(tensor)
            for part in parts:
                yield part.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return


COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in COMPRESSED:
        return (tensor.values(),)
    return ()


def on_device(tensor: torch.Tensor) -> bool:
    try:
        found = hasattr(tensor.untyped_storage(), TAG)
    except (NotImplementedError, RuntimeError, ValueError):
        return any(hasattr(storage, TAG) for storage in storages(tensor))
    if found or type(tensor) in PLAIN:
        return found
    part = getattr(tensor, "_local_tensor", None)  # of a sharded tensor, which C++ makes
    return isinstance(part, torch.Tensor) and on_device(part)


PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def tensors_in(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(value)


def emulated_device(tensor: torch.Tensor) -> torch.device:
    device = real_device(tensor)
    if device.type == "cpu" and on_device(tensor):
        return CUDA
    return device
