"""Guards a training run against running out of memory; the one part of oomlint to import into it.

    from oomlint import guard

    guard.attach(optimizer, on_limit=lambda usage: save_checkpoint())

It needs torch and nothing else. `attach` says before the first step whether the optimizer's state
fits and calls back when memory comes near its end; `micro_batches` and `attempt` go on after an
out-of-memory error with less at a time; `predict_state` tells an optimizer's bytes.
"""

from oomlint.guard.recovery import (
    Attempt,
    MicroBatches,
    attempt,
    is_out_of_memory,
    micro_batches,
    release,
)
from oomlint.guard.state import predict_state, state_bytes
from oomlint.guard.watch import Guard, LimitReached, Usage, WillNotFit, attach

__all__ = [
    "Attempt",
    "Guard",
    "LimitReached",
    "MicroBatches",
    "Usage",
    "WillNotFit",
    "attach",
    "attempt",
    "is_out_of_memory",
    "micro_batches",
    "predict_state",
    "release",
    "state_bytes",
]
