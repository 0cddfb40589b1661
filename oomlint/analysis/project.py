"""The files around a file: import resolution, parsing on demand, and who calls what."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from oomlint.analysis import modules, outline, parsing
from oomlint.analysis.modules import Class, Function, LazyModule, Module
from oomlint.source import Unreadable, read

if TYPE_CHECKING:
    from oomlint.analysis.construction import Built
    from oomlint.analysis.roots import Learnt
    from oomlint.analysis.state import World
    from oomlint.analysis.teaching import Teaching

# Modules kept parsed in one process: those of a large package.
KEPT_MODULES = 500
# Other files that one analysis may read; what lies further away is outside.
MAX_MODULES = 24
# Text of one project kept for the question who calls a function.
KEPT_BYTES = 150 * 1024 * 1024
SKIPPED_FOLDERS = frozenset(
    "node_modules site-packages __pycache__ build dist venv env .venv .git .hg .tox .nox".split()
)

Stamp = tuple[int, int]
parsed: OrderedDict[Path, tuple[Stamp, Module | None]] = OrderedDict()
# What imports of functions led to, by where they start from and what they name: a thousand files
# import the same few.
LEARNT: dict[tuple[tuple[str, ...], str], Learnt] = {}
# Modules that are no longer kept, but may still be in use by the analysis under way.
evicted: list[Module | None] = []


def load(path: Path) -> Module | None:
    """The module at a path, from memory while the file is unchanged; None if unreadable."""
    try:
        stamp = stamp_of(path)
    except OSError:
        return None
    known = parsed.get(path)
    if known and known[0] == stamp:
        parsed.move_to_end(path)
        return known[1]
    module: Module | None
    try:
        source = read(path)
        module = outline.sketch(source)
    except (Unreadable, OSError):
        module = None
    parsed[path] = (stamp, module)
    while len(parsed) > KEPT_MODULES:
        evicted.append(parsed.popitem(last=False)[1][1])
    return module


@lru_cache(maxsize=64)
def load_whole(path: Path) -> Module | None:
    """The module at a path with all of its statements, for questions about where calls stand."""
    try:
        source = read(path)
        return modules.build(source, parsing.parse(source.text), *modules.module_name(path))
    except (Unreadable, OSError, parsing.SyntaxProblem):
        return None


def mentions(path: Path, name: str) -> bool:
    try:
        stamp = stamp_of(path)
        known = parsed.get(path)
        if known and known[0] == stamp:
            text = known[1].source.text if known[1] is not None else ""
            return name in text or "import *" in text
        data = path.read_bytes()
    except OSError:
        return False
    return name.encode() in data or b"import *" in data


def stamp_of(path: Path) -> Stamp:
    """What differs once a file has changed. Raises OSError."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size


Definition = Function | Class | Module


@dataclass(eq=False)
class Project:
    """What one analysis sees of the project, and every file that its answer depended on."""

    root: Path
    subject: Module
    dependencies: set[Path] = field(default_factory=set)
    asked_callers: bool = False
    # Whether an answer rests on the checked file itself.
    met_subject: bool = False
    # Answers that do not change during one analysis.
    found: dict[tuple[int, str], Definition | None] = field(default_factory=dict)
    found_functions: dict[tuple[int, str], Function | None] = field(default_factory=dict)
    # Names that a module calls and from which no training event is reached.
    quiet: dict[Module, set[str]] = field(default_factory=dict)
    starts: dict[Path, list[str]] = field(default_factory=dict)
    loaded: set[Path] = field(default_factory=set)
    # What was loaded so far: one analysis sees one version of a file.
    read_so_far: dict[Path, Module | None] = field(default_factory=dict)
    lineages: dict[Class, list[Class]] = field(default_factory=dict)
    base_names: dict[Class, list[str]] = field(default_factory=dict)
    constructed: dict[Class, list[Built]] = field(default_factory=dict)
    # Every world, those that said nothing new included.
    followed: list[World] = field(default_factory=list)
    # What the settings say about functions of this project, and the words of events among it.
    teaching: Teaching | None = None
    taught_words: frozenset[str] = frozenset()

    def module(self, path: Path, wanted: str) -> Module | None:
        """The module at a path, where its text mentions the wanted name at all."""
        if path in self.read_so_far:
            return self.read_so_far[path]
        if path == self.subject.path:
            self.met_subject = True
            return self.subject
        self.dependencies.add(path)
        if path not in self.loaded:
            if wanted and not mentions(path, wanted):
                return None
            if len(self.loaded) >= MAX_MODULES:
                return None
            self.loaded.add(path)
        self.read_so_far[path] = load(path)
        return self.read_so_far[path]

    def bases(self, importer: Module) -> list[str]:
        """Folders, with a separator at the end, from which an absolute import may start."""
        known = self.starts.get(importer.path)
        if known is None:
            known = self.starts[importer.path] = starts_of(importer.path.parent, self.root)
        return known

    def find(self, qualified: str, importer: Module, depth: int = 0) -> Definition | None:
        """What a qualified name means inside the project; None for everything outside of it."""
        key = (id(importer), qualified)
        if key not in self.found:
            self.found[key] = self.search(qualified, importer, depth)
        return self.found[key]

    def function(self, qualified: str, importer: Module) -> Function | None:
        """The function that a qualified name means; a class of the name is not even parsed."""
        key = (id(importer), qualified)
        if key not in self.found_functions:
            found = self.found.get(key) or self.search(qualified, importer, 0, functions=True)
            self.found_functions[key] = found if isinstance(found, Function) else None
        return self.found_functions[key]

    def search(
        self, qualified: str, importer: Module, depth: int, functions: bool = False
    ) -> Definition | None:
        parts = qualified.split(".")
        for base in self.bases(importer):
            if not has_top(base, parts[0]) and self.subject_at(base, parts[:1]) is None:
                # Either file would change the answer if it came to be.
                self.dependencies.update(absent(base, parts[0]))
                continue
            for length in range(len(parts), 0, -1):
                path = module_file(base, tuple(parts[:length]))
                path = path or self.subject_at(base, parts[:length])
                if path is None:
                    continue
                module = self.module(path, parts[length] if length < len(parts) else "")
                if module is None:
                    break
                found = self.member(module, parts[length:], depth, functions)
                if found is not None:
                    return found
                break
        return None

    def subject_at(self, base: str, parts: list[str]) -> Path | None:
        """The checked file itself, which an editor may not have saved yet."""
        path = self.subject.path
        if not self.subject_name.endswith(f"{parts[-1]}.py"):
            return None
        return path if f"{base}{os.sep.join(parts)}.py" == self.subject_name else None

    @cached_property
    def subject_name(self) -> str:
        return str(self.subject.path)

    def re_exported(
        self, target: str, module: Module, depth: int, functions: bool
    ) -> Definition | None:
        if functions:
            return self.search(target, module, depth + 1, functions)
        return self.find(target, module, depth + 1)

    def member(
        self, module: Module, rest: list[str], depth: int = 0, functions: bool = False
    ) -> Definition | None:
        """A definition inside a module, re-exports followed."""
        if not rest:
            return module
        name = rest[0]
        if functions and len(rest) == 1 and is_class(module, name):
            # Found, whatever is in it: nothing else is meant.
            return module
        cls = module.class_(name)
        if cls is not None:
            return cls if len(rest) == 1 else cls.methods.get(rest[1])
        function = module.function(name)
        if function is not None:
            return function if len(rest) == 1 else None
        if depth > 4:
            return None
        if name in module.imports:
            target = ".".join([module.imports[name], *rest[1:]])
            return self.re_exported(target, module, depth, functions)
        for star in module.stars:
            target = ".".join([star, *rest])
            found_by_star = self.re_exported(target, module, depth, functions)
            if found_by_star is not None:
                return found_by_star
        return None


@lru_cache(maxsize=4096)
def starts_of(folder: Path, root: Path) -> list[str]:
    """Folders, with a separator at the end, from which an import of a file in `folder` starts."""
    top = folder
    while (top / "__init__.py").is_file() and top.parent != top:
        top = top.parent
    return list(dict.fromkeys(inside(place) for place in (top, folder, root, root / "src")))


def is_class(module: Module, name: str) -> bool:
    """Whether a module defines a class of this name, as its lines say."""
    start = module.pending.get(name) if isinstance(module, LazyModule) else None
    if start is None:
        return name in module.classes
    return module.source.text.startswith("class", start)


def inside(folder: Path) -> str:
    """What the paths of a folder's entries begin with."""
    name = str(folder)
    return "" if name == os.curdir else os.path.join(name, "")


@lru_cache(maxsize=4096)
def has_top(base: str, top: str) -> bool:
    return os.path.isfile(f"{base}{top}.py") or os.path.isdir(f"{base}{top}")


@lru_cache(maxsize=4096)
def absent(base: str, top: str) -> tuple[Path, Path]:
    return Path(f"{base}{top}.py"), Path(base, top, "__init__.py")


@lru_cache(maxsize=16384)
def module_file(base: str, parts: tuple[str, ...]) -> Path | None:
    name = base + os.sep.join(part for part in parts if part)
    for candidate in (f"{name}.py", os.path.join(name, "__init__.py")):
        if os.path.isfile(candidate):
            return Path(candidate)
    return None


taught_last: list[tuple[object, ...]] = [()]


def keep_apart(effects: tuple[object, ...]) -> None:
    """Drops modules that remember what is eventful in them under other effects."""
    if taught_last[0] != effects:
        taught_last[0] = effects
        parsed.clear()


def forget_files() -> None:
    """Drops what is remembered about which files exist (an editor's project changes)."""
    LEARNT.clear()
    has_top.cache_clear()
    starts_of.cache_clear()
    module_file.cache_clear()
    project_texts.cache_clear()
    load_whole.cache_clear()


@lru_cache(maxsize=1)
def project_texts(root: Path) -> dict[Path, bytes]:
    """The bytes of every Python file of a project, up to a limit."""
    texts: dict[Path, bytes] = {}
    total = 0
    for folder, names, files in os.walk(root):
        names[:] = sorted(n for n in names if n not in SKIPPED_FOLDERS and not n.startswith("."))
        for name in sorted(files):
            if not name.endswith(".py"):
                continue
            path = Path(folder, name)
            try:
                data = path.read_bytes()
            except OSError:
                continue
            total += len(data)
            if total > KEPT_BYTES:
                return texts
            texts[path] = data
    return texts
