"""Draws the comparison with the textbook's formula for a terminal or a pipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from oomlint.verify.budget import Budget
from oomlint.verify.drawing import Drawing
from oomlint.verify.series import size

HEADS = ("part", "formula", "at the peak", "formula is off by", "most at a step")
NONE = "-"


def verdict(budget: Budget) -> str:
    """What the formula says as a whole, and what the run took."""
    if budget.off is None:
        return f"The textbook's formula gives {size(budget.total)}; nothing was put on the device."
    way = "more than" if budget.off > 0 else "less than"
    much = f"{abs(budget.off):.0%} {way} the {size(budget.reserved)} that the run reserved"
    return f"The textbook's formula gives {size(budget.total)}, {much}."


def rows(budget: Budget) -> Iterator[tuple[str, ...]]:
    for part in budget.parts:
        off = NONE if part.formula is None or part.peak is None else signed(part.off)
        yield part.name, shown(part.formula), shown(part.peak), off, shown(part.most)
    off = signed(budget.total - budget.reserved)
    yield "all, reserved", size(budget.total), size(budget.reserved), off, NONE


def shown(value: int | None) -> str:
    return NONE if value is None else size(value)


def signed(value: int) -> str:
    return f"-{size(-value)}" if value < 0 else f"+{size(value)}" if value else size(0)


def trained_with(budget: Budget) -> str:
    optimizers = " and ".join(budget.optimizers) or "no optimizer"
    return f"It is that of {budget.precision} with {optimizers}."


def draw(drawing: Drawing, budget: Budget) -> None:
    drawing.sentence(verdict(budget), "bold")
    drawing.sentence(trained_with(budget))
    drawing.table(HEADS, list(rows(budget)))
    for remark in budget.remarks:
        drawing.sentence(f"- {remark}")
    for source in budget.sources:
        drawing.sentence(f"- formula of {source}")
    drawing.space()


def document(budget: Budget) -> dict[str, Any]:
    values = asdict(budget)
    for part, own in zip(values["parts"], budget.parts, strict=True):
        part["off"] = own.off if own.formula is not None and own.peak is not None else None
    return {**values, "off": budget.off}
