"""The torch.cuda namespace of the emulated device: questions answered, objects stood in for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from oomlint.verify import streams
from oomlint.verify.allocator_settings import UNLIMITED, parse
from oomlint.verify.device import CUDA, Device, target
from oomlint.verify.profiles import properties
from oomlint.verify.statistics import Statistics
from oomlint.verify.streams import Event, Scope, Stream, StreamScope


class Generators:
    """A generator of the emulated device's random numbers: the CPU's own."""

    device = CUDA

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator, name)


def install(emulated: Device) -> None:
    """Puts the emulated device behind `torch.cuda` and `torch.accelerator`."""
    memory, random = memory_functions(emulated), random_functions()
    for name, value in (memory | random | device_functions(emulated)).items():
        setattr(torch.cuda, name, value)
    for name, value in memory.items():
        setattr(torch.cuda.memory, name, value)
    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state"):
        setattr(torch.cuda.random, name, random[name])
    install_accelerator(memory)
    install_tools(emulated)


class Graph:
    """Stands where CUDA's graphs would."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError("CUDA graphs are not modelled by the emulated device")


class Runtime:
    """What scripts ask of the CUDA runtime itself: to start and stop a profiler."""

    cudaError = SimpleNamespace(success=0)

    def __getattr__(self, name: str) -> Any:
        return nothing()


def install_tools(emulated: Device) -> None:
    """What is beside memory and devices: markers, the runtime, legacy types."""
    runtime = Runtime()
    module, core, markers = torch.cuda, torch._C, torch.cuda.nvtx
    answers = {
        "cudart": lambda: runtime,
        "check_error": nothing(),
        "_sleep": nothing(),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": nothing(),
        "get_stream_from_external": lambda pointer, device=None: Stream(stream_id=int(pointer)),
        "CUDAGraph": Graph,
    }
    for name, value in answers.items():
        setattr(module, name, value)
    module.nccl.version = lambda: (2, 28, 3)
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):
        setattr(markers, name, nothing())
    # A data-parallel model of one device scatters its inputs to it and gathers nothing.
    core._scatter = lambda tensor, devices, *rest: tuple(tensor.cuda() for _ in devices)
    core._broadcast = lambda tensor, devices: [tensor.cuda() for _ in devices]
    for name in TYPES:
        setattr(module, name, legacy(name))


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
        allocator.fraction = fraction

    def set_settings(env: str) -> None:
        allocator.settings = parse(env)

    def memory_info(device: Any = None) -> tuple[int, int]:
        return allocator.available, allocator.capacity

    def memory_stats(device: Any = None) -> OrderedDict[str, int]:
        limit = allocator.settings.max_split
        found = now().named() | {"max_split_size": -1 if limit >= UNLIMITED else limit}
        return OrderedDict(sorted(found.items()))

    def nested_stats(device: Any = None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in memory_stats().items():
            *path, last = name.split(".")
            inner = found
            for part in path:
                inner = inner.setdefault(part, {})
            inner[last] = value
        return found

    return {
        "memory_allocated": lambda device=None: now().allocated.current,
        "max_memory_allocated": lambda device=None: now().allocated.peak,
        "memory_reserved": lambda device=None: now().reserved.current,
        "max_memory_reserved": lambda device=None: now().reserved.peak,
        "memory_cached": lambda device=None: now().reserved.current,
        "max_memory_cached": lambda device=None: now().reserved.peak,
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": nested_stats,
        "mem_get_info": memory_info,
        "empty_cache": allocator.empty_cache,
        "reset_peak_memory_stats": lambda device=None: allocator.reset_peak(),
        "reset_max_memory_allocated": lambda device=None: allocator.reset_peak(),
        "reset_max_memory_cached": lambda device=None: allocator.reset_peak(),
        "reset_accumulated_memory_stats": lambda device=None: now().reset_accumulated(),
        "set_per_process_memory_fraction": set_fraction,
        "get_per_process_memory_fraction": lambda device=None: allocator.fraction,
        "get_allocator_backend": lambda: "native",
        "_record_memory_history": nothing(),
        "_set_allocator_settings": set_settings,
    }


def device_functions(emulated: Device) -> dict[str, Any]:
    profile, capacity = emulated.profile, emulated.allocator.capacity

    def about(found: Any) -> Callable[..., Any]:
        def answer(device: Any = None) -> Any:
            number = device if isinstance(device, int) else torch.device(device or "cuda").index
            if number not in (None, 0):
                raise AssertionError("Invalid device id")
            return found

        return answer

    def set_device(device: Any) -> None:
        if not isinstance(device, int) or device >= 0:
            target(device)

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
        "synchronize": nothing(),
        "ipc_collect": nothing(),
        "utilization": lambda device=None: 0,
        "device": Scope,
        "device_of": type("device_of", (Scope,), {}),
        "stream": type("stream", (StreamScope,), {}),
        "StreamContext": type("StreamContext", (StreamScope,), {}),
        "Stream": Stream,
        "ExternalStream": type("ExternalStream", (Stream,), {}),
        "Event": Event,
        "current_stream": streams.current_stream,
        "default_stream": streams.default_stream,
        "set_stream": streams.set_stream,
    }


def random_functions() -> dict[str, Any]:
    def seed(value: int) -> None:
        torch.default_generator.manual_seed(int(value))

    return {
        "manual_seed": seed,
        "manual_seed_all": lambda value: seed(value),
        "seed": lambda: torch.default_generator.seed(),
        "seed_all": lambda: torch.default_generator.seed(),
        "initial_seed": lambda: torch.default_generator.initial_seed(),
        "get_rng_state": lambda device=None: torch.default_generator.get_state(),
        "get_rng_state_all": lambda: [torch.default_generator.get_state()],
        "set_rng_state": lambda state, device=None: torch.default_generator.set_state(state),
        "set_rng_state_all": lambda states: torch.default_generator.set_state(states[0]),
        "default_generators": (Generators(),),
    }


def install_accelerator(memory: dict[str, Any]) -> None:
    answers = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": lambda device: None,
        "set_device_idx": lambda device: None,
        "current_stream": lambda device=None: streams.current_stream(),
        "set_stream": lambda stream: streams.set_stream(stream),
        "synchronize": lambda device=None: None,
        "get_memory_info": memory["mem_get_info"],
    }
    shared = {name: value for name, value in memory.items() if hasattr(torch.accelerator, name)}
    for name, value in (answers | shared).items():
        setattr(torch.accelerator, name, value)
