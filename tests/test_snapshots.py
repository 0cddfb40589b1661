"""Memory snapshots: read without running anything of them, and shown by line."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shell import call

pytest.importorskip("torch")

from oomlint.errors import OomlintError
from oomlint.verify.attribution import by_kind, by_line, growing, peak_span
from oomlint.verify.snapshots import read_snapshot

MIB = 1024**2
SITE = "/usr/lib/python3.11/site-packages/torch"


def frame(name: str, filename: str, line: int) -> dict[str, Any]:
    return {"name": name, "filename": filename, "line": line}


MODEL = [
    frame("forward", f"{SITE}/nn/modules/linear.py", 125),
    frame("forward", "/home/me/project/net/model.py", 12),
    frame("<module>", "/home/me/project/train.py", 30),
]
KEPT = [frame("<module>", "/home/me/project/train.py", 34)]
STEP = [
    frame("_init_group", f"{SITE}/optim/adam.py", 180),
    frame("step", f"{SITE}/optim/adam.py", 230),
    frame("wrapper", f"{SITE}/optim/optimizer.py", 500),
    frame("<module>", "/home/me/project/train.py", 33),
]
MOVED = [
    frame("convert", f"{SITE}/nn/modules/module.py", 1300),
    frame("_apply", f"{SITE}/nn/modules/module.py", 900),
    frame("<module>", "/home/me/project/train.py", 9),
]


class Recorder:
    """Writes what torch.cuda.memory would."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.reserved = 0
        self.next = 1 << 40

    def log(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames}
        self.entries.append({**entry, "time_us": len(self.entries)})

    def reserve(self, size: int) -> None:
        self.reserved += size
        self.log("segment_alloc" if size > 0 else "segment_free", 0, abs(size), [])

    def alloc(self, size: int, frames: list[dict[str, Any]]) -> int:
        self.next += 2 * MIB * 64
        self.live[self.next] = size, frames
        self.log("alloc", self.next, size, frames)
        return self.next

    def free(self, address: int) -> None:
        size, _ = self.live.pop(address)
        self.log("free_requested", address, size, [])
        self.log("free_completed", address, size, [])

    def forget(self) -> None:
        """What came before is not recorded."""
        self.entries.clear()

    def snapshot(self) -> dict[str, Any]:
        blocks = [
            {
                "address": address,
                "size": -(-size // 512) * 512,
                "requested_size": size,
                "state": "active_allocated",
                "frames": frames,
            }
            for address, (size, frames) in self.live.items()
        ]
        segment = {"device": 0, "address": 0, "total_size": self.reserved, "blocks": blocks}
        return {"segments": [segment], "device_traces": [self.entries], "allocator_settings": {}}


def training(steps: int) -> Recorder:
    """A model of 4 MiB, its gradients, Adam's state, and 1 MiB that every step keeps."""
    tape = Recorder()
    tape.reserve(64 * MIB)
    tape.alloc(4 * MIB, MOVED)
    gradient = state = 0
    for _ in range(steps):
        hidden = tape.alloc(2 * MIB, MODEL)
        if gradient:
            tape.free(gradient)
        gradient = tape.alloc(4 * MIB, [])
        tape.free(hidden)
        if not state:
            state = tape.alloc(8 * MIB, STEP)
        tape.free(tape.alloc(3 * MIB, STEP))
        tape.alloc(1 * MIB - 100, KEPT)
    return tape


def written(folder: Path, snapshot: Any) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path


def test_steps_kinds_and_lines_are_seen_in_stacks(tmp_path: Path) -> None:
    run = read_snapshot(written(tmp_path, training(6).snapshot()))
    assert [span.step for span in run.spans] == [1, 2, 3, 4, 5, 6, 0][: len(run.spans)]
    peak = peak_span(run, whole=True)
    assert peak is not None
    kinds = by_kind(peak.at_peak)
    assert kinds["parameter"] == kinds["gradient"] == 4 * MIB
    assert kinds["optimizer state"] == 8 * MIB
    assert kinds["temporary"] == 3 * MIB
    lines = by_line(peak.at_peak)
    assert lines["train.py:33"] == 11 * MIB
    assert lines["(backward pass)"] == 4 * MIB
    assert sum(lines.values()) == peak.peak
    assert max(max(span.reserved) for span in run.spans) == 64 * MIB
    assert run.lines["net/model.py:12"] == "in forward"


def test_a_line_that_keeps_something_every_step_piles_up(tmp_path: Path) -> None:
    run = read_snapshot(written(tmp_path, training(6).snapshot()))
    assert [(growth.line, growth.bytes_per_step) for growth in growing(run)] == [
        ("train.py:34", MIB)  # rounded up to a block
    ]


def test_what_was_alive_before_the_recording_counts(tmp_path: Path) -> None:
    tape = training(2)
    old = tape.alloc(5 * MIB, MODEL)
    tape.forget()
    tape.free(old)
    tape.alloc(MIB, KEPT)
    run = read_snapshot(written(tmp_path, tape.snapshot()))
    assert run.spans[0].allocated[0] == 23 * MIB
    assert max(max(span.reserved) for span in run.spans) == 64 * MIB
    lines = by_line(run.spans[0].at_peak)
    assert lines["(before the recording)"] == 9 * MIB  # and a gradient
    assert lines["train.py:9"] == 4 * MIB  # its block still has the stack


def test_without_an_optimizer_lines_are_followed_over_parts_of_the_recording(
    tmp_path: Path,
) -> None:
    tape = Recorder()
    tape.reserve(256 * MIB)
    for _ in range(100):
        hidden = tape.alloc(2 * MIB, MODEL)
        tape.alloc(MIB, KEPT)
        tape.free(hidden)
    run = read_snapshot(written(tmp_path, tape.snapshot()))
    assert {span.step for span in run.spans} == {0}
    assert [(growth.line, growth.bytes_per_step) for growth in growing(run)] == [
        ("train.py:34", 5 * MIB)
    ]


def test_segments_come_and_go(tmp_path: Path) -> None:
    tape = Recorder()
    tape.reserve(20 * MIB)
    tape.forget()
    tape.free(tape.alloc(MIB, MODEL))
    tape.reserve(30 * MIB)
    tape.alloc(MIB, MODEL)
    tape.reserve(-20 * MIB)
    reserved = [
        value
        for span in read_snapshot(written(tmp_path, tape.snapshot())).spans
        for value in span.reserved
    ]
    assert (reserved[0], max(reserved), reserved[-1]) == (20 * MIB, 50 * MIB, 30 * MIB)


def test_cpp_stacks_tell_workspaces_and_the_busiest_device_is_shown(tmp_path: Path) -> None:
    tape = training(3)
    tape.alloc(32 * MIB, [frame("at::cuda::getNewWorkspace()", "??", 0), *MODEL])
    snapshot = tape.snapshot()
    snapshot["device_traces"] = [tape.entries[:1], tape.entries]
    snapshot["segments"][0]["device"] = 1
    run = read_snapshot(written(tmp_path, snapshot))
    assert by_kind(run.spans[-1].at_end)["workspace"] == 32 * MIB
    assert run.device.startswith("cuda:1")
    assert run.warnings == ("cuda:0 was recorded, too (1 events), and is not shown",)


class Innocent:
    pass


class Hostile:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch ran",)


NO_SNAPSHOTS: dict[str, tuple[bytes, str]] = {
    "code": (pickle.dumps([Hostile()]), "a snapshot is plain data, but it wants posix.system"),
    "object": (pickle.dumps(Innocent()), "but it wants test_snapshots.Innocent"),
    "builtin": (pickle.dumps(print), "but it wants builtins.print"),
    "persistent": (b"\x80\x04\x8c\x01aQ.", "but it refers to objects outside of itself"),
    "text": (b"hello", "is no pickle"),
    "nothing": (b"", "is no pickle"),
    "half": (pickle.dumps(training(2).snapshot())[:500], "is no pickle"),
    "list": (pickle.dumps([1]), "is no memory snapshot of torch.cuda"),
    "other": (pickle.dumps({"weights": 1}), "is no memory snapshot of torch.cuda (KeyError"),
    "no traces": (
        pickle.dumps({"segments": [], "device_traces": []}),
        "the snapshot has no history; call torch.cuda.memory._record_memory_history()",
    ),
    "size": (
        pickle.dumps(
            {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": "9"}]]}
        ),
        "is no memory snapshot of torch.cuda (ValueError: size is no number of bytes)",
    ),
}


@pytest.mark.parametrize("name", NO_SNAPSHOTS)
def test_whatever_is_no_snapshot_is_one_sentence(name: str, tmp_path: Path) -> None:
    data, words = NO_SNAPSHOTS[name]
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(OomlintError) as raised:
        read_snapshot(path)
    assert words in str(raised.value)
    assert str(path) in str(raised.value)
    assert not (Path.cwd() / "ran").exists()


def test_measure_shows_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, training(6).snapshot())
    table = call("measure", "snapshot.pickle")
    assert (table.code, table.err) == (0, "")
    assert table.out.startswith("snapshot.pickle of cuda:0, recorded\n")
    assert "steps of an optimizer seen          6" in table.out
    assert "train.py:34  1.00 MiB" in table.out
    answer = call("measure", "--output-format", "json", "--html", "page.html", "snapshot.pickle")
    assert (answer.code, answer.err) == (0, "The page is in page.html.\n")
    document = json.loads(answer.out)
    assert (document["kind"], document["run"]["memory"]["growth"][0]["line"]) == (
        "snapshot",
        "train.py:34",
    )
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "train.py:33 <small>optimizer state</small>" in page
    again = call("measure", "--html", "page.html", "snapshot.pickle")
    assert (again.code, again.err) == (2, "error: page.html exists; give --force to overwrite it\n")
    missing = call("measure", "gone.pickle")
    assert (missing.code, missing.err) == (2, "error: gone.pickle does not exist\n")


DUMPS = """\
import torch
torch.cuda.memory._record_memory_history()
model = torch.nn.Linear(512, 512, bias=False).cuda()
optimizer = torch.optim.Adam(model.parameters())
kept = []
for step in range(7):
    model(torch.ones(512, 512, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(torch.zeros(512, 512, device="cuda"))
torch.cuda.memory._dump_snapshot("memory.pickle")
"""


def test_what_a_script_dumps_on_the_emulated_device_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(DUMPS)
    options = ["measure", "--device", "emulated", "--allow-writes", "-q", "train.py"]
    done = call(*options)
    assert done.code == 0, done.err
    run = read_snapshot(Path("memory.pickle"))
    assert [span.step for span in run.spans] == [1, 2, 3, 4, 5, 6, 7, 0]
    kinds = {held.kind: held.bytes for held in run.spans[1].at_end}
    assert kinds["parameter"] == 1 << 20
    assert kinds["optimizer state"] == 2 << 20
    piling = {growth.line: growth.bytes_per_step for growth in growing(run)}
    assert piling == {"train.py:10": 1 << 20}
