"""What was known before: a file of findings, matched by fingerprint so that lines may move."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from oomlint.errors import OomlintError
from oomlint.fingerprints import fingerprints
from oomlint.keys import relative_name
from oomlint.linter import FileResult
from oomlint.source import Source

VERSION = 1


@dataclass(frozen=True, slots=True)
class Known:
    """One finding; `path` has slashes and is relative to the folder of the baseline."""

    path: str
    code: str
    message: str
    fingerprint: str

    @property
    def key(self) -> tuple[str, str]:
        return self.path, self.fingerprint


@dataclass(frozen=True, slots=True)
class Compared:
    """Results without what was known, how much that was, and what was known and is gone."""

    results: tuple[FileResult, ...]
    hidden: int
    unmatched: tuple[Known, ...]


def current(
    results: Iterable[FileResult], folder: Path, text_of: Callable[[Path], Source | None]
) -> dict[Path, tuple[Known, ...]]:
    """The findings of each file as a baseline in `folder` would hold them, in their order."""
    return {
        result.path: entries_of(result, relative_name(result.path, folder), text_of)
        for result in results
    }


def entries_of(
    result: FileResult, name: str, text_of: Callable[[Path], Source | None]
) -> tuple[Known, ...]:
    """The findings of a file as a baseline holds them that knows it under a name."""
    places = [(finding.code, finding.row) for finding in result.findings]
    digests = fingerprints(name, places, text_of(result.path)) if places else ()
    return tuple(
        Known(name, finding.code, finding.message, digest)
        for finding, digest in zip(result.findings, digests, strict=True)
    )


def under_old_names(
    results: Iterable[FileResult],
    found: Mapping[Path, tuple[Known, ...]],
    baseline: Collection[Known],
    is_there: Callable[[str], bool],
    text_of: Callable[[Path], Source | None],
) -> dict[Path, tuple[Known, ...]]:
    """The same findings, those of renamed files under the names that the baseline has for them.

    A file was renamed if the baseline does not know its name but, under a name whose file
    `is_there` no more, at least half of its findings.
    """
    keys = {known.key for known in baseline}
    names = {known.path for known in baseline}
    vanished = sorted(name for name in names if not is_there(name))
    if len(vanished) == len(names):
        return dict(found)  # it is about files elsewhere
    by_name = dict(found)
    for result in results:
        own = found[result.path]
        if not vanished or not own or own[0].path in names:
            continue
        tried = [entries_of(result, name, text_of) for name in vanished]
        best = max(tried, key=lambda entries: sum(known.key in keys for known in entries))
        if 2 * sum(known.key in keys for known in best) >= len(best):
            by_name[result.path] = best
            vanished.remove(best[0].path)
    return by_name


def compare(
    results: Iterable[FileResult],
    found: Mapping[Path, tuple[Known, ...]],
    baseline: Iterable[Known],
) -> Compared:
    """Parts what is new from what the baseline holds."""
    left = {known.key: known for known in baseline}
    remaining = []
    hidden = 0
    for result in results:
        new = []
        for finding, known in zip(result.findings, found[result.path], strict=True):
            if left.pop(known.key, None) is None:
                new.append(finding)
            else:
                hidden += 1
        remaining.append(replace(result, findings=tuple(new)))
    return Compared(tuple(remaining), hidden, tuple(left.values()))


def judged(
    unmatched: Iterable[Known],
    folder: Path,
    codes: Mapping[str, Collection[str]],
    exists: Callable[[Path], bool],
) -> tuple[Known, ...]:
    """The entries of which this run can say that they are gone.

    `codes` holds the rules that were asked in each file that was checked, by its absolute path.
    """
    return tuple(
        known
        for known in unmatched
        for path in (folder / known.path,)
        if (known.code in codes[str(path)] if str(path) in codes else not exists(path))
    )


def render(entries: Iterable[Known]) -> str:
    """The text of a baseline: sorted, so that it changes little from commit to commit."""
    files: dict[str, list[dict[str, str]]] = {}
    ordered = sorted(entries, key=lambda known: (known.path, known.code, known.message, known.key))
    for known in ordered:
        files.setdefault(known.path, []).append(
            {"code": known.code, "message": known.message, "fingerprint": known.fingerprint}
        )
    return json.dumps({"version": VERSION, "findings": files}, indent=2) + "\n"


def parse(text: str, shown: str) -> tuple[Known, ...]:
    """The entries of a baseline. Raises OomlintError for a file that is none."""
    try:
        document = json.loads(text)
        version, files = document["version"], document["findings"]
        if version == VERSION:
            return tuple(
                Known(path, entry["code"], entry["message"], entry["fingerprint"])
                for path, found in files.items()
                for entry in found
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise OomlintError(
            f"{shown}: is no baseline of oomlint; write one with `--write-baseline {shown}`"
        ) from None
    raise OomlintError(
        f"{shown}: is a baseline of version {version}, and this oomlint reads version {VERSION};"
        " write it anew with the oomlint that you use"
    )
