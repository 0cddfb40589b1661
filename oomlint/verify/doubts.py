"""Says which of the operators that ran take memory on a GPU that is not modelled exactly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from oomlint.verify.profiles import Profile

# By the words in an operator's name.
UNKNOWN = {
    "rnn": "cuDNN's reserve of recurrent layers is not modelled",
    "lstm": "cuDNN's reserve of recurrent layers is not modelled",
    "gru": "cuDNN's reserve of recurrent layers is not modelled",
}
CONVOLUTIONS = "the workspaces of cuDNN's convolutions are not modelled"


def doubts(
    operators: Iterable[Any], profile: Profile, others: Iterable[str] = ()
) -> tuple[str, ...]:
    """A sentence each, `others` among them; none where everything that ran is modelled."""
    found = [*others]
    for operator in operators:
        name = str(operator)
        if "convolution" in name and torch.backends.cudnn.enabled:
            found.append(CONVOLUTIONS)
        found += [sentence for word, sentence in UNKNOWN.items() if word in name]
        namespace = name.partition(".")[0]
        if namespace not in ("aten", "prims", "prim"):
            found.append(f"what kernels of `{namespace}` take on a GPU is not known")
    if not profile.workspace:
        found.append("cuBLAS's workspaces are left out; --gpu NAME counts those of that GPU")
    return tuple(sorted(set(found)))
