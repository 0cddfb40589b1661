"""Worker processes: every file gets its answer, however often a worker is replaced."""

from __future__ import annotations

from typing import Any

import pytest

from oomlint import workers
from oomlint.workers import Chunk


def shout(path: str, settings: Any) -> str:
    return path.upper()


def chunks(count: int) -> list[Chunk]:
    return [Chunk(shout, None, tuple(f"{i}-{k}.py" for k in range(3))) for i in range(count)]


@pytest.mark.parametrize("jobs", [1, 3])
def test_workers_that_grow_too_big_are_replaced_without_losing_a_file(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "WORKERS_BYTES", 0)
    monkeypatch.setattr(workers, "LEAST_BYTES", 0)
    answers = dict(workers.run(chunks(30), jobs))
    assert answers == {path: path.upper() for chunk in chunks(30) for path in chunk.paths}
