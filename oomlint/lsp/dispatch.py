"""Puts questions to the worker process one after the other, the most urgent first."""

from __future__ import annotations

import asyncio
import heapq
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING, Any

from oomlint.lsp.worker import COMMAND, HEADER, Refused, Reply, Request, frame

if TYPE_CHECKING:
    from oomlint.linter import FileResult

# A text that keeps the worker busy for longer is given up.
TIME_LIMIT_S = 60.0
# An answer that nobody waits for any more may take this long before its process is ended: starting
# another one costs about as much.
STALE_LIMIT_S = 2.0


class Urgency(IntEnum):
    """What is answered first, when several questions wait."""

    ASKED = 0  # the client waits for a reply
    TYPED = 1
    AROUND = 2  # something else on the disk has changed


@dataclass(frozen=True, slots=True)
class Stale:
    """Nobody wants the answer any more."""


@dataclass(order=True, slots=True)
class Job:
    urgency: Urgency
    number: int
    request: Request = field(compare=False)
    is_wanted: Callable[[], bool] = field(compare=False)
    answer: asyncio.Future[FileResult | str | Refused | Stale] = field(compare=False)

    @property
    def stale(self) -> bool:
        return self.answer.cancelled() or not self.is_wanted()


class Worker:
    """One worker process, started when first needed and again whenever it died or hung."""

    def __init__(self) -> None:
        self.process: asyncio.subprocess.Process | None = None
        self.waiting: list[Job] = []
        self.numbers = count()
        self.working: asyncio.Task[None] | None = None
        # Whether files may have changed since the last question.
        self.disk_changed = False
        self.pages: dict[str, str] = {}
        self.starting: asyncio.Task[None] | None = None

    async def ask(
        self, request: Request, urgency: Urgency, is_wanted: Callable[[], bool] = lambda: True
    ) -> FileResult | str | Refused | Stale:
        """The worker's answer; a text that kills the worker or keeps it too long is refused.

        A question that is no longer wanted when its turn comes is never put.
        """
        answer = asyncio.get_running_loop().create_future()
        heapq.heappush(self.waiting, Job(urgency, next(self.numbers), request, is_wanted, answer))
        if self.working is None or self.working.done():
            self.working = asyncio.ensure_future(self.work())
        result: FileResult | str | Refused | Stale = await answer
        return result

    async def work(self) -> None:
        while self.waiting:
            job = heapq.heappop(self.waiting)
            result = Stale() if job.stale else await self.result(job)
            if not job.answer.done():
                job.answer.set_result(result)

    async def result(self, job: Job) -> FileResult | str | Refused | Stale:
        name = job.request.path.name
        exchange = asyncio.ensure_future(self.exchange(job.request))
        latest = asyncio.get_running_loop().time() + TIME_LIMIT_S
        while not (await asyncio.wait({exchange}, timeout=STALE_LIMIT_S))[0]:
            too_slow = asyncio.get_running_loop().time() > latest
            if not too_slow and not job.stale:
                continue
            # Half an answer may be under way, so the pipe cannot be used again.
            self.stop()
            exchange.cancel()
            await asyncio.wait({exchange})
            reason = f"oomlint gave up on {name} after {TIME_LIMIT_S:.0f} s"
            return Refused(reason) if too_slow else Stale()
        try:
            return exchange.result()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.stop()
            return Refused(f"the checking process died on {name}")
        except Exception as error:  # whoever waits must get an answer
            self.stop()
            return Refused(f"the checking process cannot be used: {type(error).__name__}: {error}")

    async def exchange(self, request: Request) -> FileResult | str | Refused:
        await self.started()
        process = self.process
        assert process is not None and process.stdin is not None
        changed, self.disk_changed = self.disk_changed, False
        process.stdin.write(frame(replace(request, disk_changed=changed)))
        await process.stdin.drain()
        reply: Reply = await read(process)
        if reply.leaving:
            await process.wait()
            self.stop()
            # The next question finds it warm.
            self.start()
        return reply.answer

    def start(self) -> None:
        """Starts the process, if there is none, without waiting for it."""
        if self.starting is None or self.starting.done():
            self.starting = asyncio.ensure_future(self.started_afresh())
            self.starting.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def started(self) -> None:
        """Waits until there is a process that answers."""
        self.start()
        assert self.starting is not None
        await asyncio.shield(self.starting)

    async def started_afresh(self) -> None:
        if self.process is not None and self.process.returncode is None:
            return
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.pages = await read(self.process) or self.pages

    def stop(self) -> None:
        """Ends the process; the next question starts a new one."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        self.process = None
        self.disk_changed = False


async def read(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    (size,) = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
    return pickle.loads(await process.stdout.readexactly(size))
