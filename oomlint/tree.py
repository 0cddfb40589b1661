"""Checks many files: stored results first, the rest in parallel workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from oomlint.cache import Contents, ProjectCache, digest_of
from oomlint.fixer import FixedFile, fix_file
from oomlint.linter import FileResult, Problem, check_bytes, let_stay, unreadable
from oomlint.selection import select
from oomlint.settings import Settings
from oomlint.source import Unreadable
from oomlint.workers import Chunk, Died, Work, available_jobs, run

FILES_PER_CHUNK = 24
# Near the end of a large tree a chunk is such a part of what is left, so that all workers end at
# about the same time.
PARTS_AT_THE_END = 12
# In more files than this, found in folders, a file in which no rule can fire is not parsed just to
# say that it is no Python: that would cost more than all the rest.
SYNTAX_FILES = 2000

# The answer of a worker about a file of which nothing is said and nothing stored.
NOTHING = (None, "")

# Told how many of how many files are done.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class TreeResult:
    """What a run has to say: only files with findings, problems or warnings, in order of path."""

    results: tuple[FileResult, ...]
    checked: int
    # Files whose stored result was still true.
    cached: int
    # About selectors that have no effect.
    warnings: tuple[str, ...]


@dataclass(slots=True)
class Group:
    """The files of one project under one set of settings."""

    settings: Settings
    paths: list[str]
    cache: ProjectCache | None = None
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def check_paths(
    files: Iterable[tuple[str, Settings]],
    *,
    jobs: int | None = None,
    use_cache: bool = True,
    progress: Progress | None = None,
) -> TreeResult:
    """Checks absolute paths under their settings. Raises OomlintError for an unknown selector."""
    files = tuple(files)
    syntax = len(files) <= SYNTAX_FILES
    groups = grouped(files)
    started, contents = time.time_ns(), Contents()
    results: list[FileResult] = []
    for group in groups:
        if use_cache:
            group.cache = ProjectCache(group.settings, contents, started)
        results += look_up(group, syntax)
    owners = {path: group for group in groups for path in group.missing}
    total = len(files)
    done = total - len(owners)
    work = partial(check_one, syntax=syntax, digested=use_cache)
    for path, outcome in run(chunks(groups, work), jobs or available_jobs(), let_stay):
        done += 1
        if progress is not None:
            progress(done, total)
        if outcome == NOTHING:
            continue
        result, digest = taken(path, outcome, contents)
        cache = owners[path].cache
        if cache is not None:
            cache.store(result, digest, syntax)
        if says_something(result):
            results.append(result)
    for group in groups:
        if group.cache is not None:
            group.cache.save(group.warnings)
    warnings = dict.fromkeys(warning for group in groups for warning in group.warnings)
    results.sort(key=lambda result: str(result.path))
    return TreeResult(tuple(results), total, total - len(owners), tuple(warnings))


def taken(
    path: str, outcome: tuple[FileResult | None, str] | Died, contents: Contents
) -> tuple[FileResult, str]:
    """A result and the digest of its content, which is empty for what must not be stored."""
    if not isinstance(outcome, Died):
        return outcome[0] or FileResult(Path(path)), outcome[1]
    # Slowness lies in the file and is remembered; a death may have come from outside.
    return crashed(path, outcome), contents.digest(path) if outcome.too_slow else ""


def grouped(files: Iterable[tuple[str, Settings]]) -> list[Group]:
    groups: dict[int, Group] = {}
    for path, settings in files:
        if id(settings) not in groups:
            groups[id(settings)] = Group(settings, [])
        groups[id(settings)].paths.append(path)
    return list(groups.values())


def look_up(group: Group, syntax: bool) -> Iterator[FileResult]:
    """Yields stored results that say something; sets what is missing, and the warnings."""
    missing = []
    for path in group.paths:
        result = group.cache.lookup(path, syntax) if group.cache else None
        if result is None:
            missing.append(path)
        elif says_something(result):
            yield result
    group.missing = tuple(missing)
    if group.cache is None or group.cache.warnings is None or missing:
        # Imports the rules, and refuses unknown selectors before any worker starts.
        group.warnings = select(group.settings).warnings
    else:
        group.warnings = tuple(group.cache.warnings)


def says_something(result: FileResult) -> bool:
    return bool(result.findings or result.problem or result.warnings)


def chunks(groups: Sequence[Group], work: Work) -> Iterator[Chunk]:
    left = sum(len(group.missing) for group in groups)
    is_large = left // FILES_PER_CHUNK > 2 * PARTS_AT_THE_END
    for group in groups:
        paths = group.missing
        while paths:
            size = FILES_PER_CHUNK
            if is_large:
                size = min(size, max(1, left // PARTS_AT_THE_END))
            yield Chunk(work, group.settings, paths[:size])
            paths, left = paths[size:], left - len(paths[:size])


def check_one(
    path: str, settings: Settings, *, syntax: bool, digested: bool
) -> tuple[FileResult | None, str]:
    """In a worker: the result, and where it will be stored the digest of what it belongs to.

    None stands for the result of a file about which there is nothing to say: most of a large tree.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        return unreadable(Path(path), error), ""
    result = check_bytes(Path(path), data, settings, syntax=syntax)
    digest = digest_of(data) if digested else ""
    return (None if result == FileResult(result.path) else result), digest


def crashed(path: str, death: Died) -> FileResult:
    message = f"the process that checked this file ended ({death.reason}); it was not checked"
    return FileResult(Path(path), problem=Problem("crashed", message))


def fix_paths(
    files: Iterable[tuple[str, Settings]], unsafe: bool, jobs: int | None = None
) -> Iterator[tuple[str, FixedFile | str]]:
    """Computes fixed texts in workers, as (path, text or why there is none); writes nothing."""
    work = fix_unsafe if unsafe else fix_safe
    pending = [Chunk(work, settings, (path,)) for path, settings in files]
    for path, outcome in run(pending, jobs or available_jobs(), let_stay):
        if isinstance(outcome, Died):
            yield path, f"a worker died while fixing this file ({outcome.reason}); it is unchanged"
        else:
            yield path, outcome


def fix_safe(path: str, settings: Settings) -> FixedFile | str:
    return fix_or_reason(path, settings, unsafe=False)


def fix_unsafe(path: str, settings: Settings) -> FixedFile | str:
    return fix_or_reason(path, settings, unsafe=True)


def fix_or_reason(path: str, settings: Settings, unsafe: bool) -> FixedFile | str:
    try:
        return fix_file(path, settings, unsafe)
    except (OSError, Unreadable) as error:
        return f"cannot be fixed: {error}"
