"""`oomlint check -`: one text on stdin, under the name that `--stdin-filename` gives it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from oomlint.cli.check import report, warn, without_known
from oomlint.cli.fix import print_diff, say_would_fix
from oomlint.cli.options import Options
from oomlint.cli.summary import Outcome
from oomlint.files import is_excluded
from oomlint.fixer import fix_text
from oomlint.keys import shown_path
from oomlint.linter import FileResult, Problem, check_source
from oomlint.reports.report import Texts
from oomlint.selection import select
from oomlint.settings import Settings, SettingsFinder
from oomlint.source import NotPython, Unreadable, from_bytes


def check_stdin(options: Options, finder: SettingsFinder, run_settings: Settings) -> Outcome:
    """Checks stdin; with `--fix`, the fixed text goes to stdout and everything else to stderr."""
    data = sys.stdin.buffer.read()
    path = Path(os.path.abspath(options.stdin_filename or "<stdin>"))
    settings = finder.for_file(path)
    writes_text = (options.fix or options.fix_only) and not options.diff
    if options.stdin_filename and is_excluded(str(path), settings):
        if writes_text:
            write_bytes(data)
        return Outcome()
    warn(options, select(settings).warnings)
    try:
        source = from_bytes(path, data)
    except NotPython as error:
        if writes_text:
            write_bytes(data)
        warn(options, [f"{shown_path(path)}: {error}"])
        return Outcome()
    except Unreadable as error:
        if writes_text:
            write_bytes(data)
        outcome = Outcome((FileResult(path, problem=Problem("unreadable", str(error))),))
        report(options, run_settings, outcome, Texts({path: None}), err=writes_text)
        return outcome
    if not options.changes_text:
        texts, files = Texts({path: source}), ((str(path), settings),)
        outcome = Outcome((check_source(source, settings),))
        outcome = without_known(options, run_settings, outcome, texts, files)
        report(options, run_settings, outcome, texts)
        return outcome
    fixed = fix_text(source, settings, bool(run_settings.unsafe_fixes))
    warn(options, fixed.refusals)
    if options.diff:
        label = options.stdin_filename or "<stdin>"
        differs = print_diff(options, label, source, fixed.source)
        say_would_fix(options, len(fixed.applied), len(fixed.held_back))
        return Outcome(differs=differs)
    write_bytes(fixed.source.data)
    done = ((path, fixed.applied),) if fixed.applied else ()
    texts = Texts({path: fixed.source})
    outcome = Outcome((fixed.result,), done)
    outcome = without_known(options, run_settings, outcome, texts, ((str(path), settings),))
    report(options, run_settings, outcome, texts, err=True)
    return outcome


def write_bytes(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
