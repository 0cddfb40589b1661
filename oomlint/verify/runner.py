"""Starts children with limits on time and memory, and turns what they leave into runs."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import oomlint
from oomlint.verify import record
from oomlint.verify.child import Order, write_order
from oomlint.verify.instrument import Region
from oomlint.verify.record import Ending, Run

PACKAGE_ROOT = str(Path(oomlint.__file__).resolve().parent.parent)
MAX_PROCESSES = 256
POLL = 0.05

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

    Unless `writes` is set, what the script writes stays in a temporary folder.
    """

    steps: int = 6
    seed: int = 0
    timeout: float = 300.0
    memory: int | None = None
    device: str = "auto"
    capacity: int | None = None
    writes: bool = False
    python: str = sys.executable


def run_text(
    script: Path,
    text: str,
    argv: tuple[str, ...],
    region: Region | None,
    limits: Limits,
    folder: Path,
    iterations: bool = True,
    quiet_stdout: bool = False,
) -> Run:
    """Runs `text` in place of `script` and returns what was measured.

    `folder` is an empty temporary folder for this run; nothing is written beside the script.
    `iterations` allows the region's iterations to be the steps where nothing is trained in it.
    With `quiet_stdout` the child's standard output goes to standard error.
    """
    copy, out, order_path = folder / "text.py", folder / "record.jsonl", folder / "order.json"
    copy.write_text(text, "utf-8")
    order = Order(
        script=str(script.resolve()),
        text=str(copy),
        argv=argv,
        out=str(out),
        steps=limits.steps,
        seed=limits.seed,
        device=limits.device,
        capacity=limits.capacity,
        writes=limits.writes,
        region=region,
        iterations=iterations,
    )
    write_order(order_path, order)
    command = [limits.python, "-c", BOOT, PACKAGE_ROOT, str(order_path)]
    ending = supervise(command, folder, limits, quiet_stdout)
    head, steps, own = record.load(out)
    unit = chosen_unit(steps)
    return Run(
        device=str(head.get("device", limits.device)),
        torch=str(head.get("torch", "")),
        unit=unit,
        steps=tuple(step for step in steps if step.unit == unit),
        ending=ending or own or Ending(record.KILLED, "ended without a word"),
        warnings=tuple(dict.fromkeys(head.get("warnings", ()))),
    )


def chosen_unit(steps: tuple[record.Step, ...]) -> str:
    """Iterations only where the loop never went backward: then they come last."""
    return steps[-1].unit if steps else record.OPTIMIZER


def supervise(
    command: list[str],
    folder: Path,
    limits: Limits,
    quiet_stdout: bool,
) -> Ending | None:
    """Waits for a child; the ending that only a parent can know, or None where it has its own."""
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(limits.seed % 2**32),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if quiet_stdout else None,
        env=environment,
        start_new_session=True,
    )
    try:
        return wait(child, limits)
    finally:
        end_session(child)


def wait(child: subprocess.Popen[bytes], limits: Limits) -> Ending | None:
    deadline = time.monotonic() + limits.timeout
    while child.poll() is None:
        if time.monotonic() > deadline:
            return Ending(record.TIMED_OUT, f"did not come to an end within {limits.timeout:g} s")
        used, processes = session_usage(child.pid)
        if limits.memory is not None and used > limits.memory:
            limit = limits.memory / 1024**2
            return Ending(record.OUT_OF_MEMORY, f"took more than {limit:,.0f} MiB of host memory")
        if processes > MAX_PROCESSES:
            return Ending(record.KILLED, f"started more than {MAX_PROCESSES} processes")
        time.sleep(POLL)
    if child.returncode < 0:
        return Ending(record.KILLED, f"was killed by {signal.Signals(-child.returncode).name}")
    if child.returncode > 0:
        return Ending(record.EXITED, f"ended its process with status {child.returncode}")
    return None


def session_usage(session: int) -> tuple[int, int]:
    """Resident bytes and number of the session's processes; (0, 1) where /proc does not tell."""
    page = os.sysconf("SC_PAGE_SIZE")
    used = processes = 0
    try:
        entries = os.listdir("/proc")
    except OSError:
        return 0, 1
    for entry in entries:
        if not entry.isdigit():
            continue
        try:
            stat = Path("/proc", entry, "stat").read_bytes()
        except OSError:
            continue
        values = stat.rpartition(b")")[2].split()
        if int(values[3]) == session:
            processes += 1
            used += int(values[21]) * page
    return used, processes


def end_session(child: subprocess.Popen[bytes]) -> None:
    """Ends whatever the child left running, and the child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
