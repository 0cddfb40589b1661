"""What else lives around an optimizer's parameters: modules and their mode, tensors on them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable

import torch

References = list["weakref.ref[torch.nn.Module]"]


def models_of(parameters: Iterable[torch.Tensor]) -> References:
    """Every live module that holds one of the parameters, itself or in a part."""
    wanted = {id(parameter) for parameter in parameters}
    return [
        weakref.ref(thing)
        for thing in gc.get_objects()
        if issubclass(type(thing), torch.nn.Module)
        and any(id(parameter) in wanted for parameter in thing.parameters())
    ]


def evaluating(models: References) -> int:
    """How many of the modules and their parts are in evaluation mode."""
    alive = [model for model in (ref() for ref in models) if model is not None]
    parts = {id(part): part for model in alive for part in model.modules()}
    return sum(not part.training for part in parts.values())


def aliases(parameters: Iterable[torch.Tensor]) -> int:
    """How many other live tensors lie in the memory of the parameters, as a state_dict's do."""
    own = {id(parameter): place(parameter) for parameter in parameters}
    places = set(own.values()) - {0}
    return sum(
        issubclass(type(thing), torch.Tensor) and id(thing) not in own and place(thing) in places
        for thing in gc.get_objects()
    )


def place(tensor: torch.Tensor) -> int:
    """The address of the tensor's storage; 0 where it has none."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0
