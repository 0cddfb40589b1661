"""Reads what the worker processes of this process hold for themselves in host memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def worker_bytes() -> int | None:
    """Private bytes of all child processes, once each; None where the system does not tell.

    A forked worker shares its parent's pages until one of them is written to.
    """
    pids = list(children())
    if not pids:
        return None
    found = [private_bytes(pid) for pid in pids]
    return sum(found) if any(found) else None


def children() -> Iterator[str]:
    try:
        tasks = list(Path(f"/proc/{os.getpid()}/task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            yield from (task / "children").read_text("ascii").split()
        except OSError:
            continue


def private_bytes(pid: str) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0
    rows = (line.split() for line in text.splitlines() if line.startswith("Private_"))
    return sum(int(row[1]) * 1024 for row in rows)
