"""The allocator model against recorded answers of torch's own compiled caching allocator.

`bench/allocator_oracle.py --record` wrote them; the same script compares with the allocator itself.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import allocator_traffic
from allocator_traffic import SETTINGS, Setting, play

TRACES = Path(__file__).with_name("allocator_traces.txt.xz")
NAMED = {setting.name: setting for setting in SETTINGS}


def recorded() -> dict[str, tuple[list[str], list[str]]]:
    """The operations and the oracle's answers of every setting."""
    found = {}
    for part in lzma.decompress(TRACES.read_bytes()).decode().split("# ")[1:]:
        head, _, answers = part.partition("\n=\n")
        name, *operations = head.splitlines()
        found[name] = operations, answers.splitlines()
    return found


TRACED = recorded()


def test_every_setting_is_recorded() -> None:
    assert list(TRACED) == list(NAMED)


@pytest.mark.parametrize("name", NAMED)
def test_the_model_answers_what_torchs_allocator_answered(name: str) -> None:
    operations, answers = TRACED[name]
    assert sum(line.startswith("p ") for line in answers) == len(operations) - sum(
        line != "p" for line in operations
    )
    assert play(NAMED[name], operations) == answers


def last(name: str) -> dict[str, str]:
    """The last statistics of a recording."""
    lines = [line for line in TRACED[name][1] if line.startswith("p ")]
    return dict(pair.split("=") for pair in lines[-1].split()[1:])


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("out of memory", ("ooms", "retries", "dev_free")),
        ("fraction", ("ooms", "retries")),
        ("max_split, out of memory", ("ooms", "retries", "dev_free")),
        ("collection", ("dev_free",)),
        ("expandable, out of memory", ("ooms", "retries", "dev_free")),
        ("three streams, out of memory", ("ooms", "retries", "dev_free")),
    ],
)
def test_the_recordings_contain_what_they_are_named_for(name: str, counts: tuple[str, ...]) -> None:
    found = last(name)
    assert all(int(found[count]) > 0 for count in counts), found


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("max_split", ""),
        ("power of two", "roundup_power2_divisions:2"),
        ("large segment", ""),
        ("expandable", ""),
        ("collection", ""),
        ("power of two by size", "roundup_power2_divisions:8"),
        ("max_split, wide rounding", "max_split_size_mb:20"),
    ],
)
def test_each_option_shows_in_its_recording(name: str, other: str) -> None:
    operations, answers = TRACED[name]
    plain = NAMED[name]
    changed = Setting(name, other, plain.capacity, plain.fraction, plain.streams)
    assert play(changed, operations) != answers


def test_traffic_is_the_same_for_the_same_seed() -> None:
    again = allocator_traffic.traffic(NAMED["plain"], 50, seed=3)
    assert again == allocator_traffic.traffic(NAMED["plain"], 50, seed=3)
    assert again != allocator_traffic.traffic(NAMED["plain"], 50, seed=4)
