"""Installs the emulated device into torch for the whole process, before any user code runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from oomlint.verify import (
    compiler,
    cuda_api,
    device_names,
    encoding,
    fused,
    mixed_precision,
    process_groups,
    random_numbers,
    sparse,
    wrappers,
)
from oomlint.verify.allocator import Allocator
from oomlint.verify.device import (
    CPU,
    CUDA,
    PINNED,
    TAG,
    Device,
    emulated_device,
    on_device,
    storages,
)
from oomlint.verify.device_names import target
from oomlint.verify.dispatch import Sight
from oomlint.verify.profiles import EMULATED, Profile

base_type: Callable[..., Any] = torch.Tensor.type
# Registrations at the dispatcher end with the object that made them.
registrations: list[Any] = []


def install(
    capacity: int | None = None,
    profile: Profile = EMULATED,
    allocator: type[Allocator] = Allocator,
) -> Device:
    """Makes torch see one CUDA device that runs on the CPU; cannot be undone in this process."""
    device = Device(allocator(capacity or profile.memory), profile)
    device_names.install()
    patch_tensors(device)
    patch_constructors(device)
    patch_storages(device)
    sparse.install(device)
    wrappers.install(device)
    cuda_api.install(device)
    random_numbers.install(device)
    torch._C._cuda_clearCublasWorkspaces = device.workspaces.clear
    patch_grouping()
    library, kernels = fused.install(device)
    registrations.append(library)
    compiler.patch_compiler()
    sight = Sight(device, kernels | encoding.layers(device))
    registrations.append(sight.install())
    patch_threads(device, sight)
    mixed_precision.install()
    process_groups.install()
    sight.__enter__()
    return device


def patch_tensors(device: Device) -> None:
    base: Any = torch.Tensor
    base_to, base_tolist = base.to, base.tolist

    def move(
        tensor: torch.Tensor, where: torch.device, dtype: torch.dtype | None = None, **rest: Any
    ) -> Any:
        if emulated_device(tensor).type == where.type:
            return base_to(tensor, dtype=dtype or tensor.dtype, **rest)
        if where.type not in ("cuda", "cpu"):
            return base_to(tensor, where, dtype=dtype or tensor.dtype, **rest)
        rest["copy"] = True
        if where.type == "cpu" and not rest.get("non_blocking") and not device.state.paused:
            device.wait()
        if where.type == "cuda" and not device.state.paused:
            device.copies += 1
        with device.placing(where):
            return base_to(tensor, dtype=dtype or tensor.dtype, **rest)

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        rest = dict(kwargs)
        first = args[0] if args else None
        names: tuple[str, ...]
        if isinstance(first, torch.Tensor):
            names = ("other", "non_blocking", "copy")
        elif isinstance(first, torch.dtype):
            names = ("dtype", "non_blocking", "copy")
        else:
            names = ("device", "dtype", "non_blocking", "copy")
        rest.update(zip(names, args, strict=False))
        other = rest.pop("other", None)
        if other is not None:
            rest.update(device=other.device, dtype=other.dtype)
        where = target(rest.pop("device", None))
        if where is None:
            return base_to(self, *args, **kwargs)
        return move(self, where, **rest)

    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> Any:
        where = CUDA if device is None else target(device)
        if where is None or where.type != "cuda":
            raise RuntimeError(f"Invalid device, must be cuda device, but got {device}")
        return move(self, where, memory_format=memory_format)

    def cpu(self: torch.Tensor, memory_format: torch.memory_format = torch.preserve_format) -> Any:
        return move(self, CPU, memory_format=memory_format)

    def pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        if on_device(self):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        made = self if is_pinned(self) else self.clone()
        setattr(made.untyped_storage(), PINNED, True)
        return made

    def is_pinned(self: torch.Tensor, device: Any = None) -> bool:
        return not on_device(self) and any(hasattr(one, PINNED) for one in storages(self))

    def tolist(self: torch.Tensor) -> Any:
        if on_device(self) and not device.state.paused:
            device.wait()
        return base_tolist(self)

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def converting(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if on_device(self) and not kwargs.get("force"):
                raise TypeError(
                    "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy "
                    "the tensor to host memory first."
                )
            return original(self, *args, **kwargs)

        return converting

    def typed(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        if dtype is None:
            return type_name(self.dtype) if on_device(self) else base_type(self)
        if isinstance(dtype, type) and dtype.__module__ == "torch.cuda":
            dtype = f"torch.cuda.{dtype.__name__}"
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            plain = base_type(self, dtype.replace("torch.cuda.", "torch."), non_blocking)
            return move(plain, CUDA)
        return base_type(self, dtype, non_blocking)

    base_grad = torch._C.TensorBase.grad

    def set_grad(self: torch.Tensor, value: Any) -> None:
        if isinstance(value, torch.Tensor) and on_device(value) != on_device(self):
            kinds = (emulated_device(one).type for one in (value, self))
            raise RuntimeError(
                "attempting to assign a gradient with device type '{}' to a tensor with device "
                "type '{}'. Please ensure that the gradient and the tensor are on the same "
                "device".format(*kinds)
            )
        base_grad.__set__(self, value)

    base.grad = property(base_grad.__get__, set_grad, base_grad.__delete__)
    base.device = property(emulated_device)
    base.is_cuda = property(on_device)
    base.is_cpu = property(lambda self: emulated_device(self).type == "cpu")
    base.get_device = lambda self: 0 if on_device(self) else -1
    base.to, base.cuda, base.cpu, base.type = to, cuda, cpu, typed
    base.tolist = tolist
    base.pin_memory, base.is_pinned = pin_memory, is_pinned
    # Parameters without a shape yet pass on what they know.
    lazy: Any = torch.nn.parameter.UninitializedTensorMixin
    lazy._allowed_methods = [*lazy._allowed_methods, to, cuda, cpu]
    base.record_stream = lambda self, s: device.record_stream(self, s.stream_id)
    base.numpy, base.__array__ = guard(base.numpy), guard(base.__array__)


def type_name(dtype: torch.dtype) -> str:
    """What Tensor.type() calls a tensor of this dtype on CUDA."""
    named = str(base_type(torch.empty(0, dtype=dtype, device=CPU)))
    return named.replace("torch.", "torch.cuda.", 1)


def patch_constructors(device: Device) -> None:
    """Constructors that copy Python data to a device outside the dispatcher."""

    def copying(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            where = target(kwargs.get("device"))
            if where is None and not any(isinstance(value, torch.Tensor) for value in args[:1]):
                where = emulated_device(torch.empty(0))  # the default device, contexts included
            if where is None or where.type not in ("cuda", "cpu"):
                return original(*args, **kwargs)
            grad = kwargs.get("requires_grad", False)
            rest = {k: v for k, v in kwargs.items() if k not in ("requires_grad", "pin_memory")}
            made = original(*args, **{**rest, "device": CPU}).to(where)
            return made.requires_grad_() if grad else made

        return make

    module: Any = torch
    scripted = torch.jit._builtins._get_builtin_table()  # TorchScript knows builtins by identity
    for name in ("tensor", "as_tensor", "asarray"):
        original = getattr(torch, name)
        replaced = copying(original)
        if id(original) in scripted:
            scripted[id(replaced)] = scripted[id(original)]
        setattr(module, name, replaced)
    base: Any = torch.Tensor
    base_new_tensor, base_new = base.new_tensor, base.new

    def new_tensor(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        where = target(kwargs.pop("device", None)) or emulated_device(self)
        grad = kwargs.pop("requires_grad", False)
        with device.placing(CPU):
            plain = base_new_tensor(self, *args, **kwargs)
        made = plain.to(where)
        return made.requires_grad_() if grad else made

    def new(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        where = target(kwargs.pop("device", None)) or emulated_device(self)
        with device.placing(CPU):
            plain = base_new(self, *args, **kwargs)
        return plain.to(where)

    base.new_tensor, base.new = new_tensor, new

    def placing(original: Callable[..., Any]) -> Callable[..., Any]:
        """What says where its result goes: C++ sees the same name for either device."""

        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> Any:
            where = target(kwargs.get("device"))
            if where is None or where.type not in ("cuda", "cpu"):
                return original(*args, **kwargs)
            with device.placing(where):
                return original(*args, **{**kwargs, "device": CPU})

        return make

    for kind in ("empty", "zeros", "ones", "full"):
        setattr(base, f"new_{kind}", placing(getattr(base, f"new_{kind}")))
    for kind in ("empty", "zeros", "ones", "full", "rand", "randn", "randint"):
        original = getattr(torch, f"{kind}_like")
        replaced = placing(original)
        if id(original) in scripted:
            scripted[id(replaced)] = scripted[id(original)]
        setattr(module, f"{kind}_like", replaced)


def patch_storages(device: Device) -> None:
    """Copies of storages (deepcopy, pickle, torch.load) stay on or return to the device."""
    storage: Any = torch.UntypedStorage

    def copied(storage: Any) -> Any:
        return torch.UntypedStorage(storage.nbytes()).copy_(storage)

    def clone(self: Any) -> Any:
        made = copied(self)
        if hasattr(self, TAG):
            device.tag_storage(made)
        return made

    base_resize = torch.UntypedStorage.resize_

    def resize(self: Any, size: int) -> Any:
        """Sharded models free and fill the storages of their parameters in place."""
        resized = base_resize(self, size)
        if hasattr(self, TAG):
            device.tag_storage(self)
        return resized

    def to_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = self if hasattr(self, TAG) else copied(self)
        device.tag_storage(made)
        return made

    real_place = storage.device.__get__
    storage.clone, storage.resize_, storage.cuda = clone, resize, to_device
    storage.device = property(lambda self: CUDA if hasattr(self, TAG) else real_place(self))
    storage.is_cuda = property(lambda self: hasattr(self, TAG))
    base_shared, base_share = storage.is_shared, storage.share_memory_
    storage.is_shared = lambda self: hasattr(self, TAG) or base_shared(self)
    storage.share_memory_ = lambda self, *given: (
        self if hasattr(self, TAG) else base_share(self, *given)
    )

    def location(value: Any) -> str | None:
        plain = getattr(value, "_untyped_storage", value)
        return "cuda:0" if hasattr(plain, TAG) else None

    def restore(value: Any, place: str) -> Any:
        if not place.startswith("cuda"):
            return None
        index = torch.device(place).index or 0
        if index:
            raise RuntimeError(
                f"Attempting to deserialize object on CUDA device {index} but "
                "torch.cuda.device_count() is 1. Please use torch.load with map_location to map "
                "your storages to an existing device."
            )
        device.tag_storage(getattr(value, "_untyped_storage", value))
        return value

    torch.serialization.register_package(5, location, restore)


def patch_threads(device: Device, sight: Sight) -> None:
    """What the dispatcher includes is per thread: every new Python thread enters its own."""
    thread: Any = threading.Thread
    base_bootstrap = thread._bootstrap_inner

    def bootstrap(self: threading.Thread) -> None:
        with sight:
            base_bootstrap(self)

    thread._bootstrap_inner = bootstrap

    engine = torch.autograd.graph._engine_run_backward

    def run(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        before = device.state.backward
        device.state.backward = any(
            isinstance(output, torch.Tensor) and on_device(output) for output in outputs
        )
        try:
            return engine(outputs, *args, **kwargs)
        finally:
            device.state.backward = before

    torch.autograd.graph._engine_run_backward = run
    torch.autograd._engine_run_backward = run


def patch_grouping() -> None:
    """The foreach operators ask C++ for the devices of their tensors."""
    grouped = torch._C._group_tensors_by_device_and_dtype

    def group(lists: Any, with_indices: bool = False) -> Any:
        def home(tensors: Any) -> torch.device:
            first = next((t for t in tensors if isinstance(t, torch.Tensor)), None)
            return CPU if first is None else emulated_device(first)

        found = grouped(lists, with_indices)
        return {(home(value[0][0]), key[1]): value for key, value in found.items()}

    torch._C._group_tensors_by_device_and_dtype = group
