"""Says which lines hold a run's memory: what is alive at the peak, and what piles up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from oomlint.verify.ledger import Held, Span
from oomlint.verify.record import ITERATION, Run
from oomlint.verify.series import GROWTH_BYTES, WARM_UP, main_steps, steady


@dataclass(frozen=True, slots=True)
class Growth:
    """A line whose tensors pile up; `held` are the bytes that it has alive after each span."""

    line: str
    kind: str  # of most of these bytes
    bytes_per_step: float
    held: tuple[int, ...]


def peak_span(run: Run, *, whole: bool = False) -> Span | None:
    """The span with the highest peak: of the steps after the warm-up, or of the `whole` run."""
    spans = run.spans
    if not whole:
        spans = tuple(span for span in spans if span.step) or spans
        if len(run.steps) >= WARM_UP + 2:
            spans = tuple(span for span in spans if span.step > WARM_UP) or spans
    return max(spans, key=lambda span: span.peak, default=None)


def by_kind(held: Iterable[Held]) -> dict[str, int]:
    """Bytes by kind, the largest first."""
    return dict(totals((one.kind, one.bytes) for one in held).most_common())


def by_line(held: Iterable[Held]) -> dict[str, int]:
    """Bytes by line, the largest first."""
    return dict(totals((one.line, one.bytes) for one in held).most_common())


def totals(pairs: Iterable[tuple[str, int]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for name, size in pairs:
        sums[name] += size
    return sums


def spans_of_steps(run: Run) -> tuple[Span, ...]:
    """Spans whose ends are compared: those of the main optimizer, or the parts of a recording."""
    spans = tuple(span for span in run.spans if span.step)
    if not run.steps:
        return spans or run.spans
    chosen = {id(step) for step in main_steps(run)}
    main = tuple(span for span in spans if id(run.steps[span.step - 1]) in chosen)
    return main if len(main) > 1 else spans


def pairs_of(spans: tuple[Span, ...], run: Run) -> list[tuple[int, int, int]]:
    """Places of spans that follow each other after the warm-up, and how many steps lie between."""
    pairs = []
    for place, (earlier, later) in enumerate(pairwise(spans)):
        ends = [run.steps[span.step - 1] for span in (earlier, later)] if run.steps else []
        if not ends or ends[0].extent == ends[1].extent or ends[0].unit != ITERATION:
            pairs.append((place, place + 1, max(1, later.step - earlier.step)))
    return pairs[WARM_UP:] if len(pairs) > WARM_UP else pairs


def growing(run: Run) -> tuple[Growth, ...]:
    """Lines that hold more from step to step, by as little as half a block; fastest first."""
    spans = spans_of_steps(run)
    pairs = pairs_of(spans, run)
    alive = [by_line(span.at_end) for span in spans]
    found = []
    for line in dict.fromkeys(line for held in alive for line in held):
        held = tuple(one.get(line, 0) for one in alive)
        rates = [(held[later] - held[earlier]) / steps for earlier, later, steps in pairs]
        rate = steady(rates, GROWTH_BYTES)
        if rate and len(pairs) > 1:
            kinds = by_kind(one for one in spans[-1].at_end if one.line == line)
            found.append(Growth(line, next(iter(kinds), ""), rate, held))
    return tuple(sorted(found, key=lambda growth: (-growth.bytes_per_step, growth.line)))
