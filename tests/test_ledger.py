"""The account of a device's memory: by line, by kind, over time, and bounded however long."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from oomlint.verify.attribution import growing, peak_span
from oomlint.verify.holdings import ACTIVATION, GRADIENT, PARAMETER, TEMPORARY
from oomlint.verify.ledger import Entry, Held, Ledger, Span, Timeline
from oomlint.verify.probing import SINGLE_STEPS, Account, shares, stride
from oomlint.verify.record import Ending, Run


def entry(size: int, line: str = "a.py:1", kind: str = ACTIVATION) -> Entry:
    return Entry(size, line, kind, size)


def test_what_was_alive_at_the_peak_is_kept_though_it_ended_later() -> None:
    ledger = Ledger(8)
    ledger.gain(1, entry(100))
    ledger.gain(2, entry(50, "a.py:2"))
    ledger.lose(1)
    ledger.gain(3, entry(30, "a.py:3"))
    span = ledger.cut(1)
    assert (span.peak, span.position) == (150, 0.25)
    assert span.at_peak == (
        Held("a.py:1", ACTIVATION, 100, 1),
        Held("a.py:2", ACTIVATION, 50, 1),
    )
    assert [held.bytes for held in span.at_end] == [50, 30]
    assert span.allocated == (100, 150, 50, 80)


def test_a_span_that_only_frees_has_its_peak_at_its_beginning() -> None:
    ledger = Ledger(8)
    ledger.gain(1, entry(100))
    ledger.cut(1)
    ledger.lose(1)
    span = ledger.cut(2)
    assert (span.peak, span.position, span.at_end) == (100, 0.0, ())
    assert span.at_peak[0].bytes == 100


def test_a_kind_that_is_known_late_counts_at_the_peak_and_a_parameter_stays_one() -> None:
    ledger = Ledger(8)
    ledger.gain(1, entry(10, kind=TEMPORARY))
    ledger.gain(2, entry(20))
    ledger.label(1, GRADIENT)
    ledger.label(2, PARAMETER)
    ledger.label(2, GRADIENT)
    ledger.label(3, GRADIENT)  # a block that nobody knows
    assert {held.kind: held.bytes for held in ledger.cut(1).at_peak} == {
        GRADIENT: 10,
        PARAMETER: 20,
    }


def test_the_highest_point_of_requested_bytes_outlives_cuts() -> None:
    ledger = Ledger(8)
    ledger.gain(1, Entry(512, "a.py:1", ACTIVATION, 4))
    ledger.gain(2, Entry(512, "a.py:2", ACTIVATION, 500))
    ledger.steps = 1
    ledger.cut(1)
    ledger.lose(2)
    ledger.gain(3, Entry(512, "a.py:3", ACTIVATION, 100))
    ledger.cut(2)
    assert (ledger.top.value, ledger.top.moment) == (504, 0)
    assert ledger.top.maker is not None
    assert ledger.top.maker.line == "a.py:2"


def test_a_timeline_keeps_its_maxima_in_bounded_space() -> None:
    timeline = Timeline(10)
    values = [(number * 7919) % 1009 for number in range(5000)]
    for value in values:
        timeline.add(value, 2 * value)
    assert timeline.events == 5000
    assert 10 <= len(timeline.points) <= 20
    for place, (allocated, reserved) in enumerate(timeline.points):
        part = values[place * timeline.stride : (place + 1) * timeline.stride]
        assert (allocated, reserved) == (max(part), 2 * max(part))


def test_floors_are_the_least_that_a_line_ever_held() -> None:
    ledger = Ledger(8)
    for step in range(3):
        ledger.gain(("work", step), entry(1000, "a.py:1"))
        ledger.gain(("kept", step), entry(10, "a.py:2"))
        ledger.lose(("work", step))
    assert ledger.cut(0, floors=True).at_end == ()
    ledger.gain("work", entry(1000, "a.py:1"))
    ledger.lose("work")
    assert ledger.cut(0, floors=True).at_end == (Held("a.py:2", "", 30, 0),)


class Endless:
    """A run of any length whose every step has a thousand events."""

    def __init__(self) -> None:
        self.cuts: list[tuple[int, int]] = []

    def look(self) -> None:
        return None

    def pending(self) -> bool:
        return True

    def cut(self, step: int, shares: int) -> Span:
        self.cuts.append((step, shares))
        return Span(step, 1000, (1,) * 2 * shares, (1,) * 2 * shares, 1, 0.0, (), ())

    def text(self, line: str) -> str:
        raise AssertionError("there are no lines")

    def holdings(self, meter: object) -> object:
        raise AssertionError("it does not end")


def test_the_record_of_a_long_run_is_bounded() -> None:
    source, lines = Endless(), list[str]()
    account = Account(source, None, lines.append)  # type: ignore[arg-type]
    for step in range(1, 20_001):
        account.turn(step)
        account.turn(0)
    steps = [step for step, _ in source.cuts if step]
    assert steps[: SINGLE_STEPS - 1] == list(range(1, SINGLE_STEPS))
    assert len(steps) < 1200
    assert len(source.cuts) - len(steps) <= SINGLE_STEPS
    assert sum(2 * shares for _, shares in source.cuts) < 20_000
    assert (stride(1), stride(255), stride(256), stride(512)) == (1, 1, 2, 4)
    assert shares(0) > shares(100) > 0


def run_of(ends: list[dict[str, int]]) -> Run:
    """A recording whose steps end with these bytes by line."""
    spans = tuple(
        Span(
            number,
            1,
            (sum(held.values()),),
            (0,),
            sum(held.values()),
            0.0,
            (),
            tuple(Held(line, ACTIVATION, size, 1) for line, size in held.items()),
        )
        for number, held in enumerate(ends, 1)
    )
    return Run("cuda", "", "optimizer step", (), Ending("finished"), spans=spans)


def test_only_lines_that_hold_more_and_more_pile_up() -> None:
    ends = [
        {"grows": 1000 * step, "stays": 5000, "jumps": 9000 * (step % 2), "once": 7000 * (step > 2)}
        for step in range(1, 8)
    ]
    found = growing(run_of(ends))
    assert [(growth.line, growth.bytes_per_step) for growth in found] == [("grows", 1000.0)]
    assert found[0].held == tuple(1000 * step for step in range(1, 8))
    assert growing(run_of(ends[:2])) == ()


def test_the_peak_of_a_comparison_is_that_of_a_step() -> None:
    run = run_of([{"a": 10}, {"a": 30}, {"a": 20}])
    before = Span(0, 1, (99,), (99,), 99, 0.0, (), ())
    with_setup = Run(
        "cuda", "", "optimizer step", (), Ending("finished"), spans=(before, *run.spans)
    )
    step, whole = peak_span(with_setup), peak_span(with_setup, whole=True)
    assert step is not None and whole is not None
    assert (step.step, whole.step) == (2, 0)
