"""Checks in a process of its own: parsing holds the interpreter lock, and the editor would wait."""

from __future__ import annotations

import gc
import os
import pickle
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from oomlint.errors import OomlintError
from oomlint.lsp.options import Options
from oomlint.source import Source, of_notebook

if TYPE_CHECKING:
    from oomlint.linter import FileResult
    from oomlint.settings import Settings

HEADER = struct.Struct("!Q")
# Not `-m`: that would put the working folder, which is the user's, before the installed packages.
COMMAND = (
    "import sys; sys.path[:] = filter(None, sys.path); from oomlint.lsp.worker import main; main()"
)
# A process that has grown past this is replaced, though not before it has done some work.
MOST_BYTES = 320 * 1024 * 1024
LEAST_ANSWERS = 50
# Imports what checks need, so that the first one is as fast as the others.
WARM_UP = """\
import torch

@torch.no_grad()
def evaluate(model: torch.nn.Module, loader):
    model.eval()
    return [model(batch).cpu() for batch in loader]

def train(model: torch.nn.Module, loader, optimizer, criterion):
    losses = []
    for batch, target in loader:
        loss = criterion(model(batch), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses
"""


@dataclass(frozen=True, slots=True)
class Request:
    """A text, of a notebook its JSON, to check or, with `fix`, to apply the safe fixes to."""

    path: Path
    text: str
    is_notebook: bool = False
    fix: bool = False
    # Whether other files may have come, gone or changed since the last request.
    disk_changed: bool = False
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why there is no answer: one sentence for the user."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; with `leaving`, the process ends after it."""

    answer: FileResult | str | Refused
    leaving: bool = False


def answer(request: Request) -> FileResult | str | Refused:
    """The result of a check, or the fixed text; excluded files have nothing to show."""
    from oomlint.analysis.project import forget_files
    from oomlint.fixer import fix_text
    from oomlint.linter import FileResult, check_source
    from oomlint.notebook import read_notebook

    if request.disk_changed:
        forget_files()
    source = Source(request.path, request.text)
    if request.is_notebook:
        source = of_notebook(request.path, read_notebook(request.text))
    try:
        settings = settings_of(request)
        if any(pattern.covers(str(request.path)) for pattern in settings.exclude):
            return request.text if request.fix else FileResult(request.path)
        if request.fix:
            fixed = fix_text(source, settings, unsafe=False).source
            return fixed.notebook.document if fixed.notebook else fixed.text
        return check_source(source, settings)
    except OomlintError as error:
        return Refused(str(error))


def settings_of(request: Request) -> Settings:
    """Those of the file's own project, read again, under what the editor says."""
    from oomlint.settings import SettingsFinder

    options = request.options
    finder = SettingsFinder(options.tables(), options.file())
    return finder.for_file(request.path)


def pages() -> dict[str, str]:
    """The page of each rule, by its code and by its name; none when rules do not load."""
    from oomlint import registry
    from oomlint.pages import with_effect

    try:
        rules = registry.all_rules()
    except OomlintError:
        return {}
    by_code = {rule.code: with_effect(rule) for rule in rules}
    return by_code | {rule.name: by_code[rule.code] for rule in rules}


def main() -> None:
    """Answers requests from stdin until it is closed, which the end of the server does too."""
    from oomlint import analysis, linter
    from oomlint.analysis.reparsing import LastTree
    from oomlint.workers import OBJECTS_BETWEEN_FILES, OBJECTS_WITHIN_FILE, resident_bytes

    requests = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    # What a rule of a third party prints must not get between the answers.
    os.dup2(2, 1)
    try:
        write(answers, pages())
    except Exception:  # which the first request meets again, and says
        write(answers, {})
    analysis.last_tree = LastTree()
    answer(Request(Path(os.devnull), WARM_UP, options=Options(isolated=True)))
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS_WITHIN_FILE, 20, 20)
    left = linter.left = []
    given = 0
    while header := requests.read(HEADER.size):
        request = pickle.loads(requests.read(HEADER.unpack(header)[0]))
        try:
            said = answer(request)
        except Exception as error:  # a defect in one rule must not end the worker
            said = Refused(
                f"oomlint failed on {request.path.name}: {type(error).__name__}: {error}"
            )
        given += 1
        leaving = given >= LEAST_ANSWERS and resident_bytes() > MOST_BYTES
        write(answers, Reply(said, leaving))
        if leaving:
            return
        # Behind the answer, for which somebody waits.
        while left:
            left.pop().forget()
        if gc.get_count()[0] > OBJECTS_BETWEEN_FILES:
            gc.collect()


def write(answers: BinaryIO, value: object) -> None:
    answers.write(frame(value))
    answers.flush()


def frame(value: object) -> bytes:
    body = pickle.dumps(value)
    return HEADER.pack(len(body)) + body
