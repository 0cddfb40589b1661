"""Accounts for the device's memory inside of the child: spans and holdings go to the journal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from oomlint.verify import record
from oomlint.verify.cuda_history import CudaHistory
from oomlint.verify.holdings import Holdings, to_entry
from oomlint.verify.ledger import Span
from oomlint.verify.meters import CudaMeter, EmulatedMeter, Meter
from oomlint.verify.watching import WatchedAllocator, Watcher

# A run of any length leaves a record of bounded size: the first steps have a span each, later ones
# share one, twice as many steps each time that their number doubles; the longer it takes, the
# fewer values a span's timeline has.
SINGLE_STEPS = 256
FIRST_SHARES, LEAST_SHARES, ALL_SHARES = 60, 4, 480


class Source(Protocol):
    """Who knows the device's memory."""

    def look(self) -> None:
        """Comes before the meter's peaks are set back."""

    def pending(self) -> bool:
        """Whether anything happened since the last cut."""

    def cut(self, step: int, shares: int) -> Span: ...

    def text(self, line: str) -> str: ...

    def holdings(self, meter: Meter) -> Holdings: ...


class Account:
    """Cuts a run into spans and writes them."""

    def __init__(self, source: Source, meter: Meter, write: Callable[[str], None]) -> None:
        self.source, self.meter, self.write = source, meter, write
        self.spans = self.gaps = 0
        self.known: set[str] = set()

    def turn(self, step: int) -> None:
        """A step is over; 0 as its number says that what was done since belongs to none."""
        self.source.look()
        if step % stride(step) or (not step and self.gaps >= SINGLE_STEPS):
            return
        if self.source.pending():
            self.gaps += not step
            self.write_span(step)

    def write_span(self, step: int) -> None:
        self.spans += 1
        span = self.source.cut(step, shares(self.spans))
        lines = {held.line for held in (*span.at_peak, *span.at_end)} - self.known
        self.known |= lines
        self.write(record.span_line(span, {line: self.source.text(line) for line in lines}))

    def close(self) -> str:
        """What comes after the last step, and the line of holdings."""
        self.turn(0)
        return record.dump({"holdings": to_entry(self.source.holdings(self.meter))})


def stride(step: int) -> int:
    """How many steps share a span."""
    return 1 << (step // SINGLE_STEPS).bit_length()


def shares(spans: int) -> int:
    """How many values the next span's timeline has at least."""
    return max(LEAST_SHARES, min(FIRST_SHARES, ALL_SHARES // (spans + 1)))


def begin(meter: Meter, write: Callable[[str], None]) -> Account:
    """Starts to watch. Comes before the recorder, whose hooks must be the later ones."""
    source: Source
    if isinstance(meter, EmulatedMeter):
        allocator = meter.device.allocator
        assert isinstance(allocator, WatchedAllocator)
        allocator.watcher = source = Watcher(meter.device, FIRST_SHARES)
    else:
        assert isinstance(meter, CudaMeter)
        source = CudaHistory(meter, FIRST_SHARES)
    return Account(source, meter, write)
