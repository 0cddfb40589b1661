"""Reads a memory snapshot that torch.cuda.memory wrote, without running anything of it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from oomlint.errors import OomlintError
from oomlint.verify import history
from oomlint.verify.history import Frames, Stacks
from oomlint.verify.ledger import Ledger, Span
from oomlint.verify.record import FINISHED, OPTIMIZER, Ending, Run

# Where no optimizer is seen at work, memory is followed over as many equal parts of the recording.
PARTS = 20
# Values a timeline has at most, twice.
POINTS = 480
RECORDED = "recorded"
WITHOUT_STEPS = "No optimizer's step was seen: the activations of one forward pass grow as well."

Entries = list[dict[str, Any]]


class Foreign(pickle.UnpicklingError):
    """A pickle asks for something that is no plain container or number."""


class PlainUnpickler(pickle.Unpickler):
    """Builds lists, tuples, dicts, sets, strings, bytes and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        raise Foreign(f"it wants {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise Foreign("it refers to objects outside of itself")


def read_snapshot(path: Path) -> Run:
    """A run with `spans` but no `steps`; device, line and kind as far as the snapshot tells.

    Raises OomlintError where the file cannot be read, holds anything but plain data, or is no
    snapshot with a history. The format is what torch.cuda.memory._snapshot returns, torch 2.1 on.
    """
    snapshot = load(path)
    try:
        return run_of(snapshot)
    except NoHistory as error:
        raise OomlintError(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}"
        raise OomlintError(f"{path} is no memory snapshot of torch.cuda ({what})") from None


def load(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return PlainUnpickler(file).load()
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{path}: cannot be read: {reason}") from None
    except Foreign as error:
        raise OomlintError(f"{path} is not read: a snapshot is plain data, but {error}") from None
    except Exception as error:  # the unpickler raises whatever damaged bytes make it do
        raise OomlintError(f"{path} is no pickle ({type(error).__name__}: {error})") from None


class NoHistory(ValueError):
    """A snapshot without events."""


def run_of(snapshot: dict[str, Any]) -> Run:
    traces: list[Entries] = snapshot["device_traces"]
    device = max(range(len(traces)), key=lambda number: len(traces[number]), default=None)
    if device is None or not traces[device]:
        raise NoHistory(
            "the snapshot has no history; call torch.cuda.memory._record_memory_history() before "
            "what is to be recorded"
        )
    entries = traces[device]
    segments = [one for one in snapshot["segments"] if one.get("device", 0) == device]
    stacks = Stacks(shortener(entries))
    ledger = Ledger(POINTS, reserved=reserved_before(entries, segments))
    ledger.open(history.opening(entries, alive_at_end(segments), stacks))
    spans = tuple(spans_of(entries, ledger, stacks))
    return Run(
        device=f"cuda:{device}, {RECORDED}",
        torch="",
        unit=OPTIMIZER,
        steps=(),
        ending=Ending(FINISHED),
        warnings=tuple(
            f"cuda:{number} was recorded, too ({len(others):,} events), and is not shown"
            for number, others in enumerate(traces)
            if others and number != device
        ),
        spans=spans,
        lines={line: f"in {function}" for line, function in stacks.functions.items()},
    )


def spans_of(entries: Entries, ledger: Ledger, stacks: Stacks) -> Iterable[Span]:
    """A span for every step of an optimizer that stacks show; else for equal parts."""
    ends = step_ends(entries)
    if ends:
        ledger.shares = max(8, POINTS // (len(ends) + 1))
        ledger.begin()
        rest = iter(entries)
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False), 1):
            history.replay(islice(rest, end - start), ledger, stacks)
            history.settle_step(ledger)
            yield ledger.cut(number)
        history.replay(rest, ledger, stacks)
        yield ledger.cut(0)
        return
    ledger.shares = max(8, POINTS // PARTS)
    ledger.begin()
    for part in range(PARTS):
        start, end = (len(entries) * edge // PARTS for edge in (part, part + 1))
        history.replay(entries[start:end], ledger, stacks)
        yield ledger.cut(0, floors=True)


def step_ends(entries: Entries) -> list[int]:
    """Where optimizers' steps end: the first request after one that such a step made."""
    ends, inside = [], False
    for number, entry in enumerate(entries):
        if entry["action"] != "alloc":
            continue
        now = history.in_step(entry.get("frames") or [])
        if inside and not now:
            ends.append(number)
        inside = now
    return [*ends, len(entries)] if inside else ends


def alive_at_end(segments: Entries) -> dict[int, tuple[int, Frames]]:
    """Requested bytes and stack of every block in use, by address."""
    found: dict[int, tuple[int, Frames]] = {}
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                name = "requested_size" if "requested_size" in block else "size"
                place = block.get("address", address)
                found[place] = history.size(block, name), block.get("frames") or []
            address += block["size"]
    return found


def reserved_before(entries: Entries, segments: Entries) -> int:
    """Reserved bytes when the recording began: those at its end without what it changed."""
    reserved = sum(history.size(segment, "total_size") for segment in segments)
    for entry in entries:
        if entry["action"] in history.TAKES:
            reserved -= history.size(entry)
        elif entry["action"] in history.GIVES:
            reserved += history.size(entry)
    return max(0, reserved)


def shortener(entries: Entries) -> Callable[[str], str]:
    """Names the user's files without the folder that they all lie in."""
    stacks = Stacks()
    files = {
        frame["filename"]
        for entry in entries
        for frame in entry.get("frames") or []
        if stacks.kind_of_file(frame["filename"]) == "user"
    }
    folders = {os.path.dirname(file) for file in files if file.startswith("/")}
    if not folders:
        return lambda filename: filename
    root = os.path.join(os.path.commonpath(folders), "")
    if root == "/":
        return lambda filename: filename
    return lambda filename: filename.removeprefix(root)
