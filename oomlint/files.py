"""Paths from the command line -> Python files and notebooks, as git and the settings say."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from oomlint.errors import OomlintError
from oomlint.settings import Settings, SettingsFinder

SUFFIXES = (".py", ".pyi", ".ipynb")

# One line of a gitignore file: its regular expression and whether a match ignores.
Rules = tuple[tuple[re.Pattern[str], bool], ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Files to check, as absolute paths with their settings, sorted and each once."""

    files: tuple[tuple[str, Settings], ...]
    # Python files that were left out by excludes or gitignore.
    excluded: int


@dataclass(frozen=True, slots=True)
class Ignore:
    """The gitignore rules of one folder; `prefix` is that folder with a trailing separator."""

    prefix: str
    rules: Rules

    def verdict(self, path: str, is_folder: bool) -> bool | None:
        """True: ignored, False: wanted again, None: this file says nothing."""
        name = path[len(self.prefix) :]
        if os.sep != "/":
            name = name.replace(os.sep, "/")
        if is_folder:
            name += "/"
        for pattern, ignores in self.rules:
            match = pattern.match(name)
            # A match that ends inside the name is about a folder above this entry.
            if match is not None and match.end() >= len(name):
                return ignores
        return None


@dataclass(slots=True)
class Walk:
    finder: SettingsFinder
    found: dict[str, Settings] = field(default_factory=dict)
    excluded: int = 0

    def add(self, path: str, settings: Settings) -> None:
        self.found.setdefault(path, settings)


def find_files(paths: Iterable[str], finder: SettingsFinder) -> Found:
    """The Python files at and below `paths`. Raises OomlintError for a path that does not exist."""
    walk = Walk(finder)
    for path in paths:
        absolute = os.path.abspath(path)
        try:
            is_folder = os.path.isdir(absolute)
            os.stat(absolute)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise OomlintError(f"{path}: {reason[:1].lower()}{reason[1:]}") from None
        if is_folder:
            walk_folder(walk, absolute)
            continue
        settings = finder.for_file(absolute)
        if is_excluded(absolute, settings):
            walk.excluded += 1
        else:
            walk.add(absolute, settings)
    files = tuple(sorted(walk.found.items(), key=lambda item: item[0]))
    return Found(files, walk.excluded)


def is_excluded(path: str, settings: Settings) -> bool:
    """Whether a path that was named itself is left out, which only `force-exclude` can do."""
    return settings.force_exclude and any(item.covers(path) for item in settings.exclude)


def walk_folder(walk: Walk, top: str) -> None:
    settings = walk.finder.for_folder(top)
    if is_excluded(top, settings):
        return
    ignores = repository_ignores(top) if settings.respect_gitignore else ()
    stack: list[tuple[str, tuple[Ignore, ...]]] = [(top, ignores)]
    while stack:
        folder, inherited = stack.pop()
        visit(walk, folder, inherited, stack)


def visit(
    walk: Walk,
    folder: str,
    ignores: tuple[Ignore, ...],
    stack: list[tuple[str, tuple[Ignore, ...]]],
) -> None:
    """Adds a folder's own files and puts its folders on the stack."""
    try:
        with os.scandir(folder) as entries:
            listed = list(entries)
    except OSError:
        return
    settings = walk.finder.for_folder(folder)
    names = {entry.name for entry in listed}
    if settings.respect_gitignore:
        if ".git" in names:
            # A repository of its own: what lies above it does not count.
            ignores = repository_ignores(folder)
        elif ".gitignore" in names:
            ignores = (*ignores, *read_ignore(os.path.join(folder, ".gitignore"), folder))
    is_left_out = exclusion(settings)
    suffixes = (*SUFFIXES, *(f".{name}" for name in settings.extension))
    for entry in listed:
        path = entry.path
        if entry.is_dir(follow_symlinks=False):
            if not is_left_out(entry.name, path) and not is_ignored(ignores, path, True):
                stack.append((path, ignores))
            continue
        if not entry.name.endswith(suffixes) or not is_file(entry):
            continue
        if is_left_out(entry.name, path) or is_ignored(ignores, path, False):
            walk.excluded += 1
        else:
            walk.add(path, settings)


def is_file(entry: os.DirEntry[str]) -> bool:
    """A file, or a link that leads nowhere (reported later); editors' lock links are neither."""
    if not entry.is_symlink():
        return True
    if entry.name.startswith(".#"):
        return False
    try:
        return not entry.is_dir()
    except OSError:
        return True


EXCLUSIONS: dict[int, tuple[Settings, Callable[[str, str], bool]]] = {}


def exclusion(settings: Settings) -> Callable[[str, str], bool]:
    """A quick test of one entry (name, absolute path) against the excludes."""
    known = EXCLUSIONS.get(id(settings))
    if known is not None and known[0] is settings:
        return known[1]
    plain = frozenset(p.glob for p in settings.exclude if not re.search(r"[/*?\[]", p.glob))
    others = tuple(p for p in settings.exclude if p.glob not in plain)

    def is_left_out(name: str, path: str) -> bool:
        return name in plain or any(pattern.matches(path) for pattern in others)

    EXCLUSIONS[id(settings)] = settings, is_left_out
    return is_left_out


def is_ignored(ignores: tuple[Ignore, ...], path: str, is_folder: bool) -> bool:
    """The innermost gitignore file that says anything about the path decides, as in git."""
    for ignore in reversed(ignores):
        verdict = ignore.verdict(path, is_folder)
        if verdict is not None:
            return verdict
    return False


def repository_ignores(folder: str) -> tuple[Ignore, ...]:
    """All gitignore files that apply inside `folder`, its own among them, the weakest first."""
    above: list[str] = []
    top = folder
    while not os.path.exists(os.path.join(top, ".git")):
        above.append(top)
        parent = os.path.dirname(top)
        if parent == top:
            return tuple(read_ignore(os.path.join(folder, ".gitignore"), folder))
        top = parent
    above.append(top)
    found = list(read_ignore(os.path.join(global_config(), "git", "ignore"), top))
    found += read_ignore(os.path.join(top, ".git", "info", "exclude"), top)
    for holder in reversed(above):
        found += read_ignore(os.path.join(holder, ".gitignore"), holder)
    return tuple(found)


def global_config() -> str:
    return os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")


def read_ignore(path: str, folder: str) -> Iterator[Ignore]:
    """The rules of one gitignore file, the last line first; nothing when there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            text = lines.read()
    except OSError:
        return
    rules = gitignore_rules(text.splitlines())
    if rules:
        yield Ignore(folder.rstrip(os.sep) + os.sep, rules)


def gitignore_rules(lines: Iterable[str]) -> Rules:
    wanted = [line for line in lines if line.strip() and not line.startswith("#")]
    if not wanted:
        return ()
    from pathspec import GitIgnoreSpec

    rules: list[tuple[re.Pattern[str], bool]] = []
    for line in wanted:
        try:
            patterns = GitIgnoreSpec.from_lines([line]).patterns
        except ValueError:
            continue  # git, too, passes over a pattern that means nothing
        for pattern in patterns:
            if pattern.include is not None and pattern.regex is not None:
                rules.append((pattern.regex, pattern.include))
    return tuple(reversed(rules))
