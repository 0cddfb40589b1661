"""How a loss is reduced: to a mean or a sum, and whether it is divided by something besides."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import knowledge
from oomlint.analysis.values import Constant, Number, Tensor, Value, members

# What is done to a count before something is divided by it: `mask.sum().clamp(min=1) + 1e-8`.
COUNTING = frozenset({"clamp", "clamp_min", "max", "maximum", "float", "to", "type_as", "+"})
# What is done to losses and a mask on the way to the sum of both, each element for itself.
ELEMENTWISE = frozenset(
    {"+", "-", "*", "neg", "sum", "mul", "view", "reshape", "flatten", "squeeze", "unsqueeze"}
    | {"float", "to", "type_as", "contiguous", "expand_as", "unsqueeze_"}
)


# A count that has no graph: `mask.sum()`, `mask.sum(dim=1).clamp(min=1)`.
NUMBER_COUNT = re.compile(
    r"(\.sum\([^()]*\)|^torch\.sum\(.*\))(\.(clamp|clamp_min|max|float|to)\([^()]*\))*$"
)
OPTION = re.compile(r"^(argparse|os|omegaconf|hydra|yaml|json)\.")


def reduction_of(value: Value, alone: bool = False, memo: dict[int, str] | None = None) -> str:
    """`mean`, `sum`, `mixed`, or empty where it cannot be told.

    `alone` says that no loop around divides what it has counted over several of these losses.
    """
    memo = {} if memo is None else memo
    known = memo.get(id(value))
    if known is None:
        memo[id(value)] = "number"
        known = memo[id(value)] = reduced(value, alone, memo)
    return known


def reduced(value: Value, alone: bool, memo: dict[int, str]) -> str:
    if is_masked_mean(value, alone):
        return "mean"
    if isinstance(value, Tensor) and (value.reduction or value.barrier):
        return value.reduction
    if isinstance(value, Number | Constant) or is_zero(value):
        return "number"
    found = {reduction_of(part, alone, memo) for part in members(value)} - {"number"}
    return found.pop() if len(found) == 1 else ("mixed" if "sum" in found else "")


def is_zero(value: Value) -> bool:
    """`outputs.sum() * 0.0`, which only keeps every parameter in the graph."""
    if not isinstance(value, Tensor) or value.made_by != "*":
        return False
    return any(isinstance(part, Constant) and part.value == 0 for part in value.parents)


def is_masked_mean(value: Value, alone: bool) -> bool:
    """`(losses * mask).sum() / mask.sum()`: divided by the count of what is summed."""
    if not isinstance(value, Tensor) or value.made_by != "/" or len(value.parents) != 2:
        return False
    total, count = value.parents
    if alone and isinstance(count, Number):
        return bool(NUMBER_COUNT.search(count.key)) and is_sum(total)
    counted = {part.key for one in sums_in(count) for part in one.parents[:1]}
    return bool(counted) and any(part.key in counted for part in summed_in(total))


def is_sum(total: Value) -> bool:
    if not isinstance(total, Tensor):
        return False
    if total.reduction == "sum":
        return True
    return total.made_by in ("*", "neg") and any(map(is_sum, total.parents))


def sums_in(count: Value) -> Iterator[Tensor]:
    """The sums that a count is made of."""
    pending = [count]
    while pending:
        current = pending.pop()
        if not isinstance(current, Tensor):
            continue
        if current.reduction == "sum":
            yield current
        elif current.made_by in COUNTING or current.entry:
            pending.extend(current.parents)


def summed_in(total: Value) -> Iterator[Value]:
    """What is added up, element by element: no part of a larger tensor, which counts more."""
    pending = [(total, False)]
    while pending:
        current, summed = pending.pop()
        if summed:
            yield current
        if not isinstance(current, Tensor) or current.barrier:
            continue
        if current.made_by in ELEMENTWISE:
            within = summed or current.reduction == "sum"
            pending.extend((part, within) for part in current.parents)
        elif current.entry and not summed:
            pending.extend((part, summed) for part in current.parents)


def scale_terms(value: Value, alone: bool) -> Iterator[tuple[Value, bool]]:
    """A loss and what it was computed from, and whether that lies before a mean or a sum."""
    seen: set[int] = set()
    before: list[Value] = []
    pending = [value]
    inside = False
    while pending or before:
        if not pending:
            pending, before, inside = before, [], True
        current = pending.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current, inside
        if isinstance(current, Tensor) and current.barrier:
            continue
        averaged = isinstance(current, Tensor) and bool(current.reduction)
        averaged = averaged or is_masked_mean(current, alone)
        (before if averaged else pending).extend(members(current))


def is_opaque(value: Value, alone: bool) -> bool:
    """Whether a loss is the bare result of a call that is neither a model nor a criterion."""
    return any(
        isinstance(term, Tensor)
        and term.opaque
        and not term.barrier
        and not inside
        and term.graph is not False
        and not OPTION.match(term.key)
        for term, inside in scale_terms(value, alone)
    )


def is_divided_by(value: Value, size: str, alone: bool) -> bool:
    """Whether a loss is divided by what may be the size of a window.

    What the elements are divided by before their mean is taken is a part of the loss, unless it
    is named as the size is.
    """
    for term, inside in scale_terms(value, alone):
        if not isinstance(term, Tensor) or not term.divided or is_masked_mean(term, alone):
            continue
        divisor = term.parents[1].key if len(term.parents) > 1 else term.key
        named = bool(size) and size in divisor
        if not inside or named or knowledge.ACCUMULATION_NAME.search(divisor):
            return True
    return False
