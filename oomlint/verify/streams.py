"""Streams and events of the emulated device, whose work is done the moment that it is given."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import torch

from oomlint.verify.blocks import Pools
from oomlint.verify.device_names import ORDINAL, index_of

PLACE = torch.device("cuda", 0)
LEAST, GREATEST = 0, -3  # priorities
POOL = 32  # CUDA's pool of streams is handed out in turn, again and again


class Current(threading.local):
    """Where the running thread's work goes, 0 is the default stream, and its memory comes from."""

    stream: int = 0
    pools: Pools | None = None


current = Current()
made = itertools.count()


class Stream:
    """A stream only decides which memory is reused."""

    device = PLACE
    device_index = 0
    device_type = 1

    def __init__(
        self,
        device: Any = None,
        priority: int = 0,
        *rest: Any,
        stream_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        if device is not None and not isinstance(device, Stream):
            index_of(device, ORDINAL, torch.AcceleratorError)
        self.priority = priority
        self.stream_id = next(made) % POOL + 1 if stream_id is None else stream_id
        self.cuda_stream = self.stream_id
        self.before: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.stream_id == self.stream_id

    def __hash__(self) -> int:
        return hash(self.stream_id)

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device=cuda:0 cuda_stream={self.stream_id:#x}>"

    def __enter__(self) -> Stream:
        self.before.append(current.stream)
        current.stream = self.stream_id
        return self

    def __exit__(self, *error: object) -> None:
        current.stream = self.before.pop()

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return LEAST, GREATEST

    def native_handle(self) -> int:
        return self.cuda_stream

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


class ExternalStream(Stream):
    """A stream that other code made, known by its pointer."""

    def __init__(self, stream_ptr: int, device: Any = None, **kwargs: Any) -> None:
        super().__init__(device, stream_id=int(stream_ptr), **kwargs)


class Event:
    """A moment on the host's clock."""

    device = PLACE
    cuda_event = event_id = 0

    def __repr__(self) -> str:
        made = "uninitialized" if self.moment is None else f"{id(self):#x}"
        return f"<torch.cuda.Event {made}>"

    def __init__(self, *args: Any, enable_timing: bool = False, **kwargs: Any) -> None:
        self.timed = bool(args[0]) if args and isinstance(args[0], bool) else enable_timing
        self.moment: float | None = None

    def record(self, stream: Any = None) -> None:
        self.moment = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds up to `end`; raises ValueError where an event has no time."""
        if not (self.timed and end.timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.moment is None or end.moment is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end.moment - self.moment) * 1000

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None

    def wait(self, stream: Any = None) -> None:
        return None


class Scope:
    """Stands for torch.cuda.device and device_of: there is one device."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.idx = 0

    def __enter__(self) -> Scope:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class StreamScope:
    """`with torch.cuda.stream(s)`; `None` changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *error: object) -> None:
        if self.stream is not None:
            self.stream.__exit__(*error)


def current_stream(device: Any = None) -> Stream:
    index_of(device, "Device index value {:d} is out of index range [0, 1)")
    return Stream(stream_id=current.stream)


def default_stream(device: Any = None) -> Stream:
    index_of(device, "Device index value {:d} is out of index range [0, 1)")
    return Stream(stream_id=0)


def set_stream(stream: Stream | None) -> None:
    if stream is not None:
        current.stream = stream.stream_id
