"""Keeps processes that have loaded torch, from which runs on the emulated device are forked.

Loading torch takes longer than most runs that are measured. A fork finds what a new process would
have right after loading it. A real device does not survive a fork: its runs start afresh.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from oomlint.verify.descent import adopt_orphans, end_children

DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
# What a process reads only while it starts or while torch loads: it must be as the run wants it.
EARLY = tuple(
    "PYTHON LD_ LANG LC_ HOME OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ NUMEXPR_ MALLOC_ GLIBC_ TORCH PYTORCH"
    " ATEN_ CUDA NVIDIA HIP ROCR".split()
)
LOADED = (
    "torch",
    *(f"oomlint.verify.{name}" for name in ("emulation", "probing", "recorder", "sandbox")),
)
KEPT = 2
PATIENCE = 120.0
MESSAGE = 1 << 20

BOOT = (
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]\n"
    "sys.path.append(sys.argv[1])\n"
    "from oomlint.verify.warm import serve\n"
    "serve(int(sys.argv[2]), sys.argv[3:])\n"
)


class Template:
    """A process that forks others on demand and tells how they end."""

    def __init__(
        self, python: str, root: str, environment: Mapping[str, str], more: tuple[str, ...]
    ) -> None:
        self.codes: dict[int, int] = {}
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.line.settimeout(PATIENCE)
        with theirs:
            self.process = subprocess.Popen(
                [python, "-c", BOOT, root, str(theirs.fileno()), *LOADED, *more],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=dict(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def fork(self, order: Path, environment: Mapping[str, str], stdout: int) -> Forked:
        """Raises OSError where the template is gone or does not answer."""
        message = json.dumps([str(order), os.getcwd(), dict(environment)]).encode()
        with open(os.devnull, "rb") as nothing:
            socket.send_fds(self.line, [message], [nothing.fileno(), stdout, 2])
        while True:
            word, pid = self.hear()
            if word == "started":
                return Forked(self, pid)

    def hear(self) -> tuple[str, int]:
        message = self.line.recv(MESSAGE)
        if not message:
            raise ConnectionResetError("the process that runs are forked from has ended")
        word, pid, code = message.decode().split()
        if word == "ended":
            self.codes[int(pid)] = int(code)
        return word, int(pid)

    def code(self, pid: int, patience: float) -> int | None:
        """The exit status of a fork; of a template that died, that of its children."""
        deadline = time.monotonic() + patience
        while pid not in self.codes:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.line], [], [], left)[0]:
                return None
            try:
                self.hear()
            except OSError:
                self.codes[pid] = -signal.SIGKILL
        return self.codes[pid]

    def close(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Forked:
    """A fork of a template, with what `subprocess.Popen` tells of a child."""

    template: Template
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.template.code(self.pid, 0.0)
        return self.returncode

    def wait(self) -> int | None:
        if self.returncode is None:
            self.returncode = self.template.code(self.pid, PATIENCE)
        return self.returncode


Key = tuple[str, tuple[tuple[str, str], ...], tuple[str, ...]]
templates: dict[Key, Template | None] = {}  # None: there it cannot be done


def fork(
    python: str,
    root: str,
    order: Path,
    environment: Mapping[str, str],
    stdout: int,
    more: tuple[str, ...] = (),
) -> Forked | None:
    """A process that carries out an order; None where it must be started afresh.

    `more` names modules that such runs load beside torch.
    """
    early = sorted(pair for pair in environment.items() if pair[0].startswith(EARLY))
    key = python, tuple(early), more
    if key not in templates:
        while len(templates) >= KEPT:
            drop(next(iter(templates)))
        templates[key] = Template(python, root, environment, more)
    template = templates[key] = templates.pop(key)  # the one used last is dropped last
    if template is None:
        return None
    try:
        return template.fork(order, environment, stdout)
    except OSError:
        drop(key)
        templates[key] = None
        return None
    except BaseException:
        drop(key)  # an answer that nobody waited for would be taken for the next one
        raise


def drop(key: Key) -> None:
    template = templates.pop(key)
    if template is not None:
        template.close()


@atexit.register
def drop_all() -> None:
    for key in list(templates):
        drop(key)


def suits(device: str) -> bool:
    """Whether a run on such a device may be forked."""
    if sys.platform != "linux" or device == "cuda":
        return False
    return device == "emulated" or not any(map(os.path.exists, DEVICES))


def serve(fd: int, modules: list[str]) -> NoReturn:
    """The template's own loop; ends with the process that it serves."""
    line = socket.socket(fileno=fd)
    try:
        for name in modules:
            importlib.import_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module("numpy")
    except Exception:
        os._exit(1)  # a process started afresh says why
    gc.collect()
    gc.freeze()
    ears, bell = os.pipe()
    for end in (ears, bell):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    adopt_orphans()
    forks: set[int] = set()
    try:
        while True:
            ready, _, _ = select.select([line.fileno(), ears], [], [])
            if ears in ready:
                os.read(ears, MESSAGE)
                tell_of_ends(line, forks)
            if line.fileno() in ready:
                message, fds, _, _ = socket.recv_fds(line, MESSAGE, 3)
                if not message:
                    os._exit(0)
                pid = os.fork()
                forks.add(pid)
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(ears)
                    os.close(bell)
                    line.close()
                    carry_out(message, fds)
                for received in fds:
                    os.close(received)
                line.send(f"started {pid} 0".encode())
    except OSError:
        os._exit(0)


def tell_of_ends(line: socket.socket, forks: set[int]) -> None:
    """What a fork leaves behind comes to this process, and is killed before its end is told."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            forks.discard(ended[0])
            end_children(forks)
            line.send(f"ended {ended[0]} {os.waitstatus_to_exitcode(ended[1])}".encode())


def carry_out(message: bytes, fds: list[int]) -> NoReturn:
    """Makes a fork what a new process would be, and runs the order in it."""
    from oomlint.verify.child import main

    try:
        os.setsid()
        for target, received in enumerate(fds):
            os.dup2(received, target)
        for received in fds:
            os.close(received)
        order, folder, environment = json.loads(message)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        tempfile.tempdir = None
        main(order)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)
