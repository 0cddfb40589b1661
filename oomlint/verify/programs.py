"""Starts what a child is told to run: a script, a module or a function, with one text replaced."""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import linecache
import os
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oomlint.verify.instrument import NAME, Region, instrumented
from oomlint.verify.targets import Target, dotted_name


class Replaced(importlib.machinery.SourceFileLoader):
    """Loads the file whose text is replaced."""

    def __init__(self, name: str, path: str, text: str, region: Region | None, recorder: Any):
        super().__init__(name, path)
        self.text, self.region, self.recorder = text, region, recorder

    def get_code(self, fullname: str) -> types.CodeType:
        return compile(instrumented(self.text, self.path, self.region), self.path, "exec")

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__[NAME] = self.recorder
        super().exec_module(module)


class Finder(importlib.abc.MetaPathFinder):
    """Finds the one file by whatever name it is imported."""

    def __init__(self, path: str, text: str, region: Region | None, recorder: Any) -> None:
        self.path, self.text, self.region, self.recorder = path, text, region, recorder
        place = Path(path)
        self.last = place.parent.name if place.name == "__init__.py" else place.stem

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.rpartition(".")[2] != self.last:
            return None
        for other in sys.meta_path:
            spec = None if other is self else other.find_spec(fullname, path, target)
            if spec is not None:
                break
        else:
            return None
        if not spec.origin or os.path.realpath(spec.origin) != self.path:
            return None
        spec.loader = self.loader(fullname)
        return spec

    def loader(self, name: str) -> Replaced:
        return Replaced(name, self.path, self.text, self.region, self.recorder)


def replace_file(target: Target, text: str, region: Region | None, recorder: Any) -> Finder:
    """From now on the target's file is imported with this text.

    Tracebacks and inspect show the text that runs, which may not be the one on the disk.
    """
    linecache.cache[target.file] = (len(text), None, text.splitlines(True), target.file)
    finder = Finder(target.file, text, region, recorder)
    sys.meta_path.insert(0, finder)
    return finder


def as_main(target: Target) -> types.ModuleType:
    """An empty __main__ that looks as it does under `python script.py` or `python -m module`."""
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=target.main, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = module
    sys.argv = [target.main, *target.argv]
    if target.module:
        sys.path.insert(0, os.getcwd())
    elif target.function:
        folders = (os.path.dirname(target.main), target.folder, dotted_name(target.main)[0])
        for folder in folders:
            if folder not in sys.path:
                sys.path.insert(0, folder)
        # What its own script would have put on the path is looked for last.
        sys.path += [
            place for place in between(target.main, target.folder) if place not in sys.path
        ]
    else:
        sys.path.insert(0, str(Path(target.main).parent))
    return module


def between(file: str, folder: str) -> list[str]:
    """The folders around a file, up to the one it was named from."""
    above = [str(place) for place in Path(file).parents]
    return above[: above.index(folder)] if folder in above else []


def run_main(target: Target, module: types.ModuleType, finder: Finder) -> None:
    """Runs a script or a module as __main__. Raises what it raises."""
    if target.module:
        name = target.module
        if Path(target.main).name == "__main__.py" and not name.endswith("__main__"):
            name += ".__main__"
        spec = importlib.util.find_spec(name)  # imports the packages around it, as python -m does
        module.__spec__, module.__package__ = spec, name.rpartition(".")[0]
    if target.main == target.file:
        module.__dict__[NAME] = finder.recorder
        code = finder.loader("__main__").get_code("__main__")
    else:
        code = compile(Path(target.main).read_bytes(), target.main, "exec")
    exec(code, module.__dict__)


def import_file(target: Target, finder: Finder) -> types.ModuleType:
    """The module of the target's file, under the name that the packages around it give it."""
    name = dotted_name(target.file)[1]
    if "." in name:
        importlib.import_module(name.rpartition(".")[0])
    present = sys.modules.get(name)
    if present is not None:
        if os.path.realpath(getattr(present, "__file__", None) or "") == target.file:
            return present
        name = f"{name}_of_the_target"  # the file is called as a module that is loaded
    spec = importlib.util.spec_from_file_location(name, target.file, loader=finder.loader(name))
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    finder.loader(name).exec_module(module)
    return module
