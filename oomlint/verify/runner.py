"""Starts children with limits on time and memory, and turns what they leave into runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import oomlint
from oomlint.verify import launch, record, warm
from oomlint.verify.child import Order, write_order
from oomlint.verify.descent import Descent
from oomlint.verify.holdings import from_entry
from oomlint.verify.instrument import Region
from oomlint.verify.probe import Probe, notes_from
from oomlint.verify.record import Ending, Run
from oomlint.verify.targets import Target, script

PACKAGE_ROOT = str(Path(oomlint.__file__).resolve().parent.parent)
MAX_PROCESSES = 256
POLL = 0.05
# Of the time for a run, what a search for stand-ins may take at most, and seconds.
PATIENT_SHARE, ALL = 0.6, 90.0
GOOD = (record.STOPPED, record.FINISHED)

# The folder of the package comes last, so that nothing of it can shadow a script's modules.
BOOT = (
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]\n"
    "sys.path.append(sys.argv[1])\n"
    "from oomlint.verify.child import main\n"
    "main(sys.argv[2])\n"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may do: optimizer steps, seconds of wall time, bytes of resident memory.

    Unless `writes` is set, what the script writes stays in a temporary folder. More than one rank
    are so many processes with the environment that `torchrun` gives them.
    """

    steps: int = 6
    seed: int = 0
    timeout: float = 300.0
    memory: int | None = None
    device: str = "auto"
    capacity: int | None = None
    gpu: str | None = None
    writes: bool = False
    python: str = sys.executable
    ranks: int = 1
    afresh: bool = False  # every run loads torch itself, which takes seconds


@dataclass(frozen=True, slots=True)
class StandIns:
    """What stands in for a function's parameters: the plan, and the guess that it runs with."""

    plan: dict[str, Any]
    guess: dict[str, Any]


Child = subprocess.Popen[bytes] | warm.Forked


def run_text(
    path: Path,
    text: str,
    argv: tuple[str, ...],
    region: Region | None,
    limits: Limits,
    folder: Path,
    iterations: bool = True,
    quiet_stdout: bool = False,
    probe: Probe | None = None,
) -> Run:
    """Runs `text` in place of the script at `path`, as `run_target` does."""
    return run_target(
        script(path, argv), text, region, limits, folder, iterations, quiet_stdout, probe
    )


def run_target(
    target: Target,
    text: str,
    region: Region | None,
    limits: Limits,
    folder: Path,
    iterations: bool = True,
    quiet_stdout: bool = False,
    probe: Probe | None = None,
    stand_ins: StandIns | None = None,
) -> Run:
    """Runs a target with `text` in place of its file's and returns what was measured.

    `folder` is an empty temporary folder for this run; nothing is written beside the file.
    `iterations` allows the region's iterations to be the steps where nothing is trained in it.
    With `quiet_stdout` the child's standard output goes to standard error.
    """
    order = Order(
        target=target,
        text="",
        out="",
        steps=limits.steps,
        seed=limits.seed,
        device=limits.device,
        capacity=limits.capacity,
        gpu=limits.gpu,
        writes=limits.writes,
        region=region,
        iterations=iterations,
        probe=probe,
        plan=stand_ins.plan if stand_ins else None,
        guess=stand_ins.guess if stand_ins else None,
    )
    ranks, ending = carry_out(order, text, limits, folder, quiet_stdout)
    return run_of(ranks, ending, limits)


def find_guess(
    target: Target,
    text: str,
    plan: dict[str, Any],
    limits: Limits,
    folder: Path,
) -> tuple[dict[str, Any] | None, Ending]:
    """Tries, on the emulated device, what can stand in for a function's parameters."""
    seed, writes = limits.seed, limits.writes
    order = Order(target, "", "", limits.steps, seed, "emulated", writes=writes, plan=plan)
    order = replace(order, patience=min(ALL, PATIENT_SHARE * limits.timeout))
    ranks, ending = carry_out(order, text, replace(limits, ranks=1), folder, True)
    run = run_of(ranks, ending, limits)
    return ranks[0][0].get("guess"), run.ending


Left = tuple[dict[str, Any], tuple[record.Step, ...], Ending | None]


def carry_out(
    order: Order, text: str, limits: Limits, folder: Path, quiet_stdout: bool
) -> tuple[list[Left], Ending | None]:
    """Has each rank carry out an order with a text; what they left, and what only we know."""
    copy = folder / "text.py"
    copy.write_text(text, "utf-8")
    ranks = range(limits.ranks)
    records = [folder / f"record{rank}.jsonl" for rank in ranks]
    orders = [folder / f"order{rank}.json" for rank in ranks]
    for rank in ranks:
        peers = tuple(str(path) for path in records if path != records[rank])
        own = replace(order, text=str(copy), out=str(records[rank]), peers=peers)
        write_order(orders[rank], own)
    modules = order.probe.modules if order.probe is not None else ()
    ending = supervise(orders, records, folder, limits, quiet_stdout, modules)
    return [record.load(path) for path in records], ending


def run_of(ranks: list[Left], ending: Ending | None, limits: Limits) -> Run:
    """What the ranks left behind, told by the first; it ends as the first that fails does."""
    head, steps, own = ranks[0]
    unit = chosen_unit(steps)
    numbers = numbered(steps, unit)
    bad = [(top["moment"], end) for top, _, end in ranks if end and end.kind not in GOOD]
    failed = min(bad, key=lambda pair: pair[0])[1] if bad else None
    return Run(
        device=str(head.get("device", limits.device)),
        torch=str(head.get("torch", "")),
        unit=unit,
        steps=tuple(step for step in steps if step.unit == unit),
        ending=ending or failed or own or Ending(record.KILLED, "ended without a word"),
        warnings=tuple(dict.fromkeys(head.get("warnings", ()))),
        stood=tuple(tuple(one) for one in head.get("stood", ())),
        holdings=from_entry(head["holdings"]) if "holdings" in head else None,
        notes=notes_from(head["notes"]) if "notes" in head else None,
        spans=tuple(replace(s, step=numbers.get(s.step, 0)) for s in head.get("spans", ())),
        lines=head.get("lines", {}),
        peers=tuple(
            tuple(step for step in others if step.unit == unit) for _, others, _ in ranks[1:]
        ),
    )


def chosen_unit(steps: tuple[record.Step, ...]) -> str:
    """Iterations only where the loop never went backward: then they come last."""
    return steps[-1].unit if steps else record.OPTIMIZER


def numbered(steps: tuple[record.Step, ...], unit: str) -> dict[int, int]:
    """The numbers of the chosen steps by the numbers among all of them."""
    chosen = [number for number, step in enumerate(steps, 1) if step.unit == unit]
    return {number: place for place, number in enumerate(chosen, 1)}


def supervise(
    orders: list[Path],
    records: list[Path],
    folder: Path,
    limits: Limits,
    quiet_stdout: bool,
    modules: tuple[str, ...] = (),
) -> Ending | None:
    """Waits for a child a rank; what only a parent can know of their end, or None."""
    temporary = folder / "tmp"
    temporary.mkdir()
    common = {
        **os.environ,
        "PYTHONHASHSEED": str(limits.seed % 2**32),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }
    children: list[Child] = []
    with launch.reserved_port() if len(orders) > 1 else contextlib.nullcontext() as held:
        descent = Descent(())
        try:
            for rank, order in enumerate(orders):
                told = {}
                if held is not None:
                    told = launch.environment(rank, len(orders), held.getsockname()[1])
                children.append(start(order, {**common, **told}, limits, quiet_stdout, modules))
            descent = Descent(child.pid for child in children)
            return wait(children, descent, records, limits)
        finally:
            descent.roots = frozenset(child.pid for child in children)
            descent.end()
            for child in children:
                child.wait()


def start(
    order: Path,
    environment: dict[str, str],
    limits: Limits,
    quiet_stdout: bool,
    modules: tuple[str, ...],
) -> Child:
    stdout = 2 if quiet_stdout else 1
    if not limits.afresh and warm.suits(limits.device):
        forked = warm.fork(limits.python, PACKAGE_ROOT, order, environment, stdout, modules)
        if forked is not None:
            return forked
    return subprocess.Popen(
        [limits.python, "-c", BOOT, PACKAGE_ROOT, str(order)],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        env=environment,
        start_new_session=True,
    )


def wait(
    children: list[Child], descent: Descent, records: list[Path], limits: Limits
) -> Ending | None:
    deadline = time.monotonic() + limits.timeout
    while any(child.poll() is None for child in children):
        if any(fell(*pair) for pair in zip(children, records, strict=True)):
            break  # the others may wait for it
        if time.monotonic() > deadline:
            return Ending(record.TIMED_OUT, f"did not come to an end within {limits.timeout:g} s")
        running = descent.look()
        used = sum(process.resident for process in running)
        if limits.memory is not None and used > limits.memory:
            limit = limits.memory / 1024**2
            return Ending(record.OUT_OF_MEMORY, f"took more than {limit:,.0f} MiB of host memory")
        if len(running) > MAX_PROCESSES:
            return Ending(record.KILLED, f"started more than {MAX_PROCESSES} processes")
        time.sleep(POLL)
    for code in [child.returncode for child in children if child.returncode]:
        if code < 0:
            return Ending(record.KILLED, f"was killed by {signal_name(-code)}")
        return Ending(record.EXITED, f"ended its process with status {code}")
    return None


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def fell(child: Child, path: Path) -> bool:
    """Whether a rank has come to a bad end."""
    if child.poll() is None:
        return False
    _, _, ending = record.load(path)
    return child.returncode != 0 or ending is None or ending.kind not in GOOD
