"""The torch.cuda namespace of the emulated device: questions answered, objects stood in for."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from oomlint.verify import memory_api, memory_pools, streams
from oomlint.verify.device import Device, on_device
from oomlint.verify.device_names import ORDINAL, index_of, target
from oomlint.verify.memory_history import MemoryHistory
from oomlint.verify.profiles import properties
from oomlint.verify.sizes import MIB
from oomlint.verify.streams import Event, ExternalStream, Scope, Stream, StreamScope


def install(emulated: Device) -> None:
    """Puts the emulated device behind `torch.cuda` and `torch.accelerator`."""
    memory = memory_api.functions(emulated)
    for name, value in (memory | device_functions(emulated)).items():
        replace_everywhere(name, value)
    for name, answer in (CORE | memory_api.by_address(emulated)).items():
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
    "_cuda_hostMemoryStats": memory_api.host_statistics,  # pinned memory is not counted
    "_cuda_getCublasLtWorkspaceSize": lambda: MIB,
    "_cuda_resetPeakHostMemoryStats": lambda: None,
    "_cuda_resetAccumulatedHostMemoryStats": lambda: None,
}
# What that build of torch 2.13 has kernels for.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
# A build for CUDA 13 with cuDNN 9.20 is what torch 2.13 comes as.
VERSION, CUDNN = "13.0", 92000


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
    module.nccl.is_available = lambda tensors: all(map(on_device, tensors))
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
        "get_arch_list": lambda: list(ARCHITECTURES),
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


def no_capability(device: Any = None) -> dict[str, Any]:
    """CUDA has none of what this asks for; raises RuntimeError, as its build does."""
    raise RuntimeError("Backend doesn't support getting device capabilities.")


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
        "empty_host_cache": nothing(),
        "get_device_capability": no_capability,
    }
    torch.accelerator.device_index = Scope
    # What is of any accelerator is of CUDA here, and none other is there.
    torch.Stream, torch.Event = Stream, Event
    shared = {name: value for name, value in memory.items() if hasattr(torch.accelerator, name)}
    for name, value in (answers | shared).items():
        setattr(torch.accelerator, name, value)
