"""Guarded training without a device: what is refused, what is quiet, how batches are cut."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from oomlint import guard  # noqa: E402
from oomlint.guard import recovery, watch  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
Pair = namedtuple("Pair", "images labels")


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.Adam(torch.nn.Linear(3, 2).parameters())


def test_without_a_device_nothing_is_guarded_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "told_that_nothing_is_guarded", False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    one = optimizer()
    with guard.attach(one) as watched, guard.attach(one):
        assert not one._optimizer_step_post_hooks
        for parameter in one.param_groups[0]["params"]:
            parameter.grad = torch.ones_like(parameter)
        one.step()
        assert watched.steps == 0
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert said == [(logging.WARNING, "torch sees no CUDA device, so no optimizer is guarded")]


def test_a_compiled_step_runs_the_hooks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(3, 2)
    one = torch.optim.SGD(model.parameters(), lr=0.1)
    with monkeypatch.context() as patched:  # the compiler would ask the device that is not there
        patched.setattr(torch.cuda, "is_available", lambda: True)
        watched = guard.attach(one)

    @torch.compile(backend="eager")
    def step(x):
        model(x).square().mean().backward()
        one.step()
        one.zero_grad()

    with watched:
        before = model.weight.detach().clone()
        for count in range(1, 4):
            step(torch.ones(4, 3))
            assert watched.steps == count
    assert not torch.equal(before, model.weight)
    step(torch.ones(4, 3))
    assert watched.steps == 3


def test_state_on_the_host_is_foretold_as_well() -> None:
    host = torch.device("cpu")
    assert guard.predict_state(optimizer()) == {host: 2 * 8 * 4 + 2 * 4}


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "said"),
    [
        ((torch.nn.Linear(1, 1),), {}, TypeError, "takes optimizers, not Linear"),
        ((), {"limit": 90}, ValueError, r"a share of the memory in \(0, 1\], not 90"),
        ((), {"on_misfit": "ignore"}, ValueError, '"raise" or "warn", not \'ignore\''),
    ],
)
def test_what_attach_refuses(arguments: tuple, options: dict, kind: type, said: str) -> None:
    with pytest.raises(kind, match=said):
        guard.attach(*arguments, **options)


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(ValueError, match="a number of samples, not 0"):
        guard.micro_batches(size=0)
    backward = guard.micro_batches()(lambda value, share: value)
    for value in (3, torch.tensor(3.0), ["text"]):
        with pytest.raises(ValueError, match="no tensor among the arguments"):
            backward(value)


def test_batches_are_cut_wherever_they_are_held() -> None:
    seen = []

    @guard.micro_batches(size=2)
    def work(batch, scale, *, share, mask=None):
        seen.append((batch, mask, share))
        return {"a": 1}.get("a") * scale, len(batch.images)

    images, labels = torch.arange(10).view(5, 2), {"one": torch.arange(5), "name": "five"}
    total, count = work(Pair(images, labels), 3, mask=[torch.arange(5), torch.arange(4)])
    assert (total, count) == (9, 5)
    assert [share for *_, share in seen] == [2 / 5, 2 / 5, 1 / 5]
    assert torch.equal(torch.cat([batch.images for batch, *_ in seen]), images)
    assert torch.equal(torch.cat([batch.labels["one"] for batch, *_ in seen]), labels["one"])
    assert {batch.labels["name"] for batch, *_ in seen} == {"five"}
    assert [[len(part) for part in mask] for _, mask, _ in seen] == [[2, 4], [2, 4], [1, 4]]


def test_several_ranks_are_told_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise recovery.OutOfMemoryError("CUDA out of memory")

    assert not guard.attempt(fails)
    monkeypatch.setattr(recovery, "ranks", lambda: 2)
    with pytest.raises(recovery.OutOfMemoryError):
        guard.attempt(fails)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.50 KiB"), (5 << 40, "5,120.00 GiB")],
)
def test_sizes_have_units(count: int, text: str) -> None:
    assert watch.size(count) == text


def test_the_guard_loads_torch_and_nothing_else_of_oomlint() -> None:
    code = "import sys; before = set(sys.modules)\nimport torch\nwith_torch = set(sys.modules)\n"
    code += "from oomlint import guard\nprint(*sorted(set(sys.modules) - with_torch))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True
    )
    names = {name for name in done.stdout.split() if name.startswith("oomlint")}
    parts = ("", ".guard", ".guard.recovery", ".guard.state", ".guard.watch")
    assert names == {f"oomlint{part}" for part in parts}
    assert not {"libcst", "click", "rich", "numpy.random"} & set(done.stdout.split())
