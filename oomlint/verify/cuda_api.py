"""The torch.cuda namespace of the emulated device: questions answered, objects stood in for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from oomlint.verify import memory_pools, streams
from oomlint.verify.allocator_settings import UNLIMITED, parse
from oomlint.verify.device import Device, Hold
from oomlint.verify.device_names import ORDINAL, index_of, target
from oomlint.verify.memory_history import MemoryHistory
from oomlint.verify.profiles import properties
from oomlint.verify.statistics import Statistics
from oomlint.verify.streams import Event, ExternalStream, Scope, Stream, StreamScope


def install(emulated: Device) -> None:
    """Puts the emulated device behind `torch.cuda` and `torch.accelerator`."""
    memory = memory_functions(emulated)
    for name, value in (memory | device_functions(emulated)).items():
        replace_everywhere(name, value)
    for name, answer in (CORE | raw_memory(emulated)).items():
        setattr(torch._C, name, answer)
    install_accelerator(memory)
    install_tools(emulated)
    MemoryHistory(emulated.allocator).install()
    memory_pools.install(emulated)


# What torch's own Python asks of C++.
CORE: dict[str, Callable[..., Any]] = {
    "_cuda_getDevice": lambda: 0,
    "_cuda_setDevice": lambda device: None,
    "_cuda_exchangeDevice": lambda device: 0,
    "_cuda_maybeExchangeDevice": lambda device: 0,
    "_cuda_getCurrentBlasHandle": lambda: 1,
    "_cuda_hostMemoryStats": dict,  # pinned memory is not counted
    "_cuda_resetPeakHostMemoryStats": lambda: None,
    "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
}
# A build for CUDA 13 with cuDNN 9.20 is what torch 2.13 comes as.
VERSION, CUDNN = "13.0", 92000


def raw_memory(emulated: Device) -> dict[str, Callable[..., Any]]:
    """Memory by its address, without a tensor; what is on a stream is not told apart."""
    held: dict[int, Hold] = {}

    def take(size: int, stream: int) -> int:
        hold = emulated.hold(size)
        address = emulated.allocator.address(hold.block) if hold.block is not None else 0
        held[address] = hold
        return address

    def give_back(address: int) -> None:
        held.pop(address, None)

    return {
        "_cuda_cudaCachingAllocator_raw_alloc": take,
        "_cuda_cudaCachingAllocator_raw_delete": give_back,
        "_cuda_cudaCachingAllocator_enable": lambda on: None,
    }


PARTS = ("memory", "random", "streams", "graphs", "profiler")


def replace_everywhere(name: str, value: Any) -> None:
    """In torch.cuda, and in the parts of it that have imported the same thing by name."""
    module: Any = torch.cuda
    for part in (getattr(module, part) for part in PARTS):
        if name in vars(part):
            setattr(part, name, value)
    setattr(module, name, value)


MODES = ("default", "warn", "error")


class Runtime:
    """What scripts ask of the CUDA runtime itself: to start and stop a profiler."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, emulated: Device) -> None:
        self.emulated = emulated

    def cudaMemGetInfo(self, device: int = 0) -> tuple[int, int]:
        allocator = self.emulated.allocator
        return allocator.available, allocator.capacity

    def cudaGetErrorString(self, code: int) -> str:
        return "no error"

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self.cudaError.success


def install_tools(emulated: Device) -> None:
    """What is beside memory and devices: markers, the runtime, legacy types."""

    def watch_waits(debug_mode: int | str) -> None:
        if isinstance(debug_mode, str):
            if debug_mode not in MODES:
                raise RuntimeError(
                    "invalid value of debug_mode, expected one of `default`, `warn`, `error`"
                )
            debug_mode = MODES.index(debug_mode)
        emulated.watchful = debug_mode

    runtime = Runtime(emulated)
    module, core, markers = torch.cuda, torch._C, torch.cuda.nvtx
    answers = {
        "cudart": lambda: runtime,
        "check_error": nothing(),
        "_sleep": nothing(),
        "get_sync_debug_mode": lambda: emulated.watchful,
        "set_sync_debug_mode": watch_waits,
        "get_stream_from_external": lambda pointer, device=None: Stream(stream_id=int(pointer)),
    }
    for name, value in answers.items():
        replace_everywhere(name, value)
    module.nccl.version = lambda: (2, 28, 3)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(markers, name, nothing())
    backends: Any = torch.backends
    backends.cuda.is_built = backends.cudnn.is_available = lambda: True
    backends.cuda.is_flash_attention_available = lambda: True
    backends.cudnn.version = lambda: CUDNN
    backends.cudnn.is_acceptable = lambda tensor: False  # else layers call kernels of cuDNN
    general: Any = torch
    general.set_default_tensor_type = set_default_tensor_type
    versions: Any = torch.version
    versions.cuda = VERSION
    # A data-parallel model of one device scatters its inputs to it and gathers nothing.
    core._scatter = lambda tensor, devices, *rest: tuple(tensor.cuda() for _ in devices)
    core._broadcast = lambda tensor, devices: [tensor.cuda() for _ in devices]
    for name in TYPES:
        setattr(module, name, legacy(name))


def set_default_tensor_type(given: Any) -> None:
    """Raises TypeError for what is no type of tensors."""
    name = given if isinstance(given, str) else f"{given.__module__}.{given.__name__}"
    if not name.startswith("torch.cuda."):
        torch.set_default_device(None)
        base_set_type(given)
        return
    base_set_type(name.replace("torch.cuda.", "torch."))
    torch.set_default_device("cuda")


base_set_type = torch.set_default_tensor_type
TYPES = tuple(
    f"{kind}Tensor" for kind in "Byte Char Short Int Long Half BFloat16 Float Double Bool".split()
)


def legacy(name: str) -> type:
    """torch.cuda.FloatTensor and its like: a constructor, and a question about a tensor."""
    plain = getattr(torch, name)

    class Legacy(type):
        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return plain(*args, **kwargs).cuda()

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.Tensor) and value.type() == f"torch.cuda.{name}"

    return Legacy(name, (), {"dtype": plain.dtype, "is_cuda": True, "__module__": "torch.cuda"})


def nothing() -> Callable[..., None]:
    # torch's compiler refuses to start when one object bears two public names.
    return lambda *args, **kwargs: None


def memory_functions(emulated: Device) -> dict[str, Any]:
    allocator = emulated.allocator

    def now() -> Statistics:
        return allocator.statistics()

    def set_fraction(fraction: float, device: Any = None) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if not 0 <= fraction <= 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        index_of(device, "Allocator not initialized for device {}: did you call init?")
        allocator.fraction = fraction

    def get_fraction(device: Any = None) -> float:
        index_of(device)
        return allocator.fraction

    def count(name: str, which: str) -> Callable[..., int]:
        def answer(device: Any = None) -> int:
            index_of(device)
            return int(getattr(getattr(now(), name), which))

        return answer

    def reset_peak(device: Any = None) -> None:
        index_of(device)
        allocator.reset_peak()

    def reset_accumulated(device: Any = None) -> None:
        index_of(device)
        now().reset_accumulated()

    def set_settings(env: str) -> None:
        allocator.settings = parse(env)

    def memory_info(device: Any = None) -> tuple[int, int]:
        index_of(device, ORDINAL, torch.AcceleratorError)
        return allocator.available, allocator.capacity

    def memory_stats(device: Any = None) -> OrderedDict[str, int]:
        index_of(device)
        limit = allocator.settings.max_split
        found = now().named() | {"max_split_size": -1 if limit >= UNLIMITED else limit}
        return OrderedDict(sorted(found.items()))

    def nested_stats(device: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in memory_stats(device).items():
            *path, last = name.split(".")
            inner = found
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
        return found

    return {
        "memory_allocated": count("allocated", "current"),
        "max_memory_allocated": count("allocated", "peak"),
        "memory_reserved": count("reserved", "current"),
        "max_memory_reserved": count("reserved", "peak"),
        "memory_cached": count("reserved", "current"),
        "max_memory_cached": count("reserved", "peak"),
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": nested_stats,
        "mem_get_info": memory_info,
        "empty_cache": allocator.empty_cache,
        "reset_peak_memory_stats": reset_peak,
        "reset_max_memory_allocated": reset_peak,
        "reset_max_memory_cached": reset_peak,
        "reset_accumulated_memory_stats": reset_accumulated,
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": get_fraction,
        "get_allocator_backend": lambda: allocator.settings.backend,
        "_set_allocator_settings": set_settings,
    }


def device_functions(emulated: Device) -> dict[str, Any]:
    profile, capacity = emulated.profile, emulated.allocator.capacity

    def about(found: Any) -> Callable[..., Any]:
        def answer(device: Any = None) -> Any:
            index_of(device, "Invalid device id", AssertionError)
            return found

        return answer

    def set_device(device: Any) -> None:
        if index_of(device, ORDINAL, torch.AcceleratorError, below=True) >= 0:
            target(device)

    def synchronize(device: Any = None) -> None:
        index_of(device, ORDINAL, torch.AcceleratorError)

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing(),
        "_lazy_init": nothing(),
        "_is_in_bad_fork": lambda: emulated.poisoned,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": set_device,
        "get_device_name": about(profile.name),
        "get_device_capability": about(profile.capability),
        "get_device_properties": about(properties(profile, capacity)),
        "get_arch_list": lambda: ["sm_{}{}".format(*profile.capability)],
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or profile.capability >= (8, 0)
        ),
        "is_tf32_supported": lambda: profile.capability >= (8, 0),
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda device=None, peer_device=None: False,
        "synchronize": synchronize,
        "ipc_collect": nothing(),
        "utilization": lambda device=None: 0,
        "device": Scope,
        "device_of": type("device_of", (Scope,), {}),
        "stream": type("stream", (StreamScope,), {}),
        "StreamContext": type("StreamContext", (StreamScope,), {}),
        "Stream": Stream,
        "ExternalStream": ExternalStream,
        "Event": Event,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
    }


def install_accelerator(memory: dict[str, Any]) -> None:
    answers = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": torch.cuda.set_device,
        "set_device_idx": torch.cuda.set_device,
        "current_stream": streams.current_stream,
        "set_stream": streams.set_stream,
        "synchronize": torch.cuda.synchronize,
        "get_memory_info": memory["mem_get_info"],
    }
    torch.accelerator.device_index = Scope
    # What is of any accelerator is of CUDA here, and none other is there.
    torch.Stream, torch.Event = Stream, Event
    shared = {name: value for name, value in memory.items() if hasattr(torch.accelerator, name)}
    for name, value in (answers | shared).items():
        setattr(torch.accelerator, name, value)
