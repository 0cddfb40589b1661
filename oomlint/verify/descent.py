"""The processes that a run has started, whatever sessions and parents they moved to."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DEAD = "ZX"
# Seconds in which processes that are being killed may start others.
PATIENCE = 2.0
POLL = 0.01


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    session: int
    started: int  # in clock ticks since the boot: a number that is used again is another process
    resident: int  # bytes


def processes() -> list[Process]:
    """All that run now; none where there is no /proc."""
    found = []
    page = os.sysconf("SC_PAGE_SIZE")
    try:
        entries = os.listdir("/proc")
    except OSError:
        return []
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_bytes().decode("ascii", "replace")
        except OSError:
            continue
        values = stat.rpartition(")")[2].split()
        if values[0] not in DEAD:
            facts = (int(values[at]) for at in (1, 3, 19, 21))
            parent, session, started, pages = facts
            found.append(Process(int(entry), parent, session, started, pages * page))
    return found


class Descent:
    """Follows what descends from some processes, each the leader of a session of its own."""

    def __init__(self, roots: Iterable[int]) -> None:
        self.roots = frozenset(roots)
        self.known: set[tuple[int, int]] = set()

    def look(self) -> tuple[Process, ...]:
        """What of it runs now: children of those that are known, and members of the sessions."""
        everything = processes()
        members = {
            one.pid
            for one in everything
            if one.pid in self.roots
            or one.session in self.roots
            or (one.pid, one.started) in self.known
        }
        count = 0
        while count != len(members):
            count = len(members)
            members.update(one.pid for one in everything if one.parent in members)
        found = tuple(one for one in everything if one.pid in members)
        self.known.update((one.pid, one.started) for one in found)
        return found

    def end(self) -> None:
        """Kills all of it, and what it starts while it is being killed."""
        deadline = time.monotonic() + PATIENCE
        while True:
            for root in self.roots:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(root, signal.SIGKILL)
            left = self.look()
            for one in left:
                kill(one.pid)
            if not left or time.monotonic() > deadline:
                return
            time.sleep(POLL)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Linux: this process ends when the one that started it does."""
    set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
    adopt_orphans()


def adopt_orphans() -> None:
    """Linux: what descends from this process and loses its parent becomes its own child."""
    set_process(PR_SET_CHILD_SUBREAPER, 1)


def set_process(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value)


def end_children(but: Iterable[int] = ()) -> None:
    """Kills what this process has started, directly or not, but for some children and theirs."""
    own, kept = os.getpid(), set(but)
    try:
        tasks = list(Path(f"/proc/{own}/task").iterdir())
        children = {int(pid) for task in tasks for pid in (task / "children").read_bytes().split()}
        if children <= kept:
            return
    except OSError:
        pass  # a kernel that does not tell is asked about every process
    found = {own}
    everything = [one for one in processes() if one.pid not in kept]
    count = 0
    while count != len(found):
        count = len(found)
        found.update(one.pid for one in everything if one.parent in found)
    for pid in found - {own}:
        kill(pid)
