"""`oomlint check --watch`, as a process of its own that sees files change."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import PLUGIN, call, write

KEPT = "kept += loss\n"


class Watching:
    """A running watch; `until` waits for a line that holds a text."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [str(Path(sys.executable).with_name("oomlint")), "check", "--watch", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(PLUGIN), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line)

    def until(self, wanted: str) -> list[str]:
        seen: list[str] = []
        while not seen or wanted not in seen[-1]:
            try:
                seen.append(self.lines.get(timeout=30))
            except queue.Empty:
                pytest.fail(f"{wanted!r} was not said, but {seen}")
        return seen


@pytest.fixture
def watching(project: Path) -> Iterator[Watching]:
    pytest.importorskip("watchfiles")
    write(project, {"a.py": KEPT, "oomlint.toml": ""})
    found = Watching(project, "--output-format", "concise", "--fix")
    yield found
    found.process.kill()
    found.process.wait()


def test_changes_of_files_and_of_settings_are_seen(project: Path, watching: Watching) -> None:
    first = watching.until("watching, stop with Ctrl-C.")
    assert first[0] == "Found 1 problem (1 fixed, 0 remaining).\n"
    # What --fix wrote may itself be seen as a change; the next answers are to our own.
    write(project, {"b.py": "a = wrong\n"})
    assert "b.py:1:5: FAK102 wrong is flagged\n" in watching.until("FAK102")
    write(project, {"oomlint.toml": 'ignore = ["FAK102"]\n'})
    watching.until("All checks passed!")
    write(project, {"oomlint.toml": "selekt = 1\n"})
    assert "error: oomlint.toml:1: unknown key `selekt`" in watching.until("selekt")[-1]
    write(project, {"oomlint.toml": ""})
    watching.until("FAK102")
    watching.process.send_signal(signal.SIGINT)
    assert watching.process.wait(20) == 130
    assert "Traceback" not in "".join(watching.lines.queue)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--diff"], "`--watch` cannot be used with `--diff`"),
        (["-"], "`--watch` cannot be used with `-`"),
        (["nowhere"], "nowhere: no such file or directory"),
    ],
)
def test_what_cannot_be_watched(project: Path, arguments: list[str], message: str) -> None:
    pytest.importorskip("watchfiles")
    answer = call("check", "--watch", *arguments)
    assert (answer.code, answer.out) == (2, "")
    assert message in answer.err


def test_without_watchfiles_the_extra_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    answer = call("check", "--watch")
    assert (answer.code, answer.out) == (2, "")
    assert 'pip install "oomlint[watch]"' in answer.err
