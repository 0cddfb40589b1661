"""Worker processes: every file gets its answer, however often a worker is replaced."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest

from oomlint import workers
from oomlint.workers import Chunk


def shout(path: str, settings: Any) -> str:
    return path.upper()


def chunks(count: int) -> list[Chunk]:
    return [Chunk(shout, None, tuple(f"{i}-{k}.py" for k in range(3))) for i in range(count)]


def allow_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORKERS_BYTES", "LEAST_BYTES"):
        monkeypatch.setattr(workers, name, 0)
    monkeypatch.setattr(workers, "LEAST_GROWTH", -(1 << 50))


@pytest.mark.parametrize("jobs", [1, 3])
def test_workers_that_grow_too_big_are_replaced_without_losing_a_file(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_nothing(monkeypatch)
    answers = dict(workers.run(chunks(30), jobs))
    assert answers == {path: path.upper() for chunk in chunks(30) for path in chunk.paths}


def doze(path: str, settings: Any) -> str:
    time.sleep(1.5 * workers.SECONDS_BETWEEN_SIZES)
    return f"{path} {os.getpid()}"


def test_a_worker_that_grows_too_big_in_a_chunk_leaves_the_rest_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_nothing(monkeypatch)
    paths = tuple(f"{k}.py" for k in range(3))
    said = dict(workers.run([Chunk(doze, None, paths)], 1))
    assert tuple(said) == paths
    assert len({answer.split()[1] for answer in said.values()}) > 1


told: list[bool] = []


def what_was_told(path: str, settings: Any) -> list[bool]:
    return told


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a worker is not forked")
def test_a_forked_worker_is_told_first_that_it_costs_little_to_replace() -> None:
    assert dict(workers.run([Chunk(what_was_told, None, ("a.py",))], 1, told.append)) == {
        "a.py": [True]
    }


def test_a_worker_of_a_large_process_is_not_replaced_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow_nothing(monkeypatch)
    monkeypatch.setattr(workers, "LEAST_GROWTH", 1 << 30)
    said = dict(workers.run([Chunk(doze, None, ("a.py", "b.py", "c.py"))], 1))
    assert len({answer.split()[1] for answer in said.values()}) == 1
