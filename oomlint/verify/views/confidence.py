"""Says how far the numbers of a run can be trusted, and what is not in them."""

from __future__ import annotations

from collections.abc import Sequence

from oomlint.verify.holdings import confidence
from oomlint.verify.record import Run
from oomlint.verify.snapshots import RECORDED

# True of every run on the emulated device.
EMULATED = (
    "Values are computed on the CPU; sizes follow the caching allocator of torch 2.13. How close "
    "they come to CUDA's is in docs/accuracy.md.",
    "Times are the CPU's and say nothing about a GPU.",
    "The CUDA context, a few hundred MiB on a GPU, lies outside of the allocator and is not "
    "counted; nor is what NCCL takes.",
    "Code under torch.compile runs eagerly: fused kernels would hold less.",
)
REAL = (
    "Sizes are those of the allocator's own history: requested bytes, rounded up to 512. A large "
    "block can have up to 1 MiB more.",
    "What the backward pass makes has no Python stack on CUDA and is shown without a line.",
    "Memory that does not come from PyTorch's allocator, such as the CUDA context, is not counted.",
)
GUESSED = (
    "A recording does not say what a block is for. Kinds are guessed from stacks: what an "
    "optimizer's step makes and keeps is its state, what the backward pass makes and keeps a "
    "gradient, what a model's move to the device makes a parameter.",
    "cuBLAS's workspaces are told apart only where C++ stacks were recorded, too.",
)


def statements(runs: Sequence[Run]) -> list[str]:
    """One sentence or two each; what was seen to run comes first."""
    seen = [doubt for run in runs if run.holdings for doubt in run.holdings.doubts]
    said = [f"{doubt[:1].upper()}{doubt[1:]}." for doubt in dict.fromkeys(seen)]
    if runs[0].device == "emulated":
        return [*said, *EMULATED]
    if runs[0].device.endswith(RECORDED):
        return [*said, *REAL, *GUESSED]
    return [*said, *REAL]


def stated(runs: Sequence[Run]) -> str:
    """`high`, `medium`, or nothing where no run came to its end."""
    grades = [confidence(run.holdings) for run in runs if run.holdings]
    if not grades:
        return ""
    return "medium" if "medium" in grades else "high"
