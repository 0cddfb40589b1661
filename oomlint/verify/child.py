"""Runs one target with one text of its file in this process, measures it and ends the process."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from oomlint.verify import record
from oomlint.verify.descent import die_with_parent, end_children
from oomlint.verify.instrument import Region
from oomlint.verify.launch import stay_for
from oomlint.verify.probe import Probe, probe_from
from oomlint.verify.record import Ending
from oomlint.verify.targets import Target

TESTED_TORCH = "2.13"


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is told to do; paths are absolute."""

    target: Target
    text: str  # where the text lies that stands for that of the target's file
    out: str  # where records go, a line each
    steps: int
    seed: int
    device: str  # auto, cuda or emulated
    capacity: int | None = None
    gpu: str | None = None  # a name of profiles.PROFILES
    writes: bool = False  # whether the script may write where it likes
    region: Region | None = None
    iterations: bool = True  # whether the region's iterations may stand for steps
    peers: tuple[str, ...] = ()  # where the other ranks' records go
    probe: Probe | None = None  # of `measure`
    plan: dict[str, Any] | None = None  # of the stand-ins for a function's parameters
    guess: dict[str, Any] | None = None  # at their shapes; to be found where there is none
    patience: float = 0.0  # seconds in which it is to be found


def read_order(path: Path) -> Order:
    entry = json.loads(path.read_text("utf-8"))
    region = Region(**entry["region"]) if entry["region"] else None
    target = Target(**{**entry["target"], "argv": tuple(entry["target"]["argv"])})
    probe = probe_from(entry["probe"]) if entry["probe"] else None
    read = {"target": target, "peers": tuple(entry["peers"]), "region": region, "probe": probe}
    return Order(**{**entry, **read})


def write_order(path: Path, order: Order) -> None:
    path.write_text(json.dumps(asdict(order)), "utf-8")


class Journal:
    """The file of records; every line is on its way to the disk when `write` returns."""

    def __init__(self, path: str, peers: tuple[str, ...] = ()) -> None:
        self.peers = peers
        self.closing: list[Callable[[], str]] = []  # what is written before the last line
        self.ended = False
        self.lock = threading.RLock()  # held to the end by who ends the process
        self.path = path
        self.open()

    def open(self) -> None:
        self.file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.identity = os.fstat(self.file).st_ino

    def write(self, line: str) -> None:
        """A script may close every file, and open its own ones under the same numbers."""
        try:
            lost = os.fstat(self.file).st_ino != self.identity
        except OSError:
            lost = True
        if lost:
            self.open()
        os.write(self.file, line.encode("utf-8") + b"\n")

    def end(self, ending: Ending) -> NoReturn:
        """Ends the process at once: no exit handler, no other thread and no worker runs on.

        The first ending counts: handlers of the script may raise while its processes are ended.
        """
        self.lock.acquire()
        if not self.ended:
            for line in self.closing:
                self.write(line())
            self.write(record.dump({"ending": asdict(ending), "moment": time.time()}))
            self.ended = True
            self.say_goodbye(ending)
        end_children()
        os._exit(0)

    def say_goodbye(self, ending: Ending) -> None:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        # torch's own handler takes the end of a loader's worker for a fault.
        with contextlib.suppress(ValueError):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if ending.kind in (record.STOPPED, record.FINISHED):
            stay_for(self.peers)


def main(path: str) -> NoReturn:
    die_with_parent()
    order = read_order(Path(path))
    if order.probe is not None and order.probe.silent:
        silence()
    journal = Journal(order.out, order.peers)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Failed to initialize NumPy")
            import torch
    except ImportError as error:
        message = f"torch cannot be imported by {sys.executable} ({error}); install oomlint[verify]"
        journal.end(Ending(record.UNUSABLE, message))
    recorder = prepare(order, journal)
    if not order.writes:
        shelter(Path(path).parent, torch)
    seed_everything(order.seed, torch)
    gc.collect()
    gc.freeze()  # what torch itself made is not searched for live tensors
    journal.end(run(order, recorder, journal))


def silence() -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)


def prepare(order: Order, journal: Journal) -> Any:
    import torch

    from oomlint.verify.meters import CudaMeter, EmulatedMeter, Meter
    from oomlint.verify.probing import begin
    from oomlint.verify.recorder import Recorder

    real = torch.cuda.is_available()
    if order.device == "cuda" and not real:
        message = "no CUDA device is available to torch; use --device emulated"
        journal.end(Ending(record.UNUSABLE, message))
    meter: Meter
    if order.device == "emulated" or not real:
        meter, name = EmulatedMeter(emulate(order, journal)), "emulated"
    else:
        torch.cuda.init()
        meter, name = CudaMeter(), "cuda"
    journal.write(record.dump({"device": name, "torch": torch.__version__}))
    account = begin(meter, journal.write)
    journal.closing.append(account.close)
    kind = Recorder
    if order.probe is not None:
        from oomlint.verify.changes import Changes

        journal.closing.append(Changes(order.probe, account.source, order.out).close)
        if order.probe.shapes:
            kind = without_values(order.probe, meter, journal)
    recorder = kind(
        meter,
        order.steps,
        emit=lambda step: journal.write(record.step_line(step)),
        stop=lambda: journal.end(Ending(record.STOPPED)),
        bounded=order.region is not None,
        iterations=order.iterations,
        several=bool(order.peers),
        turn=account.turn,
    )
    recorder.install()
    return recorder


def without_values(probe: Probe, meter: Any, journal: Journal) -> Any:
    """Lets tensors have shapes only; the recorder that does not look at their values."""
    from oomlint.verify.shapes import Shapes, preload
    from oomlint.verify.shapes_recorder import ShapesRecorder

    def refuse(line: str, what: str) -> NoReturn:
        journal.end(Ending(record.NEEDS_VALUES, f"{line} needs {what}"))

    preload()
    meter.inside = False
    Shapes(meter.device, refuse, probe.assumed).install()
    return ShapesRecorder


def emulate(order: Order, journal: Journal) -> Any:
    """The emulated device; it reaches into torch, so another torch may not let it."""
    import torch

    try:
        from oomlint.verify import emulation
        from oomlint.verify.profiles import EMULATED, PROFILES
        from oomlint.verify.watching import WatchedAllocator

        profile = EMULATED if order.gpu is None else PROFILES[order.gpu]
        return emulation.install(order.capacity, profile, WatchedAllocator)
    except (AttributeError, ImportError, RuntimeError) as error:
        message = f"the emulated device does not work with torch {torch.__version__} ({error})"
        journal.end(Ending(record.UNUSABLE, f"{message}; torch {TESTED_TORCH} does"))


def shelter(folder: Path, torch: Any) -> None:
    """Keeps what the script writes below the run's own folder."""
    from oomlint.verify.sandbox import Overlay

    root = folder / "written"
    root.mkdir(exist_ok=True)  # the ranks of one run see each other's files
    overlay = Overlay(str(root), (str(folder),))
    overlay.install()
    save, load = torch.save, torch.load  # torch opens archives in C++

    def is_path(file: Any) -> bool:
        return isinstance(file, (str, os.PathLike))

    def save_there(thing: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        return save(thing, overlay.writable(f) if is_path(f) else f, *args, **kwargs)

    def load_there(f: Any, *args: Any, **kwargs: Any) -> Any:
        return load(overlay.readable(f) if is_path(f) else f, *args, **kwargs)

    torch.save, torch.load = save_there, load_there


def seed_everything(seed: int, torch: Any) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


def run(order: Order, recorder: Any, journal: Journal) -> Ending:
    """Runs the target to its end, unless the recorder stops it before."""
    from oomlint.verify import programs
    from oomlint.verify.calling import CannotCall

    target = order.target
    text = Path(order.text).read_text("utf-8")
    main = programs.as_main(target)
    finder = programs.replace_file(target, text, order.region, recorder)
    listen(target.file, journal)
    importing = False
    try:
        if target.function:
            importing = True
            imported = programs.import_file(target, finder)
            importing = False
            call(order, imported, recorder, journal)
        else:
            programs.run_main(target, main, finder)
    except SyntaxError as error:
        if error.filename == target.file:
            return Ending(record.RAISED, f"SyntaxError: {error.msg}", error.lineno, "SyntaxError")
        return raised(error, target.file)
    except CannotCall as error:
        if error.__cause__ is not None:
            show(error.__cause__)
        message = f"{target.name} cannot be called: {str(error).splitlines()[0]}"
        return Ending(record.UNUSABLE, message, error=type(error).__name__)
    except SystemExit as error:
        return not_imported(target, exited(error)) if importing else exited(error)
    except BaseException as error:
        show(error)
        ending = raised(error, target.file)
        return not_imported(target, ending) if importing else ending
    return Ending(record.FINISHED)


def not_imported(target: Target, ending: Ending) -> Ending:
    """A file that cannot be imported has no function to call."""
    if ending.kind == record.FINISHED:
        ending = Ending(record.EXITED, "exits")
    where = f" at line {ending.row}" if ending.row else ""
    message = f"{target.name} cannot be called: importing its file {ending.message}{where}"
    message += ending.cure
    if ending.kind == record.EXITED:
        message += "; arguments that it parses come after the function's name"
    return Ending(record.UNUSABLE, message)


def call(order: Order, module: Any, recorder: Any, journal: Journal) -> None:
    """Calls the target's function with what a harness gives, and with stand-ins for the rest.

    With a plan but no guess it only finds the guess, and calls nothing. Raises CannotCall.
    """
    from oomlint.verify import calling, plan

    target = order.target
    function = calling.lookup(module, target.function)
    args, kwargs = calling.given_by(target, function) if target.harness else ((), {})
    given = args, calling.hand_globals(module, function, kwargs)
    lacking = [*calling.missing(function, *given), *sorted(calling.unbound(function))]
    if order.plan is None:
        if lacking:
            raise calling.Lacking(f"it is given nothing for `{lacking[0]}`")
        calling.call_until_done(lambda: function(*given[0], **given[1]), lambda: recorder.recorded)
        return
    from oomlint.verify import standing

    stand_in = standing.Standing(target, module, function, given, plan.from_entry(order.plan))
    if order.guess is None:
        found = stand_in.find(recorder, lambda e: fault(e, target.file), order.patience)
        journal.write(record.dump({"guess": standing.as_entry(found)}))
        return
    called, builder = stand_in.call_of(standing.from_entry(order.guess), order.steps)
    # Settings are given out while the function asks for them.
    journal.closing.append(lambda: record.dump({"stood": standing.said(builder)}))
    calling.call_until_done(called, lambda: recorder.recorded)


def fault(error: BaseException, file: str) -> tuple[str, int | None]:
    """What went wrong, and at which row of the file."""
    ending = exited(error) if isinstance(error, SystemExit) else raised(error, file)
    return ending.message, ending.row


def listen(file: str, journal: Journal) -> None:
    """Notes the warnings that Python shows for a row of the file."""
    shown = warnings.showwarning

    def show_and_note(
        message: Any, category: Any, filename: str, lineno: int, *args: Any, **kwargs: Any
    ) -> None:
        if filename == file:
            text = f"{category.__name__}: {one_line(str(message))}"
            journal.write(record.dump({"warning": text}))
        shown(message, category, filename, lineno, *args, **kwargs)

    warnings.showwarning = show_and_note


def exited(error: SystemExit) -> Ending:
    if error.code in (None, 0):
        return Ending(record.FINISHED)
    if isinstance(error.code, int):
        return Ending(record.EXITED, f"exits with status {error.code}")
    return Ending(record.EXITED, f"exits with the message: {one_line(str(error.code))}")


def raised(error: BaseException, file: str) -> Ending:
    row = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == file:
            row = line
    kind = type(error).__name__
    if isinstance(error, ModuleNotFoundError) and error.name:
        package, _, inner = error.name.partition(".")
        if inner and package in sys.modules:
            return Ending(record.RAISED, f"needs {error.name}, which {package} lacks", row, kind)
        return Ending(record.RAISED, f"needs the package {error.name}", row, kind)
    if isinstance(error, EOFError):
        return Ending(record.RAISED, "reads from standard input, which is empty here", row, kind)
    text = one_line(str(error))
    return Ending(record.RAISED, f"raises {kind}: {text}" if text else f"raises {kind}", row, kind)


def one_line(text: str) -> str:
    first = text.strip().splitlines()[0].strip() if text.strip() else ""
    return first if len(first) <= 160 else first[:157] + "..."


def show(error: BaseException) -> None:
    """Prints the traceback as Python would, without the frames that are not the script's doing."""
    own = str(Path(__file__).parent)
    shown = traceback.TracebackException.from_exception(error)
    frames = [frame for frame in shown.stack if not frame.filename.startswith(own)]
    shown.stack = traceback.StackSummary.from_list(frames)
    print("".join(shown.format()), end="", file=sys.stderr)
