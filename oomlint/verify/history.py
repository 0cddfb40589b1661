"""Replays what CUDA's allocator recorded, in torch's format, into an account of memory by line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from oomlint.verify.holdings import (
    ACTIVATION,
    GRADIENT,
    OPTIMIZER_STATE,
    OTHER,
    PARAMETER,
    TEMPORARY,
    WORKSPACE,
)
from oomlint.verify.ledger import Entry, Ledger
from oomlint.verify.sizes import MIN_BLOCK, up

# What stands for a line where the recording knows none.
BEFORE = "(before the recording)"
BACKWARD = "(backward pass)"  # CUDA runs it on a thread of its own, without a Python stack

# Metadata of what is allocated only to measure.
MEASURING = "oomlint measures"

TAKES = ("segment_alloc", "segment_map")
GIVES = ("segment_free", "segment_unmap")
# The first of the two that comes ends a block; the second finds it gone.
ENDS = ("free_requested", "free_completed", "free")

# Packages and Python itself, wherever they were installed on the machine that recorded.
LIBRARY = re.compile(
    r"^<(?!ipython)|/(?:site|dist)-packages/|/lib/python\d|/torch/(?:nn|_)|/torchinductor_"
)
OPTIMIZER = re.compile(r"(?:^|/)torch/optim/")
STEPS = ("step", "wrapper")
MODULE = re.compile(r"(?:^|/)torch/nn/modules/module\.py$")
WORKSPACES = re.compile(r"^at::cuda::\w*Workspace")  # where C++ frames were recorded
INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")

Frames = list[dict[str, Any]]


class Stacks:
    """What stacks say about a block; every file name is looked at once."""

    def __init__(self, names: Callable[[str], str] | None = None, own: str = "\0") -> None:
        """`names` shortens the names of the user's files; those that begin with `own` are none."""
        self.names = names or (lambda filename: filename)
        self.own = own
        self.files: dict[str, str] = {}  # user, library, or no Python
        self.functions: dict[str, str] = {}  # the function around a line

    def kind_of_file(self, filename: str) -> str:
        found = self.files.get(filename)
        if found is None:
            python = filename.endswith(".py") or filename.startswith("<ipython")
            library = filename.startswith(self.own) or LIBRARY.search(filename)
            found = "library" if library else "user"
            found = self.files[filename] = found if python else "none"
        return found

    def line(self, frames: Frames) -> str:
        """The innermost line of the user's code; else of a library's Python."""
        library = None
        for frame in frames:
            kind = self.kind_of_file(frame["filename"])
            if kind == "user":
                return self.named(frame, self.names(frame["filename"]))
            if kind == "library" and library is None:
                library = frame
        if library is not None:
            return self.named(library, INSTALLED.sub("", library["filename"]))
        return BACKWARD

    def named(self, frame: dict[str, Any], name: str) -> str:
        line = f"{name}:{int(frame['line'])}"
        self.functions.setdefault(line, str(frame["name"]))
        return line

    def guess(self, frames: Frames) -> str:
        """What a block is for as far as the stack tells while it is made."""
        if any(WORKSPACES.match(frame["name"]) for frame in frames):
            return WORKSPACE
        if not any(self.kind_of_file(frame["filename"]) != "none" for frame in frames):
            return TEMPORARY
        if in_step(frames):
            return TEMPORARY
        if any(MODULE.search(f["filename"]) and f["name"] == "_apply" for f in frames):
            return PARAMETER
        return ACTIVATION


def in_step(frames: Frames) -> bool:
    """Whether an optimizer's step is running: torch's own, or one that torch has wrapped."""
    return any(f["name"] in STEPS and OPTIMIZER.search(f["filename"]) for f in frames)


def replay(entries: Iterable[dict[str, Any]], ledger: Ledger, stacks: Stacks) -> None:
    """Puts entries of `device_traces` into the ledger.

    A recording knows what was requested; a block has at least that, rounded up to 512 bytes.
    Raises KeyError, TypeError or ValueError where an entry is not of torch's format.
    """
    for entry in entries:
        apply(entry, ledger, stacks)


def apply(entry: dict[str, Any], ledger: Ledger, stacks: Stacks) -> None:
    action = entry["action"]
    if action == "alloc":
        if entry.get("user_metadata") == MEASURING:
            return
        frames = entry.get("frames") or []
        made = entry_of(size(entry), stacks.line(frames), stacks.guess(frames))
        ledger.gain(entry["addr"], made)
    elif action in ENDS:
        ledger.lose(entry["addr"])
    elif action in TAKES:
        ledger.reserve(ledger.reserved + size(entry))
    elif action in GIVES:
        ledger.reserve(max(0, ledger.reserved - size(entry)))


def size(entry: dict[str, Any], name: str = "size") -> int:
    value = entry[name]
    if type(value) is not int or not 0 <= value < 1 << 60:
        raise ValueError(f"{name} is no number of bytes")
    return value


def entry_of(requested: int, line: str, kind: str) -> Entry:
    return Entry(up(requested, MIN_BLOCK), line, kind, requested)


def settle_step(ledger: Ledger) -> None:
    """A step ends: what it made and kept is a gradient or the optimizer's state."""
    for key, entry in ledger.live.items():
        if entry.kind == TEMPORARY:
            ledger.label(key, GRADIENT if entry.line == BACKWARD else OPTIMIZER_STATE)


def opening(
    entries: Iterable[dict[str, Any]], end: dict[int, tuple[int, Frames]], stacks: Stacks
) -> dict[int, Entry]:
    """What was alive before the recording, by address.

    That is what the recording frees without having seen it made, and what is alive at its end,
    `end` by address with size and stack, without ever being made.
    """
    made: set[int] = set()
    found: dict[int, Entry] = {}
    for entry in entries:
        action = entry["action"]
        if action == "alloc":
            made.add(entry["addr"])
        elif action in ENDS and entry["addr"] not in made:
            found.setdefault(entry["addr"], entry_of(size(entry), BEFORE, OTHER))
    for address, (requested, frames) in end.items():
        if address in made or address in found:
            continue
        line = stacks.line(frames) if frames else BEFORE
        kind = stacks.guess(frames) if frames else OTHER
        found[address] = entry_of(requested, line, OTHER if kind == TEMPORARY else kind)
    return found
