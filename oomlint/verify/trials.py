"""Finds stand-ins that a function runs with: each guess is tried in a fork of this process."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any, NoReturn

import torch

from oomlint.verify.stand_ins import Guess
from oomlint.verify.values_by_name import VOCABULARY

# Seconds of the processor that one guess may take, and seconds on the clock.
ONE, WALL = 10.0, 30.0
# So many guesses with one and the same failure say that no guess will do.
ENOUGH = 10
# So many failures in a row may say what a guess lacks.
HINTS = 2
# A row that was reached so often is in a loop that goes round.
ROUND = 3
POLL = 0.01
RETURNED, STOPPED, RAISED, HUNG, DIED = "returned", "stopped", "raised", "hung", "died"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call with one guess went: how often the wanted rows were reached, and its end."""

    end: str
    hits: dict[str, int] = field(default_factory=dict)
    breadth: int = 0  # rows of the file that ran at all
    message: str = ""
    row: int | None = None

    def reached(self, rows: Iterable[int], times: int = 1) -> bool:
        return all(self.hits.get(str(row), 0) >= times for row in rows)

    def is_good(self, rows: tuple[int, ...]) -> bool:
        if self.end == HUNG:  # a run stops by itself after its steps
            return bool(rows) and self.reached(rows, ROUND)
        return self.end in (RETURNED, STOPPED) and self.reached(rows)

    def will_do(self, rows: tuple[int, ...]) -> bool:
        """Some of the rows were reached and it came to an end, or all again and again."""
        ended = self.end in (RETURNED, STOPPED) and (bool(self.hits) or not rows)
        return ended or (bool(rows) and self.reached(rows, ROUND))

    def rank(self, rows: tuple[int, ...]) -> tuple[bool, int, int]:
        return self.will_do(rows), len(self.hits), self.breadth


@dataclass(frozen=True, slots=True)
class Trial:
    """What every guess is tried on."""

    call: Callable[[Guess], Any]
    file: str
    rows: tuple[int, ...]
    recorder: Any
    note: Callable[[BaseException], tuple[str, int | None]]
    patience: float  # seconds for all guesses together


def first_that_runs(trial: Trial, guesses: Iterable[Guess]) -> tuple[Guess, Outcome]:
    """The first guess with which every row is reached, or the one that came furthest."""
    deadline = time.monotonic() + trial.patience
    best: tuple[Guess, Outcome] | None = None
    failures: Counter[tuple[str, int | None]] = Counter()
    for guess in guesses:
        outcome = tried(trial, guess)
        for _ in range(HINTS):
            hinted = better_by(guess, outcome.message)
            again = tried(trial, hinted) if hinted != guess else outcome
            if again.rank(trial.rows) <= outcome.rank(trial.rows):
                break
            guess, outcome = hinted, again
        failures[outcome.message, outcome.row] += 1
        if best is None or outcome.rank(trial.rows) > best[1].rank(trial.rows):
            best = guess, outcome
        if outcome.is_good(trial.rows) or time.monotonic() > deadline:
            break
        if len(failures) == 1 and failures.total() >= ENOUGH:
            break
    assert best is not None
    return best


# What torch says of an output that does not have its target's shape.
SAME_SIZE = re.compile(r"[Tt]arget size \(torch\.Size\(\[([\d, ]+)\]\)\)")
SAME_BATCH = re.compile(
    r"Expected input batch_size \(\d+\) to match target batch_size \((\d+)\)"
    r"|Expected index \[(\d+), 1\] to be no larger than self"
)
SAME_REST = re.compile(r"Expected target size \[(\d+), \d+\], got \[\d+, (\d+)\]")


def better_by(guess: Guess, message: str) -> Guess:
    """The guess with what a failure's message says that it lacks."""
    if "process group has not been initialized" in message:
        return replace(guess, group=True)
    shape = shape_told(message)
    return replace(guess, shape=shape) if shape else guess


def shape_told(message: str) -> tuple[int, ...]:
    """The shape that an output should have had by what torch says; empty where it does not say."""
    if found := SAME_SIZE.search(message):
        return tuple(int(size) for size in found[1].split(","))
    if found := SAME_BATCH.search(message):
        return int(found[1] or found[2]), VOCABULARY
    if found := SAME_REST.search(message):
        return int(found[1]), VOCABULARY, int(found[2])
    return ()


def tried(trial: Trial, guess: Guess) -> Outcome:
    ears, mouth = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(ears)
        attempt(trial, guess, mouth)
    os.close(mouth)
    try:
        deadline = time.monotonic() + WALL + 2
        while os.waitpid(pid, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return Outcome(HUNG, message=f"does not end within {WALL:g} s")
            time.sleep(POLL)
        os.set_blocking(ears, False)
        try:
            said = os.read(ears, 1 << 16)
        except BlockingIOError:  # a process that it started holds the other end
            said = b""
    finally:
        os.close(ears)
    if not said:
        return Outcome(DIED, message="ends its process")
    return Outcome(**json.loads(said))


def attempt(trial: Trial, guess: Guess, mouth: int) -> NoReturn:
    """One call in a process of its own, which nobody hears or sees."""
    hits: Counter[str] = Counter()
    seen: set[int] = set()
    wanted = {*trial.rows}

    def tell(end: str, message: str = "", row: int | None = None) -> NoReturn:
        sys.settrace(None)
        outcome = Outcome(end, dict(hits), len(seen), message, row)
        os.write(mouth, json.dumps(asdict(outcome)).encode()[: 1 << 16])
        os._exit(0)

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return watch if frame.f_code.co_filename == trial.file else None

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            seen.add(frame.f_lineno)
            if frame.f_lineno in wanted:
                hits[str(frame.f_lineno)] += 1
        return watch

    def stop() -> None:
        if wanted <= {int(row) for row in hits}:
            tell(STOPPED)

    silence()

    def give_up(number: int, frame: FrameType | None) -> None:
        while frame is not None and frame.f_code.co_filename != trial.file:
            frame = frame.f_back
        tell(HUNG, f"does not end within {ONE:g} s", frame.f_lineno if frame else None)

    # A machine that is busy with other things is no fault of a guess.
    for number, clock, seconds in (
        (signal.SIGALRM, signal.ITIMER_REAL, WALL),
        (signal.SIGPROF, signal.ITIMER_PROF, ONE),
    ):
        signal.signal(number, give_up)
        signal.setitimer(clock, seconds)
    torch.set_num_threads(1)
    recorder = trial.recorder
    recorder.process, recorder.stop, recorder.emit = os.getpid(), stop, lambda step: None
    recorder.wanted = ROUND
    device = getattr(recorder.meter, "device", None)
    if device is not None:
        device.poisoned = False  # the process that it was forked from does not go on
    try:
        sys.settrace(enter)
        trial.call(guess)
    except BaseException as error:
        sys.settrace(None)
        tell(RAISED, *trial.note(error))
    tell(RETURNED)


def silence() -> None:
    """What a guess prints is of no interest; Python's own buffers are emptied into nothing, too."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)
