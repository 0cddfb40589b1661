"""What tests of the command line share: the word rules, and calls of the command."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from oomlint import linter, registry, selection
from oomlint.cli import main

PLUGIN = Path(__file__).parent / "shell_plugin"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def forget() -> None:
    registry.all_rules.cache_clear()
    registry.digest.cache_clear()
    selection.RESOLVED.clear()
    linter.GATES.clear()


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The word rules are installed."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    forget()
    yield
    forget()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugin: None) -> Path:
    """An empty project that is the working folder, with a home of its own and the word rules."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text("")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("OOMLINT_")]:
        monkeypatch.delenv(name)
    return folder


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def call(*arguments: str, stdin: bytes = b"") -> Answer:
    """Runs the command in this process, as the entry point would."""
    before = sys.stdin, sys.stdout, sys.stderr
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin)), out, err
    try:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out.flush(), err.flush()
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    assert isinstance(ended.value.code, int)
    return Answer(ended.value.code, *texts)


def spawn(*arguments: str, **environment: str) -> Answer:
    """Runs the installed command in a process of its own."""
    done = subprocess.run(
        # Not `python -m oomlint`: that would run the sources where only a wheel is installed.
        [str(Path(sys.executable).with_name("oomlint")), *arguments],
        env={**os.environ, "PYTHONPATH": str(PLUGIN), **environment},
        capture_output=True,
        timeout=60,
    )
    return Answer(done.returncode, done.stdout.decode(), done.stderr.decode())
