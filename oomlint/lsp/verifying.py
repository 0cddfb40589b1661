"""`oomlint verify` as a child of the server: told of each run, ended at will, read at its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from oomlint.lsp.lenses import Outcome

# What `verify --verbose` writes before each run.
RUNNING = "oomlint: running "
# Peaks that differ by less are told as equal.
PEAK_SHARE = 0.02
# Not `-m`, as for the worker. A server that was started with the interrupt ignored hands that on,
# and an interrupt is what makes `verify` end the scripts that it runs.
COMMAND = (
    "import signal, sys; sys.path[:] = filter(None, sys.path);"
    " signal.signal(signal.SIGINT, signal.default_int_handler);"
    " from oomlint.cli import main; main()"
)
# A child that was interrupted ends its scripts first.
PATIENCE_S = 10.0


class Failed(Exception):
    """Why nothing was measured: one sentence for the user."""


class Interrupted(Exception):
    """Somebody has ended the measurement."""


class Verifying:
    """One run of `oomlint verify`; `watch` is called in the event loop with what is being run."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, watch: Callable[[str], None]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.watch = watch
        self.ended: asyncio.Future[None] = self.loop.create_future()
        self.said: list[str] = []
        self.output = b""
        self.is_interrupted = False
        self.popen = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "verify", "--json", "--verbose", *arguments],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.popen.stdout is not None and self.popen.stderr is not None
        threading.Thread(target=self.listen, args=(self.popen.stderr,), daemon=True).start()
        threading.Thread(target=self.collect, args=(self.popen.stdout,), daemon=True).start()

    def listen(self, stream: IO[bytes]) -> None:
        """In its thread: what the script prints passes by."""
        for raw in stream:
            line = raw.decode("utf-8", "replace").rstrip()
            if line.startswith(RUNNING):
                self.tell(self.watch, line.removeprefix(RUNNING))
            elif line.startswith("error: "):
                self.said.append(line.removeprefix("error: "))

    def collect(self, stream: IO[bytes]) -> None:
        self.output = stream.read()
        self.popen.wait()
        self.tell(self.end)

    def tell(self, what: Callable[..., object], *arguments: object) -> None:
        # The loop is gone when the session has ended meanwhile.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(what, *arguments)

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    async def outcomes(self, text: str) -> list[Outcome]:
        """What was measured of `text`, at the end of the child. Raises Failed and Interrupted."""
        await self.ended
        if self.is_interrupted:
            raise Interrupted
        if self.popen.returncode not in (0, 1):
            why = self.said[-1] if self.said else f"it ended with {self.popen.returncode}"
            raise Failed(why)
        return list(outcomes_of(json.loads(self.output), text))

    def interrupt(self) -> None:
        """Makes the child end what it runs and itself, without waiting for that."""
        if self.popen.poll() is None and not self.is_interrupted:
            self.is_interrupted = True
            self.popen.send_signal(signal.SIGINT)
            killer = threading.Timer(PATIENCE_S, self.popen.kill)
            killer.daemon = True
            killer.start()


def outcomes_of(document: dict[str, Any], text: str) -> Iterable[Outcome]:
    for result in document["results"]:
        reason = result["reason"] + peaks(result["before"], result["after"])
        for found in result["findings"]:
            row = found["location"]["row"]
            yield Outcome(found["code"], row, result["verdict"], reason, text)


def peaks(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """The peaks of device memory where they differ and the reason may be about something else."""
    if before is None or after is None:
        return ""
    one, other = before["summary"]["peak"], after["summary"]["peak"]
    if not one or other is None or abs(one - other) < PEAK_SHARE * one:
        return ""
    first, last = (f"{peak / 2**20:.2f} MiB" for peak in (one, other))
    return f" (device memory at the peak: {first} before, {last} after)"
