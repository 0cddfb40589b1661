"""The terms of a loss: entries of a network's dict of losses, which `sum` adds up."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from oomlint.analysis.state import Event
from oomlint.analysis.values import (
    Container,
    Either,
    Sequence,
    Tensor,
    Unknown,
    Value,
    members,
    options,
)


def is_term(
    event: Event, held: Mapping[int, Value], carriers: Collection[int], backward: Event
) -> bool:
    """Whether a kept value has an entry of the dict of losses whose sum is backpropagated, or is
    the whole that a step returned, of which `.loss` is backpropagated."""
    loss = backward.value
    if isinstance(loss, Unknown) and loss.name == "loss" and len(loss.parents) == 1:
        whole = loss.parents[0]
        if isinstance(whole, Unknown) and id(whole) in carriers:
            return not is_cut_between(backward, event)
    summed = backward.detail.get("summed")
    if not isinstance(summed, frozenset):
        summed = frozenset(summed_up(backward.value)) if backward.value is not None else frozenset()
        backward.detail["summed"] = summed
    return bool(summed) and any(
        isinstance(value, Tensor) and len(value.parents) == 1 and id(value.parents[0]) in summed
        for value in (held[key] for key in carriers)
    )


# What leaves the shape of a loss as it is: all that goes in are scalars, too.
SHAPELESS = frozenset("+ - * / neg sum to cpu cuda float double scale".split())


def summed_up(loss: Value) -> Iterator[int]:
    """What a network returned as a whole and `sum` adds up entry by entry into a loss."""
    stack, seen = [loss], set[int]()
    while stack:
        value = stack.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor) and value.made_by == "sum" and value.key.startswith("sum("):
            for part in members(value):
                yield from wholes(part)
        elif isinstance(value, Either) or (
            isinstance(value, Tensor) and (value.scaled or value.made_by in SHAPELESS)
        ):
            stack.extend(members(value))


def wholes(part: Value) -> Iterator[int]:
    """The call's result of which a sum's operand is all entries, or those that were chosen."""
    if isinstance(part, Sequence):
        yield from (id(member) for member in members(part) if isinstance(member, Tensor))
    elif isinstance(part, Container):
        for item in part.items:
            for option in options(item):
                if isinstance(option, Tensor) and option.entry and len(option.parents) == 1:
                    yield id(option.parents[0])


# `result["loss"] = result["loss"].detach()`, `del result["loss"]`, `detach_all(result)`.
CUT = re.compile(r"detach|\.item\(|\.pop\(|\bdel\b|no_grad")


def is_cut_between(backward: Event, event: Event) -> bool:
    """Whether the rows from a backward to what keeps its step's result speak of cutting a graph."""
    if backward.module is not event.module:
        return True
    rows = range(backward.node.lineno, (event.node.end_lineno or event.node.lineno) + 1)
    return any(CUT.search(event.module.source.line(row)) for row in rows)
