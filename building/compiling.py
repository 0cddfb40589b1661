"""What a build with OOMLINT_COMPILED=1 compiles: the modules that a check spends its time in."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from constructors import write_constructors
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CompileError, LinkError

# What follows the code of a training step, and the gate before it. In one group, calls between them
# are direct: without the ten quiet ones of them, the others gain less.
HOT = """
    gate token_patterns
    analysis/attributes analysis/binding analysis/calls analysis/classes analysis/conditions
    analysis/construction analysis/contexts analysis/dispatch analysis/driven
    analysis/evaluation analysis/execution analysis/following analysis/forgetting
    analysis/generators analysis/iteration analysis/knowledge analysis/methods analysis/names
    analysis/nodes analysis/opaque analysis/operations analysis/order analysis/outline
    analysis/outside analysis/retention analysis/roles analysis/roots analysis/state
    analysis/things analysis/training analysis/values
"""
ROOT = Path(__file__).resolve().parent.parent
# Of a library that is not there while building, nothing has to be known; the cache of a
# developer's own mypy is left alone.
MYPY = ["--config-file=", "--follow-imports=silent", "--ignore-missing-imports"]
MYPY += [f"--cache-dir={os.devnull}"]


def is_wanted() -> bool:
    return os.environ.get("OOMLINT_COMPILED", "0") not in ("", "0")


def extensions() -> list[Extension]:
    """The extension modules. Raises SystemExit with one sentence where they cannot be made."""
    try:
        from mypyc.build import mypycify
    except ImportError:
        raise SystemExit(
            "OOMLINT_COMPILED is set, but mypy is not installed, which brings the compiler mypyc: "
            "build without --no-build-isolation, or install mypy first"
        ) from None
    files = [f"oomlint/{name}.py" for name in HOT.split()]
    folder = ROOT / "build" / "mypyc"
    before = os.getcwd()
    # Its tracebacks name files as they are given to it.
    os.chdir(sources(folder, files))
    try:
        return mypycify(
            [*MYPY, *files],
            opt_level="2",
            debug_level="0",
            group_name="oomlint.analysis",
            target_dir=str(folder / "c"),
        )
    except SystemExit:
        raise SystemExit(
            "OOMLINT_COMPILED is set, but mypyc refuses the modules, as said above"
        ) from None
    finally:
        os.chdir(before)


def sources(folder: Path, files: list[str]) -> Path:
    """A copy of the package whose compiled modules have their constructors written out."""
    shutil.rmtree(folder, ignore_errors=True)
    ours = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "oomlint", folder / "oomlint", ignore=ours)
    write_constructors(folder / file for file in files)
    return folder


class Build(build_ext):
    """Says in one sentence that there is no compiler for C, whatever it fails with."""

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        except (CompileError, LinkError, BaseError, OSError) as error:
            raise SystemExit(
                "OOMLINT_COMPILED is set, but its modules cannot be compiled: a C compiler and "
                f"Python's headers are needed ({error})"
            ) from None
