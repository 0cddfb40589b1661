"""Compares the textbook's formula for a training step with what a run held, part by part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.verify import holdings
from oomlint.verify.attribution import peak_span
from oomlint.verify.measure import Measurement
from oomlint.verify.series import size
from oomlint.verify.textbook import HALVES, Facts, Formula, formula, sources

COPIES, ROUNDING, CACHE = "copies in half precision", "rounding to blocks", "cache"
# A part that is off by less than this share of the reserved peak is not worth a sentence.
WORTH = 0.01
UNKNOWN = {
    holdings.INPUT: "what is copied from the host",
    holdings.WORKSPACE: "cuBLAS's workspaces",
    holdings.TEMPORARY: "what the backward pass or the optimizer's step makes in passing",
    holdings.OTHER: "what is made without gradients",
    ROUNDING: "blocks of the allocator that are larger than what was asked for",
    CACHE: "memory that the allocator keeps for later or cannot use for its fragmentation",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one part: by the formula, at the peak of requested bytes, and the most at any step.

    None where the formula does not know the part, or nobody measured it.
    """

    name: str
    formula: int | None
    peak: int | None
    most: int | None = None

    @property
    def off(self) -> int:
        """By how much the formula is above what was alive at the peak, below it if negative."""
        return (self.formula or 0) - (self.peak or 0)


@dataclass(frozen=True, slots=True)
class Budget:
    """The formula and the run; `total` against `reserved` is what it is off by as a whole."""

    precision: str
    optimizers: tuple[str, ...]
    sources: tuple[str, ...]
    parts: tuple[Part, ...]
    total: int  # of the formula
    reserved: int  # peak of the run
    remarks: tuple[str, ...]  # where the formula goes wrong, the largest first

    @property
    def off(self) -> float | None:
        """The formula's error as a share of the reserved peak."""
        return (self.total - self.reserved) / self.reserved if self.reserved else None


def budget_of(found: Measurement) -> Budget | None:
    """None where the run did not take stock: it was ended from outside, or not asked to."""
    notes = found.run.notes
    if notes is None or notes.facts is None or found.run.holdings is None:
        return None
    facts = notes.facts
    book = formula(facts)
    parts = tuple(parts_of(found, facts, book))
    return Budget(
        precision=facts.precision,
        optimizers=tuple(dict.fromkeys(one.name for one in facts.optimizers)),
        sources=sources(facts),
        parts=parts,
        total=book.total,
        reserved=found.held.reserved_peak,
        remarks=tuple(remarks(found, facts, parts)),
    )


def parts_of(found: Measurement, facts: Facts, book: Formula) -> Iterator[Part]:
    held = found.held
    kinds = {share.name: share.size for share in held.kinds}

    def alive(kind: str) -> int | None:
        return kinds.get(kind, 0) if kinds else None

    yield Part(holdings.PARAMETER, book.parameters, alive(holdings.PARAMETER), facts.parameters)
    if book.copies:
        yield Part(COPIES, book.copies, None)
    yield Part(holdings.GRADIENT, book.gradients, alive(holdings.GRADIENT), facts.gradients)
    state = alive(holdings.OPTIMIZER_STATE)
    yield Part(holdings.OPTIMIZER_STATE, book.state, state, facts.state)
    yield Part(holdings.ACTIVATION, book.activations, alive(holdings.ACTIVATION))
    for kind in (holdings.INPUT, holdings.WORKSPACE, holdings.TEMPORARY, holdings.OTHER):
        if kinds.get(kind):
            yield Part(kind, None, kinds[kind])
    yield Part(ROUNDING, None, held.allocated_peak - held.requested_peak)
    yield Part(CACHE, None, held.reserved_peak - held.allocated_peak)


def remarks(found: Measurement, facts: Facts, parts: tuple[Part, ...]) -> Iterator[str]:
    """A sentence for every part that the formula gets wrong by something that matters."""
    known = {part.name: part for part in parts}
    least = WORTH * found.held.reserved_peak
    for part in sorted(parts, key=lambda part: -abs(part.off)):
        if part.name == COPIES or part.peak is None:
            continue
        if part.name in UNKNOWN:
            if part.peak > least:
                yield f"{size(part.peak)} are not in the formula: {UNKNOWN[part.name]}"
            continue
        if part.formula is None:
            yield no_number(part, facts)
        elif abs(part.off) > least:
            more = "much" if part.off > 0 else "little"
            why = reason(found, facts, part, known)
            said = f"{part.name}: the formula gives {size(abs(part.off))} too {more} for the peak"
            yield said + (f": {why}" if why else "")


def no_number(part: Part, facts: Facts) -> str:
    if part.name == holdings.OPTIMIZER_STATE:
        names = ", ".join(one.name for one in facts.optimizers if one.state is None)
        return f"the formula knows no state of {names}; it was {size(part.most or 0)}"
    return (
        f"no module ran that returns tensors: {size(part.peak or 0)} of {part.name} are not in it"
    )


def reason(found: Measurement, facts: Facts, part: Part, known: dict[str, Part]) -> str:
    if part.name == holdings.ACTIVATION:
        return of_activations(found, facts, known)
    if part.name == holdings.PARAMETER:
        if part.off > 0:
            return "not all of them were on the device yet"
        return "buffers, and models that take no part in the training, are not in it"
    if part.name == holdings.OPTIMIZER_STATE and (part.formula or 0) > (part.most or 0) > 0:
        if facts.precision == HALVES:
            return (
                "torch keeps the state in the precision of the parameters, and no copy of these "
                "in float32"
            )
        return "not every parameter has as much"
    if (part.most or 0) > (part.peak or 0):
        return f"there are {size(part.most or 0)} of it, but not while the others are highest"
    if part.off > 0:
        return "no step of an optimizer had any" if not part.most else "not every parameter has one"
    return "the optimizer keeps more than the formula counts"


def of_activations(found: Measurement, facts: Facts, known: dict[str, Part]) -> str:
    said = []
    if known[holdings.ACTIVATION].off > 0:
        most = max((s.recomputations for s in found.run.steps), default=0)
        if most:
            said.append(f"{most} checkpointed functions keep only what they are given")
        elif not facts.layers:
            said.append("layers that work in place or need only their inputs keep less")
    elif facts.layers:
        said.append("it counts the layers, not what comes before and after them")
    if COPIES in known:
        said.append("autocast's copies of the weights are among those that were alive")
    line = largest_line(found)
    if line:
        said.append(line)
    return "; ".join(said)


def largest_line(found: Measurement) -> str:
    span = peak_span(found.run, whole=True)
    held = [one for one in span.at_peak if one.kind == holdings.ACTIVATION] if span else []
    if not held or not held[0].line:
        return ""
    return f"{size(held[0].bytes)} of those alive are made at {held[0].line}"
