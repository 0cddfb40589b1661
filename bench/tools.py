"""Finds the programs that the benchmarks compare, and sets up the rivals' own environment."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from corpus import CorpusError, cache_folder, code_folder, read_lock

RIVALS = ("torch-preflight==0.5.0", "torchfix==0.7.0")


def beside_python(program: str) -> str:
    """A console script of the running environment."""
    path = Path(sys.executable).with_name(program)
    if not path.is_file():
        raise CorpusError(f"{program} is not installed in {path.parent}")
    return str(path)


def rival(program: str) -> str:
    """A rival's console script; its environment lies in the corpus cache and is made once."""
    folder = cache_folder() / "rivals"
    path = folder / "bin" / program
    if not path.is_file():
        venv.create(folder, with_pip=True)
        python = str(folder / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *RIVALS], check=True)
    return str(path)


def packages_folder() -> Path:
    """The unpacked corpus."""
    cache = cache_folder()
    if not (cache / "READY").is_file():
        raise CorpusError("the corpus is not there; run `python bench/corpus.py` first")
    return code_folder(cache)


def torch_distributed() -> Path:
    """torch/distributed of the corpus, or else of the installed torch."""
    pinned = next((one for one in read_lock() if one.name == "torch"), None)
    if pinned is not None:
        folder = code_folder(cache_folder()) / pinned.folder / "torch" / "distributed"
        if folder.is_dir():
            return folder
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise CorpusError("torch is neither in the corpus nor installed")
    return Path(found.origin).parent / "distributed"


def check_json(folder: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Runs `oomlint check` on a folder; returns its findings and what it wrote to stderr.

    Raises CorpusError when the exit status is neither 0 nor 1, or anything looks like a crash.
    """
    command = [beside_python("oomlint"), "check", "--isolated", "--no-cache"]
    command += ["--output-format", "json", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:
        ending = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise CorpusError(f"oomlint check ended with exit status {done.returncode}:\n{ending}")
    findings: list[dict[str, Any]] = json.loads(done.stdout)
    return findings, done.stderr
