"""Says how many bytes of state an optimizer will have, from its class and its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

# Bytes of the caching allocator's smallest block: every tensor takes a multiple of it.
BLOCK = 512
HOST = torch.device("cpu")

# One tensor of state: where it lies, and its bytes.
Tensor = tuple[torch.device, int]
Rule = Callable[[dict[str, Any], Any], Iterable[Tensor]]
Bytes = dict[torch.device, int]


def like(parameter: Any, count: int) -> list[Tensor]:
    """So many tensors of the parameter's shape and dtype, of which a rank holds its shard."""
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return [(local.device, local.numel() * local.element_size())] * count


def scalars(count: int, where: torch.device) -> list[Tensor]:
    return [(where, torch.empty((), dtype=torch.get_default_dtype()).element_size())] * count


def counter(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    """The count of steps, which is on the device only where the step may run as one graph."""
    there = group.get("capturable") or group.get("fused")
    return scalars(1, parameter.device if there else HOST)


def moments(count: int) -> Rule:
    return lambda group, parameter: [*like(parameter, count), *counter(group, parameter)]


def adam(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    count = 3 if group["amsgrad"] else 2
    return [*like(parameter, count), *counter(group, parameter)]


def sparse_adam(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    return like(parameter, 2)  # its count of steps is Python's


def nadam(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    return [*like(parameter, 2), *counter(group, parameter), *counter(group, parameter)]


def sgd(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    gradient = parameter.grad
    if not group["momentum"]:
        return []
    if gradient is not None and gradient.is_sparse:
        return [*like(gradient._values(), 1), *like(gradient._indices(), 1)]
    return like(parameter, 1)


def rmsprop(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    count = 1 + bool(group["momentum"] > 0) + bool(group["centered"])
    return [*like(parameter, count), *counter(group, parameter)]


def averaged_sgd(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    return [*like(parameter, 1), *scalars(3, parameter.device)]


def adafactor(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    """A row and a column in place of a matrix."""
    if parameter.dim() < 2:
        return [*like(parameter, 1), *scalars(1, HOST)]
    (where, whole), *_ = like(parameter, 1)
    rows, columns = whole // parameter.shape[-1], whole // parameter.shape[-2]
    return [(where, rows), (where, columns), *scalars(1, HOST)]


def lbfgs(group: dict[str, Any], parameter: Any) -> list[Tensor]:
    """With its history full, of which each entry is two vectors as long as all parameters."""
    if parameter is not group["params"][0]:
        return []  # all of it belongs to the first
    where = parameter.device
    flat = sum(size for one in group["params"] for _, size in like(one, 1))
    history = group["history_size"]
    return [(where, flat)] * (2 * history + 2) + scalars(2 * history + 1, where)


# Facts of torch/optim: what `_init_group` of each makes where a parameter has no state yet.
RULES: dict[str, Rule] = {
    "Adadelta": moments(2),
    "Adafactor": adafactor,
    "Adagrad": moments(1),
    "Adam": adam,
    "AdamW": adam,
    "Adamax": moments(2),
    "ASGD": averaged_sgd,
    "LBFGS": lbfgs,
    "Muon": lambda group, parameter: like(parameter, 1),
    "NAdam": nadam,
    "RAdam": moments(2),
    "RMSprop": rmsprop,
    "Rprop": moments(2),
    "SGD": sgd,
    "SparseAdam": sparse_adam,
}


def rule_of(optimizer: torch.optim.Optimizer) -> Rule | None:
    """The rule of its class; None where that is not torch's own, or steps in another way."""
    kinds: list[Any] = list(type(optimizer).__mro__)
    own: set[Any] = {getattr(torch.optim, name, None) for name in RULES}
    for kind in kinds:
        if kind in own:
            # An optimizer that is made wraps the step of its class.
            same = inspect.unwrap(kinds[0].step) is inspect.unwrap(kind.step)
            return RULES[kind.__name__] if same else None
    return None


def trained(optimizer: torch.optim.Optimizer, by_gradient: bool) -> Iterator[tuple[Any, Any]]:
    """The parameters that a step will change, each with its group."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None or (not by_gradient and parameter.requires_grad):
                yield group, parameter


def missing(
    optimizer: torch.optim.Optimizer, rule: Rule, by_gradient: bool = False
) -> list[Tensor]:
    """The tensors of state that the optimizer has still to make."""
    wanted: list[Tensor] = []
    for group, parameter in trained(optimizer, by_gradient):
        if not optimizer.state.get(parameter):
            wanted += rule(group, parameter)
    return wanted


def predict_state(optimizer: torch.optim.Optimizer) -> Bytes | None:
    """Bytes of state by device that the optimizer will have once all it trains was stepped.

    State that is there already, of a resumed run for instance, is counted as it is. None where the
    class of the optimizer is not one of `torch.optim`, or has a `step` of its own.
    """
    rule = rule_of(optimizer)
    if rule is None:
        return None
    return added(state_bytes(optimizer), missing(optimizer, rule))


def state_bytes(optimizer: torch.optim.Optimizer) -> Bytes:
    """Bytes of state by device that the optimizer has now."""
    seen: dict[int, Tensor] = {}
    waiting: list[Any] = [dict(optimizer.state)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, torch.Tensor):
            local = value.to_local() if hasattr(value, "to_local") else value
            seen[id(local)] = local.device, local.numel() * local.element_size()
        elif isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (list, tuple)):
            waiting += value
    return added({}, seen.values())


def added(held: Bytes, tensors: Iterable[Tensor]) -> Bytes:
    total = dict(held)
    for where, size in tensors:
        total[where] = total.get(where, 0) + size
    return total


def in_blocks(tensors: Iterable[Tensor]) -> Bytes:
    """Bytes by device that the allocator gives for tensors, which are at least theirs."""
    return added({}, ((where, -(-size // BLOCK) * BLOCK) for where, size in tensors))
