"""The torch.cuda namespace of the emulated device: questions answered, objects stood in for."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from oomlint.verify.device import CUDA, Device
from oomlint.verify.statistics import Statistics

NAME = "emulated CUDA device (oomlint)"
CAPABILITY = (9, 0)
PROCESSORS = 132


class Stream:
    """Work on the emulated device is done at once, so a stream only has an identity."""

    device = CUDA
    device_index = 0
    cuda_stream = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stream_id = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def is_capturing(self) -> bool:
        return False

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def wait_stream(self, stream: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Event:
        recorded: Event = event or Event()
        recorded.record(self)
        return recorded


class Event:
    """A moment on the host's clock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.moment = 0.0

    def record(self, stream: Any = None) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds up to `end`."""
        return (end.moment - self.moment) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def wait(self, stream: Any = None) -> None:
        return None


class Scope:
    """Stands for torch.cuda.device, device_of, stream and StreamContext: one device, one stream."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.idx = 0

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Generators:
    """A generator of the emulated device's random numbers: the CPU's own."""

    device = CUDA

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.default_generator, name)


def properties(device: Device) -> SimpleNamespace:
    return SimpleNamespace(
        name=NAME,
        major=CAPABILITY[0],
        minor=CAPABILITY[1],
        total_memory=device.allocator.capacity,
        multi_processor_count=PROCESSORS,
        max_threads_per_multi_processor=2048,
        warp_size=32,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        is_integrated=False,
        is_multi_gpu_board=False,
        L2_cache_size=50 * 1024 * 1024,
        gcnArchName=NAME,
        uuid="00000000-0000-0000-0000-000000000000",
    )


def memory_stats(device: Device) -> OrderedDict[str, int]:
    """The statistics under torch's own names."""
    return OrderedDict(device.allocator.statistics().named())


def install(device: Device) -> None:
    allocator = device.allocator

    def now() -> Statistics:
        return allocator.statistics()

    def nothing() -> Callable[..., None]:
        # torch's compiler refuses to start when one object bears two public names.
        return lambda *args, **kwargs: None

    def set_fraction(fraction: float, device: Any = None) -> None:
        allocator.fraction = fraction

    def memory_info(device: Any = None) -> tuple[int, int]:
        return allocator.available, allocator.capacity

    def summary(device_: Any = None, abbreviated: bool = False) -> str:
        return "\n".join(f"{name:40} {value}" for name, value in memory_stats(device).items())

    def seed(value: int) -> None:
        torch.default_generator.manual_seed(int(value))

    memory = {
        "memory_allocated": lambda device=None: now().allocated.current,
        "max_memory_allocated": lambda device=None: now().allocated.peak,
        "memory_reserved": lambda device=None: now().reserved.current,
        "max_memory_reserved": lambda device=None: now().reserved.peak,
        "memory_cached": lambda device=None: now().reserved.current,
        "max_memory_cached": lambda device=None: now().reserved.peak,
        "memory_stats": lambda device_=None: memory_stats(device),
        "memory_summary": summary,
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
    }
    others = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing(),
        "_lazy_init": nothing(),
        "_is_in_bad_fork": lambda: device.poisoned,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing(),
        "get_device_name": lambda device=None: NAME,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_properties": lambda device_=None: properties(device),
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_tf32_supported": lambda: True,
        "is_current_stream_capturing": lambda: False,
        "can_device_access_peer": lambda device=None, peer_device=None: False,
        "synchronize": nothing(),
        "ipc_collect": nothing(),
        "utilization": lambda device=None: 0,
        "device": Scope,
        "device_of": type("device_of", (Scope,), {}),
        "stream": type("stream", (Scope,), {}),
        "StreamContext": type("StreamContext", (Scope,), {}),
        "Stream": Stream,
        "ExternalStream": type("ExternalStream", (Stream,), {}),
        "Event": Event,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "set_stream": nothing(),
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
    for name, value in (memory | others).items():
        setattr(torch.cuda, name, value)
    for name, value in memory.items():
        setattr(torch.cuda.memory, name, value)
    for name in ("manual_seed", "manual_seed_all", "get_rng_state", "set_rng_state"):
        setattr(torch.cuda.random, name, others[name])
    install_accelerator(memory)


def install_accelerator(memory: dict[str, Any]) -> None:
    answers = {
        "is_available": lambda: True,
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_count": lambda: 1,
        "current_device_index": lambda: 0,
        "current_device_idx": lambda: 0,
        "set_device_index": lambda device: None,
        "set_device_idx": lambda device: None,
        "current_stream": lambda device=None: Stream(),
        "set_stream": lambda stream: None,
        "synchronize": lambda device=None: None,
        "get_memory_info": memory["mem_get_info"],
    }
    shared = {name: value for name, value in memory.items() if hasattr(torch.accelerator, name)}
    for name, value in (answers | shared).items():
        setattr(torch.accelerator, name, value)
