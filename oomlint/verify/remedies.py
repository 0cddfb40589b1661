"""What could make a batch fit, and what each brought when the script ran with it."""

from __future__ import annotations

from dataclasses import dataclass

AUTOCAST, CHECKPOINT, ATTENTION = "autocast", "checkpoint", "attention"
MICRO_BATCH, SGD, SINGLE_TENSOR, NONE_GRADIENTS = "micro-batch", "sgd", "single-tensor", "none"
TOGETHER = "together"


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to change; `parts` are the names that the child knows."""

    name: str
    parts: tuple[str, ...]
    title: str
    numbers: str  # what becomes of the numbers that are trained with
    lacking: str  # why it was not applicable where nothing was changed


REMEDIES = (
    Remedy(
        AUTOCAST,
        (AUTOCAST,),
        "bf16 autocast around the forward",
        "rounded",
        "the script uses autocast already",
    ),
    Remedy(
        CHECKPOINT,
        (CHECKPOINT,),
        "checkpointing of the repeated blocks",
        "the same",
        "there is no nn.ModuleList or nn.Sequential of equal blocks that is not checkpointed",
    ),
    Remedy(
        ATTENTION,
        (ATTENTION,),
        "fused attention in place of written-out scores",
        "the same but for rounding",
        "no attention was found that keeps its scores",
    ),
    Remedy(
        NONE_GRADIENTS,
        (NONE_GRADIENTS,),
        "gradients set to None between steps",
        "the same",
        "zero_grad gives gradients back already",
    ),
    Remedy(
        SINGLE_TENSOR,
        (SINGLE_TENSOR,),
        "optimizer with foreach=False",
        "the same",
        "the optimizer steps one tensor at a time already",
    ),
    Remedy(
        SGD,
        (SGD,),
        "SGD without momentum as optimizer",
        "another training",
        "the optimizer keeps no state, or is none of torch's",
    ),
    Remedy(
        TOGETHER,
        (AUTOCAST, CHECKPOINT, ATTENTION),
        "autocast, checkpointing and fused attention together",
        "rounded",
        "",
    ),
)
EIGHT_BIT = (
    "An optimizer with 8-bit state was not run: its kernels exist for real GPUs only. Its state "
    "would take about a quarter of what it takes in float32."
)


@dataclass(frozen=True, slots=True)
class Tried:
    """A remedy at the wanted batch; where it did not run `reason` says why.

    `fits` is what the allocator's model says of its requests on the capacity, `pace` the processor
    time of a step as a factor of the time without it, at a smaller batch.
    """

    title: str
    numbers: str
    reason: str = ""
    requested: int = 0
    reserved: int = 0
    fits: bool = False
    pace: float | None = None

    @property
    def ran(self) -> bool:
        return not self.reason
