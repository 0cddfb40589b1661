"""Measures statements in processes of their own, and keeps the figures that each came to."""

from __future__ import annotations

import argparse
import contextlib
import gc
import inspect
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

DEVICES = ("emulated", "cuda")
Rows = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of one statement; where the statement gives it too, whether the two agree."""

    name: str
    device: str
    torch: str
    what: str
    value: str
    claimed: str = ""
    holds: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What measuring a statement came to; `error` is the traceback where it failed."""

    name: str
    figures: tuple[Figure, ...]
    error: str = ""


def paragraphs(docstring: str | None) -> list[str]:
    return [" ".join(part.split()) for part in inspect.cleandoc(docstring or "").split("\n\n")]


def read_figures(text: str) -> list[Figure]:
    return [Figure(*line.split("\t")) for line in text.splitlines()[1:]]


def format_figures(figures: Iterable[Figure], order: Iterable[str]) -> str:
    """In the order of the statements, of each first what the emulated device showed."""
    places = {name: place for place, name in enumerate(order)}
    ordered = sorted(figures, key=lambda one: (places[one.name], DEVICES.index(one.device)))
    rows = [tuple(field.name for field in fields(Figure)), *map(astuple, ordered)]
    return "".join("\t".join(cells).rstrip("\t") + "\n" for cells in rows)


def merged(old: Iterable[Figure], new: Iterable[Figure], known: Iterable[str]) -> list[Figure]:
    """The newest figures of each statement and device; those of statements that are gone go."""
    new, known = list(new), set(known)
    again = {(one.name, one.device) for one in new}
    kept = [one for one in old if (one.name, one.device) not in again and one.name in known]
    return kept + new


def measured(script: str | Path, names: Iterable[str], device: str) -> Iterator[Outcome]:
    """Runs a script's own `--child`, in which each statement is a fork of one process."""
    wanted = list(names)
    command = [sys.executable, str(script), "--child", "--device", device, *wanted]
    # Sums over several threads are added in another order, and figures would differ.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        for line in child.stdout:
            name, torch, rows, error = json.loads(line)
            wanted.remove(name)
            figures = (Figure(name, device, torch, *row) for row in rows)
            yield Outcome(name, tuple(figures), error)
    for name in wanted:
        yield Outcome(name, (), "its process ended without a word")


def serve(names: Iterable[str], measure: Callable[[str], Rows]) -> None:
    """The child's side: loads torch once, and measures each statement in a fork."""
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    import torch

    for name in names:
        pid = os.fork()
        if pid == 0:
            answer(name, torch, measure)
        os.waitpid(pid, 0)


def answer(name: str, torch: Any, measure: Callable[[str], Rows]) -> NoReturn:
    rows: Rows = []
    error = ""
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a program prints is not the answer
    try:
        torch.manual_seed(0)
        gc.collect()
        gc.freeze()  # what torch itself made need not be searched again and again
        rows = measure(name)
    except BaseException:
        error = traceback.format_exc()
    with contextlib.suppress(OSError):
        os.write(out, json.dumps([name, torch.__version__, rows, error]).encode() + b"\n")
    os._exit(0)


def emulate(device: str, capacity: int | None = None) -> None:
    """Makes this process one with such a device of so many bytes."""
    import torch

    if device == "emulated":
        from oomlint.verify import emulation

        emulation.install(capacity)
    elif capacity is not None:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(capacity / total)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of statements, by name, with the sentence of each, and the table it is made of."""

    script: Path
    kept: Path
    page: Path
    statements: Mapping[str, str]
    draw: Callable[[list[Figure]], str]
    measure: Callable[[str, str], Rows]

    def figures(self) -> list[Figure]:
        return read_figures(self.kept.read_text("utf-8")) if self.kept.exists() else []

    def write(self, figures: Iterable[Figure]) -> None:
        kept = merged(self.figures(), figures, self.statements)
        self.kept.write_text(format_figures(kept, self.statements), encoding="utf-8")
        self.page.write_text(self.draw(self.figures()), encoding="utf-8")


def command(page: Page, description: str | None, failed: str) -> int:
    """The command line of such a page; `failed` is what is said of a statement that raises."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(page.statements))
    parser.add_argument("--device", default="emulated", choices=DEVICES)
    parser.add_argument("--write", action="store_true", help=f"keep them in {page.page.name}")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in page.statements]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; known are {', '.join(page.statements)}")
    names = options.names or list(page.statements)
    if options.child:
        serve(names, lambda name: page.measure(name, options.device))
        return 0
    figures: list[Figure] = []
    status = 0
    for outcome in measured(page.script, names, options.device):
        print(page.statements[outcome.name], flush=True)
        if outcome.error:
            print(f"  {failed}: {outcome.error}", file=sys.stderr)
            status = 1
        for one in outcome.figures:
            claimed = f" (claimed: {one.claimed}; holds: {one.holds})" if one.claimed else ""
            print(f"  {one.what}: {one.value}{claimed}", flush=True)
        figures += outcome.figures
    if options.write and not status:
        page.write(figures)
    return status
