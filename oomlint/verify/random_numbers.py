"""Random numbers of the emulated device: generators with CUDA's state, apart from the host's.

A generator of CUDA is a seed and an offset that rises with every kernel that draws, 16 bytes in
all. Here the host's generator draws, seeded from these two for every operator: the same state gives
the same numbers again, though not CUDA's.
"""

from __future__ import annotations

import contextlib
import functools
import os
import struct
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from oomlint.verify.device import CUDA, Device
from oomlint.verify.device_names import target

Base: Any = torch._C.Generator
WORD = 1 << 64
STEP = 4  # of the offset, for each kernel
STATE = struct.Struct("<QQ")
MIXING = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # those of splitmix64
# By the address of what C++ passes on.
of_cuda: weakref.WeakValueDictionary[int, CudaGenerator] = weakref.WeakValueDictionary()


class Generator(Base):  # type: ignore[misc]
    """torch.Generator: that of the host, or CUDA's where `device` says so."""

    __module__ = "torch"

    def __new__(cls, device: Any = "cpu") -> Any:
        where = target(device) or torch.device("cpu")
        if where.type == "cuda":
            return CudaGenerator.at(where)
        return Base.__new__(cls, device=where)


class CudaGenerator(Generator):
    """A seed and an offset."""

    def __new__(cls, device: Any = "cuda") -> Any:
        return cls.at(torch.device(device))

    @classmethod
    def at(cls, place: torch.device) -> CudaGenerator:
        made: CudaGenerator = Base.__new__(cls, device="cpu")
        made.place, made.own_seed, made.offset = place, 67280421310721, 0  # CUDA's default seed
        of_cuda[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:
        return self.place

    def draw(self) -> int:
        """A seed for the next operator."""
        value = (self.own_seed + (self.offset + 1) * MIXING[0]) % WORD
        self.offset += STEP
        for shift, factor in ((30, MIXING[1]), (27, MIXING[2])):
            value = (value ^ value >> shift) * factor % WORD
        return value ^ value >> 31

    def reseed(self) -> None:
        """Prepares what C++ draws from."""
        Base.manual_seed(self, self.draw())

    def manual_seed(self, seed: int) -> CudaGenerator:
        if not -WORD // 2 <= seed < WORD:
            raise ValueError("Overflow when unpacking long long")
        self.own_seed, self.offset = int(seed) % WORD, 0
        return self

    def seed(self) -> int:
        self.manual_seed(int.from_bytes(os.urandom(8), "little") >> 11)
        return self.own_seed

    def initial_seed(self) -> int:
        return self.own_seed

    def get_offset(self) -> int:
        return self.offset

    def set_offset(self, offset: int) -> CudaGenerator:
        if offset % STEP or offset < 0:
            raise RuntimeError("offset must be a multiple of 4")
        self.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        state = bytearray(STATE.pack(self.own_seed, self.offset))
        return torch.frombuffer(state, dtype=torch.uint8).clone()

    def set_state(self, state: torch.Tensor) -> CudaGenerator:
        if state.dtype is not torch.uint8 or state.device.type != "cpu":
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() != STATE.size:
            raise RuntimeError("RNG state is wrong size")
        self.own_seed, self.offset = STATE.unpack(bytes(state.tolist()))
        return self

    def clone_state(self) -> CudaGenerator:
        made = CudaGenerator.at(self.place)
        made.own_seed, made.offset = self.own_seed, self.offset
        return made

    def graphsafe_get_state(self) -> CudaGenerator:
        return self

    def graphsafe_set_state(self, state: CudaGenerator) -> CudaGenerator:
        self.own_seed, self.offset = state.own_seed, state.offset
        return self

    def __reduce__(self) -> Any:
        return restored, (str(self.place), self.own_seed, self.offset)

    def __deepcopy__(self, memo: Any) -> CudaGenerator:
        return self.clone_state()


def restored(place: str, seed: int, offset: int) -> CudaGenerator:
    made = CudaGenerator.at(torch.device(place))
    made.own_seed, made.offset = seed, offset
    return made


def install(device: Device) -> None:
    """The device's own generator stands where torch.cuda.random looks for it."""
    module: Any = torch
    module.Generator = Generator
    device.generator = CudaGenerator.at(CUDA)
    module.cuda.default_generators = (device.generator,)
    # torch.cuda.random and checkpointing ask CUDA's generators only where CUDA is in use.
    module.cuda._initialized = True


@functools.cache
def draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


@contextlib.contextmanager
def drawing(device: Device, given: Any, placed: bool) -> Iterator[None]:
    """Around an operator that draws with `given`, a generator, or None for the default one.

    Raises RuntimeError where that is of another device than what the operator makes.
    """
    if given is not None:
        own = of_cuda.get(given._cdata)
        wanted, found = (name(here) for here in (placed, own is not None))
        if wanted != found:
            raise RuntimeError(
                f"Expected a '{wanted}' device type for generator but found '{found}'"
            )
        if own is not None:
            own.reseed()
        yield
        return
    if not placed:
        yield
        return
    host = torch.default_generator
    with device.paused():
        state = host.get_state()
        host.manual_seed(device.generator.draw())
    try:
        yield
    finally:
        with device.paused():
            host.set_state(state)


def name(on_device: bool) -> str:
    return "cuda" if on_device else "cpu"


def generator_in(values: Any) -> Any:
    return next((value for value in values if isinstance(value, Base)), None)
