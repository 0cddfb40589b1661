"""Which loop or function a finding belongs to, and that running it rewritten changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from oomlint.verify.instrument import NAME, Region, instrumented, region_at, regions

TEXT = '''\
"""A module."""
import os
for epoch in range(2):
    total = 0
    for batch in range(3):
        if batch == 1:
            continue
        total += batch


class Trainer:
    def fit(self, loader):
        """Fits."""
        first = 1
        while first < 4:
            first += 1
        return first

    def one(self, batch):
        """One step."""
        return batch

    async def later(self):
        async for item in self:
            print(item)


def outer(items):
    for item in items:
        def inner(value):
            return value
        yield inner(item)
    else:
        yield None
'''


@pytest.mark.parametrize(
    ("line", "region"),
    [
        ("import os", None),
        ("    total = 0", Region("", 0)),
        ("        total += batch", Region("", 1)),
        ("            first += 1", Region("Trainer.fit", 0)),
        ("        first = 1", Region("Trainer.fit", -1)),
        ("        return batch", Region("Trainer.one", -1)),
        ("            print(item)", Region("Trainer.later", 0)),
        ("            return value", Region("outer.inner", -1)),
        ("        yield inner(item)", Region("outer", 0)),
    ],
)
def test_the_innermost_region_of_a_row(line: str, region: Region | None) -> None:
    assert region_at(TEXT, TEXT.splitlines().index(line) + 1) == region


def test_a_region_is_found_again_below_a_fix() -> None:
    wrapped = TEXT.replace("    for batch in range(3):", "    if os:\n     for batch in range(3):")
    wrapped = wrapped.replace("        if batch == 1:", "        if batch == 1:")
    names = [region for region, _ in regions(__import__("ast").parse(wrapped))]
    assert Region("", 1) in names


class Log:
    """Stands where the recorder does."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __enter__(self) -> None:
        self.events.append("enter")

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.events.append("exit" if kind is None else "raised")

    def tick(self) -> None:
        self.events.append("tick")


def execute(text: str, region: Region) -> tuple[dict[str, Any], list[str]]:
    log = Log()
    names: dict[str, Any] = {NAME: log}
    exec(compile(instrumented(text, "text.py", region), "text.py", "exec"), names)
    return names, log.events


def test_a_loop_enters_once_and_ticks_every_iteration() -> None:
    names, events = execute(
        "for i in range(3):\n    if i: continue\nelse:\n    j = i\n", Region("", 0)
    )
    assert (names["j"], events) == (2, ["enter", "tick", "tick", "tick", "exit"])


def test_a_break_leaves_the_region() -> None:
    _, events = execute("while True:\n    break\n", Region("", 0))
    assert events == ["enter", "tick", "exit"]


def test_an_error_is_told_apart() -> None:
    text = "try:\n    for i in [1]: raise ValueError\nexcept ValueError: pass\n"
    assert execute(text, Region("", 0))[1] == ["enter", "tick", "raised"]


def test_a_function_keeps_its_documentation_and_its_result() -> None:
    names, events = execute(
        'def f(x):\n    """Doc."""\n    return x + 1\ny = f(1)\n', Region("f", -1)
    )
    assert (names["y"], names["f"].__doc__, events) == (2, "Doc.", ["enter", "exit"])


def test_rows_stay_as_they_are() -> None:
    text = "def f():\n    for i in range(2):\n        1 / 0\n"
    names, _ = execute(text, Region("f", 0))
    with pytest.raises(ZeroDivisionError) as caught:
        names["f"]()
    assert caught.traceback[-1].lineno == 2  # counted from 0
