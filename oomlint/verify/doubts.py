"""Says which of the operators that ran take memory on a GPU that is not modelled exactly."""

from __future__ import annotations

import torch

from oomlint.verify.allocator_settings import NATIVE
from oomlint.verify.device import Device

# By the words in an operator's name.
UNKNOWN = {
    "rnn": "cuDNN's reserve of recurrent layers is not modelled",
    "lstm": "cuDNN's reserve of recurrent layers is not modelled",
    "gru": "cuDNN's reserve of recurrent layers is not modelled",
}
BACKEND = "in place of CUDA's asynchronous allocator the native one is modelled"
CONVOLUTIONS = "the workspaces of cuDNN's convolutions are not modelled"


def doubts(device: Device) -> tuple[str, ...]:
    """A sentence each; none where everything that ran is modelled."""
    found = [*device.doubts]
    if device.allocator.backend != NATIVE:
        found.append(BACKEND)
    for operator in device.operators:
        name = str(operator)
        if "convolution" in name and torch.backends.cudnn.enabled:
            found.append(CONVOLUTIONS)
        found += [sentence for word, sentence in UNKNOWN.items() if word in name]
        namespace = name.partition(".")[0]
        if namespace not in ("aten", "prims", "prim"):
            found.append(f"what kernels of `{namespace}` take on a GPU is not known")
    if not device.profile.workspace:
        found.append("cuBLAS's workspaces are left out; --gpu NAME counts those of that GPU")
    return tuple(sorted(set(found)))
