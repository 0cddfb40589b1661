"""Worker processes that check files; a worker that dies costs one file, never the run."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import RawArray
from typing import Any

from oomlint.settings import Settings

# On two cores all processes together stay below 600 MB: a worker that has grown past its share is
# replaced. A share is never less than what a few large files need.
WORKERS_BYTES = 440 * 1024 * 1024
LEAST_BYTES = 160 * 1024 * 1024
# A worker forked from a large process, one that has torch loaded, may still grow by so much.
LEAST_GROWTH = 64 * 1024 * 1024
# Who has not worked for so long has not grown enough to ask for his size, which takes a while too.
SECONDS_BETWEEN_SIZES = 0.02
# No file is worth more of the user's time; the largest real ones take a few seconds.
FILE_SECONDS = 60.0

# Nearly all that a file needs ends with it: a collection between two files finds what one in the
# middle walks over in vain. Only a file that makes more than the second number is interrupted.
OBJECTS_BETWEEN_FILES = 2_000_000
OBJECTS_WITHIN_FILE = 4_000_000

# Answers about files in which there is nothing to find come much faster than they can be sent one
# by one: those of this time go together.
SECONDS_BETWEEN_ANSWERS = 0.05

Work = Callable[[str, Settings], Any]
# What a worker does first; it is told whether to replace it costs next to nothing.
Begin = Callable[[bool], None]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Files of one project for one worker; `alone` marks the second try of a fatal file."""

    work: Work
    settings: Settings
    paths: tuple[str, ...]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Died:
    """A worker died twice on the same file, or was ended because it took too long."""

    reason: str
    too_slow: bool = False


@dataclass(slots=True)
class Worker:
    """One process; `at` is memory that it shares: which file it is at, and since when."""

    process: BaseProcess
    pipe: Connection
    at: Any
    chunk: Chunk | None = None
    # Answers that have come.
    done: int = 0


def available_jobs() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(
    chunks: Iterable[Chunk], jobs: int, begin: Begin | None = None
) -> Iterator[tuple[str, Any]]:
    """Yields (path, what its work returned or Died) as they come; `jobs` processes at most."""
    waiting = deque(chunks)
    jobs = max(1, min(jobs, len(waiting)))
    context = start_context()
    workers: list[Worker] = []
    try:
        while waiting or any(worker.chunk for worker in workers):
            while waiting and len(workers) < jobs:
                share = max(WORKERS_BYTES // jobs, LEAST_BYTES)
                workers.append(start(context, workers, share, begin))
            for worker in workers:
                if worker.chunk is None and waiting:
                    assign(worker, waiting.popleft(), waiting)
            yield from collect(workers, waiting)
    finally:
        for worker in workers:
            stop(worker)


def start_context() -> BaseContext:
    # A fork inherits the imported rules; elsewhere the platform's own default is the safe one.
    return multiprocessing.get_context("fork" if sys.platform == "linux" else None)


def start(
    context: BaseContext, workers: list[Worker], most_bytes: int, begin: Begin | None
) -> Worker:
    ours, theirs = multiprocessing.Pipe()
    is_forked = context.get_start_method() == "fork"
    # A forked child holds copies of these ends; it must close them to notice that we are gone.
    inherited = [worker.pipe for worker in workers] + [ours] if is_forked else []
    at = RawArray("d", 2)
    process = context.Process(  # type: ignore[attr-defined] # every concrete context has it
        target=serve, args=(theirs, inherited, most_bytes, at, is_forked, begin), daemon=True
    )
    with interrupts_held():
        process.start()
    theirs.close()
    return Worker(process, ours, at)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C waits: a worker would print a traceback before it has come to ignoring it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def assign(worker: Worker, chunk: Chunk, waiting: deque[Chunk]) -> None:
    worker.at[:] = 0, time.monotonic()
    try:
        worker.pipe.send(chunk)
    except OSError:
        # It died between two chunks; `collect` will see that and the chunk goes to another.
        waiting.appendleft(chunk)
        return
    worker.chunk, worker.done = chunk, 0


def collect(workers: list[Worker], waiting: deque[Chunk]) -> Iterator[tuple[str, Any]]:
    """Waits until a worker says something, and takes in all that is there."""
    by_pipe = {worker.pipe: worker for worker in workers}
    ready = wait(list(by_pipe), timeout=1.0)
    yield from give_up(workers, ready, waiting)
    for pipe in ready:
        worker = by_pipe[pipe]  # type: ignore[index] # only our own connections are waited for
        try:
            outcomes, leaving = worker.pipe.recv()
        except (EOFError, OSError):
            workers.remove(worker)
            yield from bury(worker, waiting)
            continue
        if worker.chunk is None:
            continue
        first, worker.done = worker.done, worker.done + len(outcomes)
        yield from zip(worker.chunk.paths[first : worker.done], outcomes, strict=True)
        rest = worker.chunk.paths[worker.done :]
        if leaving and rest:
            waiting.appendleft(replace(worker.chunk, paths=rest))
        if leaving or not rest:
            worker.chunk = None
        if leaving:
            workers.remove(worker)
            stop(worker)


def give_up(
    workers: list[Worker], ready: Sequence[object], waiting: deque[Chunk]
) -> Iterator[tuple[str, Any]]:
    """Ends workers that have been at one file for too long; only that file is lost."""
    latest = time.monotonic() - FILE_SECONDS
    for worker in [w for w in workers if w.chunk and w.at[1] < latest and w.pipe not in ready]:
        workers.remove(worker)
        worker.process.kill()
        for path, _ in bury(worker, waiting, last_try=True):
            yield path, Died(f"no answer within {FILE_SECONDS:.0f} s", too_slow=True)


def bury(
    worker: Worker, waiting: deque[Chunk], last_try: bool = False
) -> Iterator[tuple[str, Any]]:
    """Puts the rest of a dead worker's chunk back; the file it died on gets one try alone."""
    worker.pipe.close()
    worker.process.join()
    chunk = worker.chunk
    if chunk is None:
        return
    at = max(int(worker.at[0]), worker.done)
    killer, rest = chunk.paths[at], chunk.paths[worker.done : at] + chunk.paths[at + 1 :]
    if rest:
        waiting.appendleft(Chunk(chunk.work, chunk.settings, rest))
    if chunk.alone or last_try:
        yield killer, Died(death(worker.process.exitcode))
    else:
        waiting.appendleft(Chunk(chunk.work, chunk.settings, (killer,), alone=True))


def death(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"signal {-code}"
    return f"exit status {code}"


def stop(worker: Worker) -> None:
    worker.pipe.close()
    if worker.chunk is not None:
        worker.process.terminate()
    worker.process.join(1)
    if worker.process.is_alive():
        worker.process.kill()


def serve(
    pipe: Connection,
    inherited: list[Connection],
    most_bytes: int,
    at: Any,
    is_forked: bool,
    begin: Begin | None,
) -> None:
    """A worker's life: chunks in, outcomes out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends us
    for other in inherited:
        other.close()
    gc.freeze()
    if is_forked:
        # Whoever ends takes his garbage along, and another one comes at once.
        gc.disable()
    else:
        gc.set_threshold(OBJECTS_WITHIN_FILE, 20, 20)
    if begin is not None:
        begin(is_forked)
    most_bytes = max(most_bytes, resident_bytes() + LEAST_GROWTH)
    try:
        while True:
            if serve_chunk(pipe, pipe.recv(), most_bytes, at):
                return
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def serve_chunk(pipe: Connection, chunk: Chunk, most_bytes: int, at: Any) -> bool:
    """Answers for the files of a chunk, in order; whether the worker has to leave."""
    outcomes: list[Any] = []
    sent = asked = time.monotonic()
    for index, path in enumerate(chunk.paths):
        now = time.monotonic()
        if now - asked > SECONDS_BETWEEN_SIZES:
            asked = now
            if resident_bytes() > most_bytes:
                # Said with the last answer: who leaves without a word takes the rest along.
                pipe.send((outcomes, True))
                return True
        if outcomes and now - sent > SECONDS_BETWEEN_ANSWERS:
            pipe.send((outcomes, False))
            outcomes, sent = [], now
        at[:] = index, now
        outcomes.append(chunk.work(path, chunk.settings))
        if gc.isenabled() and gc.get_count()[0] > OBJECTS_BETWEEN_FILES:
            gc.collect()
    leaving = resident_bytes() > most_bytes
    pipe.send((outcomes, leaving))
    return leaving


def resident_bytes() -> int:
    """What this process holds in memory now; 0 where the system does not say."""
    try:
        with open("/proc/self/statm") as state:
            return int(state.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
