"""torch.cuda.MemPool on the emulated device, and what is left of CUDA's graphs."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from oomlint.verify.blocks import Pools
from oomlint.verify.device import Device
from oomlint.verify.device_names import index_of
from oomlint.verify.streams import current

REFUSED = (
    "CUDA graphs are not modelled by the emulated device: what is captured would have to run again "
    "at every replay; leave them out, or measure with --device cuda"
)
EAGER = "what torch.cuda.make_graphed_callables made ran eagerly: a graph keeps a pool of its own"
ON_OOM = "a MemPool with use_on_oom was not taken from when memory ran out"
made = itertools.count(1)


class Graph:
    """Stands where torch.cuda.CUDAGraph would; raises RuntimeError."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(REFUSED)


def install(device: Device) -> None:
    allocator = device.allocator

    class MemPool:
        """Segments that serve only what is allocated while the pool is in use."""

        def __init__(
            self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False
        ) -> None:
            if allocator is not None:
                raise RuntimeError(
                    "a MemPool with an allocator of its own is not modelled by the emulated device;"
                    " leave out `allocator`, or measure with --device cuda"
                )
            if use_on_oom:
                device.doubts.add(ON_OOM)
            self.id = (0, next(made))
            self.pools: Pools = device.allocator.add_pools(self.id, no_split)

        def use_count(self) -> int:
            return self.pools.users

        def snapshot(self, include_traces: bool = True) -> Any:
            return torch.cuda.memory_snapshot(self.id, include_traces)

        def __del__(self) -> None:
            if hasattr(self, "pools"):
                allocator.leave_pools(self.pools)

    @contextlib.contextmanager
    def use_mem_pool(pool: MemPool, device: Any = None) -> Iterator[None]:
        index_of(device)
        before, current.pools = current.pools, pool.pools
        pool.pools.users += 1
        try:
            yield
        finally:
            current.pools = before
            allocator.leave_pools(pool.pools)

    def graphed(callables: Any, sample_args: Any, *args: Any, **kwargs: Any) -> Any:
        device.doubts.add(EAGER)
        return callables

    module: Any = torch.cuda
    for owner in (module, module.memory):
        owner.MemPool, owner.use_mem_pool = MemPool, use_mem_pool
    for owner in (module, module.graphs):
        owner.CUDAGraph, owner.make_graphed_callables = Graph, graphed
        owner.graph_pool_handle = lambda: (0, next(made))
