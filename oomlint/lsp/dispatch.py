"""Puts questions to the worker process one after the other, the most urgent first."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import count
from typing import TYPE_CHECKING

from oomlint.lsp.process import Ended, Process
from oomlint.lsp.worker import Refused, Reply, Request

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
        self.process: Process | None = None
        self.waiting: list[Job] = []
        self.numbers = count()
        self.working: asyncio.Task[None] | None = None
        # Whether files may have changed since the last question.
        self.disk_changed = False
        self.pages: dict[str, str] = {}
        self.starting: asyncio.Task[Process] | None = None

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
        except Ended:
            self.stop()
            return Refused(f"the checking process died on {name}")
        except Exception as error:  # whoever waits must get an answer
            self.stop()
            return Refused(f"the checking process cannot be used: {type(error).__name__}: {error}")

    async def exchange(self, request: Request) -> FileResult | str | Refused:
        process = await self.started()
        changed, self.disk_changed = self.disk_changed, False
        process.send(replace(request, disk_changed=changed))
        reply: Reply = await process.read()
        if reply.leaving:
            self.stop()
            # The next question finds it warm.
            self.start()
        return reply.answer

    def start(self) -> asyncio.Task[Process]:
        """Starts the process, if there is none, without waiting for it."""
        if self.starting is None or self.process is None or not self.process.is_alive:
            self.process = Process()
            self.starting = asyncio.ensure_future(self.greeted(self.process))
            self.starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self.starting

    async def greeted(self, process: Process) -> Process:
        self.pages = await process.read() or self.pages
        return process

    async def started(self) -> Process:
        """A process that waits for questions. Raises Ended when it does not come so far."""
        return await asyncio.shield(self.start())

    async def rule_pages(self) -> dict[str, str]:
        """The page of each rule by code and by name; none when the process does not start."""
        if not self.pages:
            with contextlib.suppress(Ended, OSError):
                await self.started()
        return self.pages

    def stop(self) -> None:
        """Ends the process; the next question starts a new one."""
        if self.process is not None:
            self.process.kill()
        self.process = None
        self.disk_changed = False
