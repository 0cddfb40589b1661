"""The worker process as the server's event loop sees it: frames in, frames out, an end."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import subprocess
import sys
import threading
from typing import Any

from oomlint.lsp.worker import COMMAND, HEADER, frame


class Ended(Exception):
    """The process is no more."""


class Process:
    """A process and the thread that listens to it.

    asyncio's own subprocesses hang when a session ends while one of them starts.
    """

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.popen = subprocess.Popen(
            [sys.executable, "-c", COMMAND], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.has_ended = False
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """In its thread: hands over the bodies of frames, and an empty one at the end."""
        stream = self.popen.stdout
        assert stream is not None
        # The loop may be gone when this process is about to end.
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            while header := stream.read(HEADER.size):
                (size,) = HEADER.unpack(header)
                self.hand_over(stream.read(size))
        with contextlib.suppress(RuntimeError):
            self.hand_over(b"")
        self.popen.wait()

    def hand_over(self, body: bytes) -> None:
        self.loop.call_soon_threadsafe(self.frames.put_nowait, body)

    async def read(self) -> Any:
        """What the process says next. Raises Ended."""
        body = b"" if self.has_ended else await self.frames.get()
        if not body:
            self.has_ended = True
            raise Ended
        return pickle.loads(body)

    def send(self, value: object) -> None:
        """Raises Ended. The process must be waiting: it reads what the pipe does not hold."""
        stream = self.popen.stdin
        assert stream is not None
        try:
            stream.write(frame(value))
            stream.flush()
        except (OSError, ValueError):
            self.has_ended = True
            raise Ended from None

    @property
    def is_alive(self) -> bool:
        return not self.has_ended and self.popen.poll() is None

    def kill(self) -> None:
        self.has_ended = True
        self.popen.kill()
