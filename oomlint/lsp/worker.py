"""Checks in a process of its own: parsing holds the interpreter lock, and the editor would wait."""

from __future__ import annotations

import asyncio
import os
import pickle
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomlint.errors import OomlintError
from oomlint.source import Source

if TYPE_CHECKING:
    from oomlint.linter import FileResult

HEADER = struct.Struct("!Q")
# A text that keeps the worker busy for longer is given up.
TIME_LIMIT_S = 60.0
# Not `-m`: that would put the working folder, which is the user's, before the installed packages.
COMMAND = (
    "import sys; sys.path[:] = filter(None, sys.path); from oomlint.lsp.worker import main; main()"
)


@dataclass(frozen=True, slots=True)
class Request:
    """A text to check or, with `fix`, to apply the safe fixes to."""

    path: Path
    text: str
    fix: bool = False
    # Whether other files may have come, gone or changed since the last request.
    disk_changed: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no answer: one sentence for the user."""

    reason: str


def answer(request: Request) -> FileResult | str | Refused:
    """The result of a check, or the fixed text; excluded files have nothing to show."""
    from oomlint.analysis.project import forget_files
    from oomlint.fixer import fix_text
    from oomlint.linter import FileResult, check_source
    from oomlint.settings import settings_for

    if request.disk_changed:
        forget_files()
    source = Source(request.path, request.text)
    try:
        settings = settings_for(request.path)
        if any(pattern.covers(str(request.path)) for pattern in settings.exclude):
            return request.text if request.fix else FileResult(request.path)
        if request.fix:
            return fix_text(source, settings, unsafe=False).text
        return check_source(source, settings)
    except OomlintError as error:
        return Refused(str(error))


def main() -> None:
    """Answers requests from stdin until it is closed, which the end of the server does too."""
    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # What a rule of a third party prints must not get between the answers.
    os.dup2(2, 1)
    while header := requests.read(HEADER.size):
        request = pickle.loads(requests.read(HEADER.unpack(header)[0]))
        try:
            reply = answer(request)
        except Exception as error:  # a defect in one rule must not end the worker
            reason = f"oomlint failed on {request.path.name}: {type(error).__name__}: {error}"
            reply = Refused(reason)
        answers.write(frame(reply))
        answers.flush()


def frame(value: object) -> bytes:
    body = pickle.dumps(value)
    return HEADER.pack(len(body)) + body


class Worker:
    """One worker process, started when first needed and again whenever it died or hung."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.turn = asyncio.Lock()

    async def ask(self, request: Request) -> FileResult | str | Refused:
        """The worker's answer; a text that kills the worker or keeps it too long is refused."""
        async with self.turn:
            try:
                return await asyncio.wait_for(self.exchange(request), TIME_LIMIT_S)
            except asyncio.TimeoutError:
                self.stop()
                return Refused(f"oomlint gave up on {request.path.name} after {TIME_LIMIT_S:.0f} s")
            except (asyncio.IncompleteReadError, ConnectionError):
                self.stop()
                return Refused(f"the checking process died on {request.path.name}")
            except asyncio.CancelledError:
                # Half an answer may be under way, so the pipe cannot be used again.
                self.stop()
                raise

    async def exchange(self, request: Request) -> FileResult | str | Refused:
        if self.process is None or self.process.returncode is not None:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-c",
                COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        requests, answers = self.process.stdin, self.process.stdout
        assert requests is not None and answers is not None
        requests.write(frame(request))
        await requests.drain()
        (size,) = HEADER.unpack(await answers.readexactly(HEADER.size))
        result: FileResult | str | Refused = pickle.loads(await answers.readexactly(size))
        return result

    def stop(self) -> None:
        """Ends the process; the next question starts a new one."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        self.process = None
