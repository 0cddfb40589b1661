"""Lets several ranks of one script meet: what each is told, and how long it waits for others."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
# Seconds that a rank which is done waits for the others: they may still hear from it.
PATIENCE = 10.0
POLL = 0.02
ENDED = b'{"ending":'


def reserved_port() -> socket.socket:
    """A socket that keeps a port of this machine free for the first rank until it is closed."""
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """What `torchrun` sets; each rank is a machine of its own with one device."""
    told = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }
    if sys.platform in LOOPBACK:
        told["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
    return told


def stay_for(records: tuple[str, ...]) -> None:
    """Returns when every other rank has written its ending, or patience is at an end."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and not all(has_ended(path) for path in records):
        time.sleep(POLL)


def has_ended(record: str) -> bool:
    try:
        return ENDED in Path(record).read_bytes()
    except OSError:
        return False
