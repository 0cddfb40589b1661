"""Results of earlier runs, one file a project, valid while all that they depended on is unchanged.

A file's own content and the content of its dependencies decide, by hash: times and sizes can lie,
and reading what is already in the page cache costs far less than checking it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import oomlint
from oomlint import registry
from oomlint.linter import FileResult, Problem
from oomlint.rule import Edit, Finding, Fix, Safety, Severity, Waypoint
from oomlint.settings import DEFAULT_EXCLUDE, Settings

FORMAT = 1
FOLDER = ".oomlint_cache"
TAG = "CACHEDIR.TAG"
# Ends the digest of a file that was taken for Python on trust.
TRUSTED = "~"
# Runs with other selections keep their own files; the oldest go.
KEPT_FILES = 8


def digest_of(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


@dataclass(slots=True)
class Contents:
    """The hash of each file's content, read once a run; empty for a file that is not there."""

    known: dict[str, str] = field(default_factory=dict)
    # The newest change seen, to tell files that were written while the run was reading them.
    changed: dict[str, int] = field(default_factory=dict)
    callers: dict[str, str] = field(default_factory=dict)

    def digest(self, path: str) -> str:
        found = self.known.get(path)
        if found is None:
            found = self.known[path] = self.read(path)
        return found

    def read(self, path: str) -> str:
        try:
            with open(path, "rb", buffering=0) as file:
                self.changed[path] = os.fstat(file.fileno()).st_mtime_ns
                return digest_of(file.read())
        except OSError:
            return ""

    def digest_of_project(self, root: str) -> str:
        """Path, size and time of every Python file of a project: who may call into whom."""
        found = self.callers.get(root)
        if found is None:
            state = hashlib.blake2b(digest_size=16)
            for line in project_lines(root):
                state.update(line.encode("utf-8", "surrogateescape"))
            found = self.callers[root] = state.hexdigest()
        return found


def project_lines(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in DEFAULT_EXCLUDE)
        for name in sorted(names):
            if name.endswith((".py", ".pyi")):
                path = os.path.join(folder, name)
                with contextlib.suppress(OSError):
                    state = os.stat(path)
                    yield f"{path[len(root) :]} {state.st_size} {state.st_mtime_ns}\n"


class ProjectCache:
    """The stored results of one project under one set of settings."""

    def __init__(self, settings: Settings, contents: Contents, started_ns: int) -> None:
        self.root = str(settings.root)
        self.contents = contents
        self.started_ns = started_ns
        self.path = cache_path(settings)
        self.files: dict[str, Any] = {}
        self.warnings: list[str] | None = None
        self.fresh: dict[str, Any] = {}
        self.seen: set[str] = set()
        self.load()

    def load(self) -> None:
        try:
            document = json.loads(self.path.read_bytes())
            if document["format"] == FORMAT and isinstance(document["files"], dict):
                self.files, self.warnings = document["files"], list(document["warnings"])
        except (OSError, ValueError, KeyError, TypeError):
            self.files, self.warnings = {}, None

    def relative(self, path: str) -> str:
        prefix = self.root.rstrip(os.sep) + os.sep
        return path[len(prefix) :] if path.startswith(prefix) else path

    def absolute(self, name: str) -> str:
        return os.path.join(self.root, name)

    def lookup(self, path: str, syntax: bool) -> FileResult | None:
        """The stored result, or None when there is none or anything it rests on has changed.

        With `syntax`, the result of a file that was taken for Python on trust is none.
        """
        name = self.relative(path)
        self.seen.add(name)
        entry = self.files.get(name)
        if entry is None:
            return None
        if isinstance(entry, str):
            is_known = not syntax or not entry.endswith(TRUSTED)
            same = is_known and self.contents.digest(path) == entry.rstrip(TRUSTED)
            return FileResult(Path(path)) if same else None
        try:
            own, dependencies, state, callers, payload = entry
            if self.contents.digest(path) != own or self.state_of(dependencies) != state:
                return None
            if callers and self.contents.digest_of_project(self.root) != callers:
                return None
            return self.unpack(path, dependencies, bool(callers), payload)
        except (ValueError, TypeError, KeyError):
            return None

    def store(self, result: FileResult, digest: str, syntax: bool) -> None:
        """Remembers a result that was computed from content with this digest."""
        if not digest or (result.problem and result.problem.kind == "internal-error"):
            return
        names = [self.relative(str(path)) for path in result.dependencies]
        state = self.state_of(names)
        if any(self.is_recent(name) for name in names):
            return
        name = self.relative(str(result.path))
        says = result.findings or result.problem or result.warnings
        if not says and not names and not result.depends_on_callers:
            self.fresh[name] = digest if syntax else digest + TRUSTED
            return
        callers = self.contents.digest_of_project(self.root) if result.depends_on_callers else ""
        self.fresh[name] = [digest, names, state, callers, self.pack(result)]

    def is_recent(self, name: str) -> bool:
        return self.contents.changed.get(self.absolute(name), 0) >= self.started_ns

    def state_of(self, names: list[str]) -> str:
        if not names:
            return ""
        lines = (f"{name} {self.contents.digest(self.absolute(name))}" for name in names)
        return digest_of("\n".join(lines).encode("utf-8", "surrogateescape"))

    def save(self, warnings: tuple[str, ...]) -> None:
        """Writes what is new, atomically; a folder that cannot be written is no error."""
        if not self.fresh and self.warnings is not None:
            return
        files = {
            name: entry
            for name, entry in self.files.items()
            if name in self.seen or os.path.exists(self.absolute(name))
        }
        files.update(self.fresh)
        document = {"format": FORMAT, "warnings": list(warnings), "files": files}
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            prepare_folder(self.path.parent)
            temporary.write_text(json.dumps(document, separators=(",", ":")))
            os.replace(temporary, self.path)
            prune(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def pack(self, result: FileResult) -> Any:
        problem = result.problem
        return [
            [self.pack_finding(finding) for finding in result.findings],
            [problem.kind, problem.message, problem.row, problem.column] if problem else None,
            list(result.warnings),
        ]

    def pack_finding(self, f: Finding) -> Any:
        fix = f.fix
        return [
            [f.code, f.name, f.message, f.severity.value, f.start, f.end],
            [f.row, f.column, f.end_row, f.end_column],
            fix and [fix.title, [[e.start, e.end, e.content] for e in fix.edits], fix.safety.value],
            [
                [
                    *(w.what, w.row, w.column, w.end_row, w.end_column),
                    self.relative(w.filename) if w.filename else "",
                ]
                for w in f.path
            ],
        ]

    def unpack(self, path: str, names: list[str], callers: bool, payload: Any) -> FileResult:
        findings, problem, warnings = payload
        return FileResult(
            Path(path),
            tuple(self.unpack_finding(item) for item in findings),
            Problem(*problem) if problem else None,
            tuple(warnings),
            tuple(Path(self.absolute(name)) for name in names),
            callers,
        )

    def unpack_finding(self, item: Any) -> Finding:
        (code, name, message, severity, start, end), places, fix, waypoints = item
        row, column, end_row, end_column = places
        return Finding(
            *(code, name, message, Severity(severity), start, end),
            *(row, column, end_row, end_column),
            Fix(fix[0], tuple(Edit(*e) for e in fix[1]), Safety(fix[2])) if fix else None,
            tuple(self.unpack_waypoint(waypoint) for waypoint in waypoints),
        )

    def unpack_waypoint(self, item: Any) -> Waypoint:
        what, row, column, end_row, end_column, name = item
        filename = self.absolute(name) if name else ""
        return Waypoint(what, row, column, end_row, end_column, filename)


def cache_path(settings: Settings) -> Path:
    """Where a project's results lie: in the project, or the user's cache when it has no marker."""
    key = digest_of(f"{FORMAT} {registry.digest()} {settings.fingerprint}".encode())[:16]
    name = f"{oomlint.__version__}-{key}.json"
    if settings.cache_dir is None and settings.is_project:
        return settings.root / FOLDER / name
    own = digest_of(os.fsencode(settings.root))[:16]
    return (settings.cache_dir or user_cache()) / f"{own}-{name}"


def results_outside(settings: Settings) -> list[Path]:
    """The stored results of a project that do not lie in a cache folder of its own."""
    own = digest_of(os.fsencode(settings.root))[:16]
    folders = {settings.cache_dir or user_cache(), user_cache()}
    return sorted(path for folder in folders for path in folder.glob(f"{own}-*.json"))


def is_cache(folder: Path) -> bool:
    """Whether a folder is one that `prepare_folder` made."""
    return (folder / TAG).is_file() and not folder.is_symlink()


def user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "oomlint"


def prepare_folder(folder: Path) -> None:
    """Makes the cache folder, told to git and to backups as not worth keeping."""
    if folder.is_dir():
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    (folder / TAG).write_text("Signature: 8a477f597d28d172789f06886806bc55\n")


def prune(written: Path) -> None:
    """Removes the oldest files of the same project beyond the number that is kept."""
    prefix = written.name.rpartition("-")[0].rpartition("-")[0]
    others = [path for path in written.parent.glob("*.json") if path.name.startswith(prefix)]
    others.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in others[KEPT_FILES:]:
        path.unlink(missing_ok=True)
