"""Text edits -> new text: overlap, convergence, syntax, and files replaced whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oomlint.errors import OomlintError
from oomlint.linter import FileResult, check_source
from oomlint.rule import Edit, Finding, Fix, Safety
from oomlint.settings import Settings
from oomlint.source import Source, read, spliced
from oomlint.syntax import is_python

MAX_PASSES = 10


@dataclass(frozen=True, slots=True)
class FixedText:
    """A text after all applicable fixes; `result` is what its last check still says."""

    source: Source
    applied: tuple[Finding, ...]
    # Findings whose fix is unsafe and was not asked for.
    held_back: tuple[Finding, ...]
    result: FileResult
    # Findings whose fix would not have left valid Python in the file's encoding.
    refused: tuple[Finding, ...] = ()

    @property
    def text(self) -> str:
        return self.source.text

    @property
    def refusals(self) -> tuple[str, ...]:
        return tuple(refusal(self.source, finding) for finding in self.refused)


@dataclass(frozen=True, slots=True)
class FixedFile:
    """One file's source as read, and what became of its text."""

    source: Source
    fixed: FixedText


def fix_text(
    source: Source, settings: Settings, unsafe: bool, found: FileResult | None = None
) -> FixedText:
    """Applies fixes until none is left or ten passes are done. Raises nothing.

    `found` is what a check of the text with these settings has said, where there was one.
    """
    applied: list[Finding] = []
    refused: dict[tuple[str, str], Finding] = {}
    current = source
    result = found or check_source(current, settings)
    before: dict[tuple[str, ...], int] = {}
    made: dict[tuple[str, ...], Finding] = {}
    useless: set[tuple[str, ...]] = set()
    for _ in range(MAX_PASSES):
        wanted = [
            finding
            for finding in result.findings
            if is_applicable(finding.fix, unsafe) and (finding.code, finding.message) not in refused
        ]
        if not wanted:
            break
        # A fix that its own finding survives would be made again in every pass.
        seen = Counter(signature(current, finding) for finding in wanted)
        stuck = {key: made[key] for key in made if seen[key] >= before.get(key, 0) > 0}
        applied = [f for f in applied if not any(f is other for other in stuck.values())]
        useless |= stuck.keys()
        wanted = [f for f in wanted if signature(current, f) not in useless]
        before = seen
        after, done = apply_fixes(current, wanted)
        if after is None or not is_sound(after, current):
            after, done, bad = apply_sound(current, wanted)
            refused.update({(f.code, f.message): f for f in bad})
        if after.text == current.text:
            break
        applied += done
        made = {signature(current, finding): finding for finding in done}
        current = after
        result = check_source(current, settings)
    held_back = tuple(f for f in result.findings if f.fix and not is_applicable(f.fix, unsafe))
    return FixedText(current, tuple(applied), held_back, result, tuple(refused.values()))


def signature(source: Source, finding: Finding) -> tuple[str, ...]:
    """What makes a finding and its fix the same in the next pass, wherever its lines have moved."""
    edits = finding.fix.edits if finding.fix else ()
    line = source.line(finding.row).strip()
    return (finding.code, finding.message, line, *(edit.content for edit in edits))


def is_applicable(fix: Fix | None, unsafe: bool) -> bool:
    return fix is not None and (unsafe or fix.safety is Safety.SAFE)


def apply_edits(text: str, fixes: Iterable[Fix]) -> tuple[str, tuple[Fix, ...]]:
    """The text after as many fixes as do not overlap, and those fixes."""
    edits, applied = joined(fixes)
    return spliced(text, edits), applied


def joined(fixes: Iterable[Fix]) -> tuple[list[tuple[int, int, str]], tuple[Fix, ...]]:
    """The ascending edits of as many fixes as do not overlap; the earlier one wins.

    An edit that two fixes share (an import that both need) is made once.
    """
    taken: dict[tuple[int, int], Edit] = {}
    applied = []
    for fix in sorted(fixes, key=lambda fix: fix.edits[0].start if fix.edits else 0):
        new = [edit for edit in fix.edits if taken.get((edit.start, edit.end)) != edit]
        if not fix.edits or any(clashes(edit, taken) for edit in new):
            continue
        taken.update({(edit.start, edit.end): edit for edit in new})
        applied.append(fix)
    return [(*place, taken[place].content) for place in sorted(taken)], tuple(applied)


def clashes(edit: Edit, taken: dict[tuple[int, int], Edit]) -> bool:
    if (edit.start, edit.end) in taken:
        return True
    return any(edit.start < end and start < edit.end for start, end in taken)


def apply_fixes(
    source: Source, findings: Iterable[Finding]
) -> tuple[Source | None, tuple[Finding, ...]]:
    """The source after the fixes, None where a notebook's cells do not allow them."""
    findings = tuple(findings)
    fixes = {id(finding.fix): finding for finding in findings}
    edits, applied = joined(f.fix for f in findings if f.fix is not None)
    return source.edited(edits), tuple(fixes[id(fix)] for fix in applied)


def apply_sound(
    source: Source, findings: Iterable[Finding]
) -> tuple[Source, tuple[Finding, ...], tuple[Finding, ...]]:
    """Applies only fixes that leave Python behind when made alone; the last item is the others."""
    good: list[Finding] = []
    bad: list[Finding] = []
    for finding in findings:
        alone, _ = apply_fixes(source, [finding])
        (good if alone and is_sound(alone, source) else bad).append(finding)
    after, applied = apply_fixes(source, good)
    if after is None or not is_sound(after, source):
        return source, (), (*bad, *good)
    return after, applied, tuple(bad)


def is_sound(source: Source, before: Source) -> bool:
    """Whether a fixed text is Python, each cell or block by itself, and its encoding can hold it.

    A cell that was no Python before is none of the fix.
    """
    try:
        _ = source.data
    except UnicodeEncodeError:
        return False
    old, new = ([text for _, text in one.pieces()] for one in (before, source))
    # Of Markdown a block that is no Python any more would be none of its pieces.
    return len(old) == len(new) and all(
        piece == other or is_python(piece) for other, piece in zip(old, new, strict=True)
    )


def refusal(source: Source, finding: Finding) -> str:
    reason = "be valid Python in the file's encoding; please report this"
    if source.notebook:
        reason = "leave each cell valid and its magics as they are"
    if source.markdown:
        reason = "change blocks of Python alone, and leave each of them valid"
    place = source.place(finding.row) if source.notebook else f"row {finding.row}"
    return (
        f"the fix of {finding.code} at {place} was refused, because the result would not {reason}"
    )


def fix_file(path: str, settings: Settings, unsafe: bool) -> FixedFile:
    """Reads a file and fixes its text; writes nothing. Raises OSError or Unreadable."""
    source = read(Path(path))
    return FixedFile(source, fix_text(source, settings, unsafe))


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces a file's content in one step, keeping its mode; a link stays and its target changes.

    Raises OomlintError when the folder or the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    try:
        state = target.stat()
        if not os.access(target, os.W_OK):
            raise PermissionError(13, "permission denied")
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(OSError, AttributeError):
                os.chown(temporary, state.st_uid, state.st_gid)
            os.chmod(temporary, state.st_mode & 0o7777)
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{path}: cannot be written: {reason}; it is unchanged") from None
