"""The GPUs that the emulated device can stand for: their memory and what scripts ask about them.

Where each number comes from:

* `memory` is what CUDA reports, which differs with the driver, ECC and the system: as printed by
  `torch.cuda.get_device_properties` or in CUDA's out-of-memory texts, in public reports. Seen:
  A10G 22,587 MiB; A100-40GB 42,298,834,944 bytes; H100 81,082 to 81,090 MiB; H200 143,156 MiB;
  L40S 45,589 MiB; RTX3090 24,259 MiB (24,575 under Windows); RTX4090 23.52 to 23.68 GiB (24,563 MiB
  under Windows); T4 14,930 to 15,109 MiB. Not seen in a report that names the GPU, and so less
  sure: A100 (79.15 GiB), L4 and V100.
* `processors` as in the same reports; of L4 and V100 by NVIDIA's data sheets.
* `capability`, `threads` and `SHARED` by the tables of compute capabilities in NVIDIA's CUDA C++
  programming guide.
* `cache` as reported (A10G, H100, H200, RTX4090), else by NVIDIA's architecture papers.
* `workspace` is torch's own choice for cuBLAS (`ATen/cuda/CublasHandlePool.cpp`): 32 MiB on Hopper,
  else 2 * 4 MiB + 8 * 16 KiB; both were seen in recordings of torch.cuda.memory.

Not known of any of them, and not in the model: the size of the CUDA context, and what cuDNN chooses
for its workspaces.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from types import SimpleNamespace

from oomlint.verify.sizes import GIB, KIB, MIB


@dataclass(frozen=True, slots=True)
class Profile:
    """`memory` is what CUDA calls the total capacity; it differs by some MiB between drivers."""

    name: str
    memory: int
    capability: tuple[int, int]
    processors: int
    threads: int  # that one processor holds
    cache: int  # bytes, second level
    workspace: int = 8_519_680  # bytes that cuBLAS keeps for each thread that multiplies

    def chosen_workspace(self) -> int:
        """What CUBLAS_WORKSPACE_CONFIG asks for, as `:SIZE:COUNT` in KiB, or its own."""
        asked = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        if not (asked and self.workspace):
            return self.workspace
        return sum(int(size) * int(count) for size, count in asked) * KIB


def gib(size: float) -> int:
    return int(size * GIB) // MIB * MIB


# Without cuBLAS's workspaces, in which what a small script's own tensors take would be lost.
EMULATED = Profile("emulated CUDA device (oomlint)", 80 * GIB, (9, 0), 132, 2048, 50 * MIB, 0)
# By the names that --gpu takes.
PROFILES = {
    "A10G": Profile("NVIDIA A10G", gib(22.06), (8, 6), 80, 1536, 6 * MIB),
    "A100": Profile("NVIDIA A100-SXM4-80GB", gib(79.15), (8, 0), 108, 2048, 40 * MIB),
    "A100-40GB": Profile("NVIDIA A100-SXM4-40GB", 42298834944, (8, 0), 108, 2048, 40 * MIB),
    "H100": Profile("NVIDIA H100 80GB HBM3", 85017493504, (9, 0), 132, 2048, 50 * MIB, 32 * MIB),
    "H200": Profile("NVIDIA H200", 143156 * MIB, (9, 0), 132, 2048, 60 * MIB, 32 * MIB),
    "L4": Profile("NVIDIA L4", gib(22.03), (8, 9), 58, 1536, 48 * MIB),
    "L40S": Profile("NVIDIA L40S", gib(44.4), (8, 9), 142, 1536, 96 * MIB),
    "RTX3090": Profile("NVIDIA GeForce RTX 3090", gib(23.69), (8, 6), 82, 1536, 6 * MIB),
    "RTX4090": Profile("NVIDIA GeForce RTX 4090", gib(23.64), (8, 9), 128, 1536, 72 * MIB),
    "T4": Profile("Tesla T4", gib(14.74), (7, 5), 40, 1024, 4 * MIB),
    "V100": Profile("Tesla V100-SXM2-32GB", gib(31.73), (7, 0), 80, 2048, 6 * MIB),
}
# Bytes of shared memory of one processor, and those that one block can opt into.
SHARED = {
    (7, 0): (96 * KIB, 96 * KIB),
    (7, 5): (64 * KIB, 64 * KIB),
    (8, 0): (164 * KIB, 163 * KIB),
    (8, 6): (100 * KIB, 99 * KIB),
    (8, 9): (100 * KIB, 99 * KIB),
    (9, 0): (228 * KIB, 227 * KIB),
}


class Properties(SimpleNamespace):
    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory // MIB}MB, "
            f"multi_processor_count={self.multi_processor_count}, uuid={self.uuid}, "
            f"pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size // MIB}MB)"
        )


def properties(profile: Profile, capacity: int) -> Properties:
    """What torch.cuda.get_device_properties returns."""
    shared, optional = SHARED[profile.capability]
    return Properties(
        name=profile.name,
        major=profile.capability[0],
        minor=profile.capability[1],
        total_memory=capacity,
        multi_processor_count=profile.processors,
        max_threads_per_multi_processor=profile.threads,
        max_threads_per_block=1024,
        warp_size=32,
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=48 * KIB,
        shared_memory_per_block_optin=optional,
        shared_memory_per_multiprocessor=shared,
        is_integrated=False,
        is_multi_gpu_board=False,
        L2_cache_size=profile.cache,
        gcnArchName=profile.name,
        uuid="00000000-0000-0000-0000-000000000000",
    )
