"""Keeps what a script writes in a temporary folder that lies over the real files like a sheet."""

from __future__ import annotations

import builtins
import ctypes
import errno
import functools
import io
import os
import pathlib
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

# Devices and the process's own files are no place where results are kept.
FREE = ("/dev", "/proc", "/sys")


class Overlay:
    """Writes go to copies below `root`; reads see those first, and removed files as gone.

    It covers what Python opens itself. Where the kernel has Landlock, what native code and other
    programs try to write elsewhere is refused.
    """

    def __init__(self, root: str, free: tuple[str, ...]) -> None:
        self.root = root
        self.free = tuple(os.path.realpath(place) for place in (*free, *FREE))
        self.removed: set[str] = set()
        self.blank = True  # nothing has been written or removed yet
        self.real: dict[str, Callable[..., Any]] = {}

    # -- places

    def copy_of(self, path: Any) -> str | None:
        """Where the sheet keeps this path, or None where it does not cover it."""
        if isinstance(path, int):
            return None
        plain = os.path.abspath(os.fsdecode(path))
        parent = os.path.realpath(os.path.dirname(plain))
        plain = os.path.join(parent, os.path.basename(plain))
        if any(plain == place or plain.startswith(place + os.sep) for place in self.free):
            return None
        return self.root + plain

    def original_of(self, copy: str) -> str:
        return copy[len(self.root) :]

    def has(self, path: str) -> bool:
        try:
            self.real["lstat"](path)
        except OSError:
            return False
        return True

    def is_folder(self, path: str) -> bool:
        try:
            return stat.S_ISDIR(self.real["stat"](path).st_mode)
        except OSError:
            return False

    def is_file(self, path: str) -> bool:
        return self.has(path) and not self.is_folder(path)

    def gone(self, copy: str) -> bool:
        plain = self.original_of(copy)
        return any(plain == one or plain.startswith(one + os.sep) for one in self.removed)

    def seen(self, copy: str) -> bool:
        """Whether the script sees something at this place."""
        return self.has(copy) or (not self.gone(copy) and self.has(self.original_of(copy)))

    def is_blank(self) -> bool:
        """Whether reads need no look at the sheet: imports ask for thousands of files."""
        if self.blank:
            self.blank = not self.removed and not self.real["listdir"](self.root)
        return self.blank

    def readable(self, path: Any) -> Any:
        if self.is_blank():
            return path
        copy = self.copy_of(path)
        if copy is None:
            return path
        if self.has(copy):
            return copy
        if self.gone(copy):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        return path

    def writable(self, path: Any, keep: bool = False) -> Any:
        """A place that may be written; `keep` brings the present content along."""
        copy = self.copy_of(path)
        if copy is None:
            return path
        self.prepare(copy, path)
        original = self.original_of(copy)
        if keep and not self.has(copy) and not self.gone(copy) and self.is_file(original):
            shutil.copyfile(original, copy)
        self.removed.discard(original)
        return copy

    def prepare(self, copy: str, path: Any) -> None:
        """Makes the folders above a copy; raises what a missing folder raises."""
        parent = os.path.dirname(copy)
        if not self.seen(parent):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        self.make(parent)

    def make(self, folder: str) -> None:
        if not self.has(folder):
            self.make(os.path.dirname(folder))
            self.real["mkdir"](folder)

    # -- installation

    def install(self) -> None:
        names = (
            "open mkdir remove unlink rmdir rename replace stat lstat access listdir scandir "
            "truncate utime chmod chown symlink link"
        )
        for name in names.split():
            self.real[name] = getattr(os, name)
        self.real["io.open"] = io.open
        for name in ("stat", "lstat", "access"):
            self.patch(name, self.reading(name))
        for name in ("truncate", "utime", "chmod", "chown"):
            self.patch(name, self.touching(name))
        self.patch("open", self.os_open)
        self.patch("mkdir", self.mkdir)
        self.patch("listdir", self.listdir)
        self.patch("scandir", self.scandir)
        for name in ("remove", "unlink", "rmdir"):
            self.patch(name, self.removing(name))
        for name in ("rename", "replace"):
            self.patch(name, self.moving(name))
        for name in ("symlink", "link"):
            self.patch(name, self.linking(name))
        builtins.open = io.open = standing_in(io.open, self.open)
        for method in vars(tempfile._TemporaryFileCloser).values():  # type: ignore[attr-defined]
            kept = getattr(method, "__defaults__", None) or ()
            if self.real["unlink"] in kept:  # taken when the module was imported
                method.__defaults__ = tuple(
                    os.unlink if value is self.real["unlink"] else value for value in kept
                )
        shutil.rmtree = self.rmtree  # type: ignore[assignment]
        confine((*self.free,))

    def patch(self, name: str, function: Callable[..., Any]) -> None:
        wrapped = standing_in(self.real[name], function)
        setattr(os, name, wrapped)
        # Python 3.10's pathlib keeps its own references.
        accessor: Any = getattr(pathlib, "_NormalAccessor", None)
        if accessor is not None and hasattr(accessor, name):
            setattr(accessor, name, staticmethod(wrapped))

    # -- the functions that stand in

    def open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not any(letter in mode for letter in "wax+"):
            return self.real["io.open"](self.readable(file), mode, *args, **kwargs)
        copy = self.copy_of(file)
        if copy is not None and "x" in mode and self.seen(copy):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(file))
        if copy is not None and "r" in mode and not self.seen(copy):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(file))
        place = self.writable(file, keep="w" not in mode)
        return self.real["io.open"](place, mode, *args, **kwargs)

    def os_open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
        writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        if dir_fd is not None:
            return int(self.real["open"](path, flags, mode, dir_fd=dir_fd))
        if not writing:
            return int(self.real["open"](self.readable(path), flags, mode))
        copy = self.copy_of(path)
        if copy is not None and flags & os.O_EXCL and self.seen(copy):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        keep = not flags & os.O_TRUNC
        return int(self.real["open"](self.writable(path, keep), flags, mode))

    def reading(self, name: str) -> Callable[..., Any]:
        def read(path: Any, *args: Any, dir_fd: Any = None, **kwargs: Any) -> Any:
            if dir_fd is not None:
                return self.real[name](path, *args, dir_fd=dir_fd, **kwargs)
            return self.real[name](self.readable(path), *args, **kwargs)

        return read

    def touching(self, name: str) -> Callable[..., Any]:
        def touch(path: Any, *args: Any, dir_fd: Any = None, **kwargs: Any) -> Any:
            place = path if dir_fd is not None else self.writable(path, keep=True)
            return self.real[name](place, *args, **kwargs) if self.has(place) else None

        return touch

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: Any = None) -> None:
        copy = self.copy_of(path)
        if copy is None or dir_fd is not None:
            self.real["mkdir"](path, mode, dir_fd=dir_fd)
            return
        if self.seen(copy):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(path))
        self.prepare(copy, path)
        self.real["mkdir"](copy, mode)

    def removing(self, name: str) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: Any = None) -> None:
            copy = None if dir_fd is not None else self.copy_of(path)
            if copy is None:
                keywords = {} if dir_fd is None else {"dir_fd": dir_fd}
                self.real[name](path, **keywords)
                return
            place = self.readable(path)
            if place == copy:
                self.real[name](copy)
            elif not self.has(self.original_of(copy)):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
            self.removed.add(self.original_of(copy))

        return remove

    def moving(self, name: str) -> Callable[..., Any]:
        def move(source: Any, target: Any, **keywords: Any) -> None:
            origin, place = self.readable(source), self.writable(target)
            copy = self.copy_of(source)
            if copy is None or origin == copy:
                self.real[name](origin, place)
            elif os.path.isdir(origin):
                shutil.copytree(origin, place, dirs_exist_ok=True)
            else:
                shutil.copyfile(origin, place)
            if copy is not None:
                self.removed.add(self.original_of(copy))

        return move

    def linking(self, name: str) -> Callable[..., Any]:
        def link(source: Any, target: Any, *args: Any, **keywords: Any) -> None:
            self.real[name](source, self.writable(target), *args, **keywords)

        return link

    def names_in(self, path: Any) -> list[str] | None:
        """The names in a folder of the sheet together with the real ones, or None elsewhere."""
        copy = None if isinstance(path, int) else self.copy_of(path)
        if copy is None:
            return None
        self.readable(path)
        real = self.original_of(copy)
        below = [] if self.gone(copy) or not self.is_folder(real) else self.real["listdir"](real)
        names = {name for name in below if not self.gone(os.path.join(copy, name))}
        if self.has(copy):
            names.update(self.real["listdir"](copy))
        elif not below and not self.has(real):
            return None
        return sorted(names)

    def listdir(self, path: Any = ".") -> Any:
        names = self.names_in(path)
        if names is None or isinstance(path, bytes):
            return self.real["listdir"](path)
        return names

    def scandir(self, path: Any = ".") -> Any:
        copy = None if isinstance(path, int) else self.copy_of(path)
        if copy is None or not (self.has(copy) or self.removed):
            return self.real["scandir"](path)
        return Entries(self.entries(path, copy))

    def entries(self, path: Any, copy: str) -> Iterator[Any]:
        names = set(self.names_in(path) or ())
        for folder in (copy, self.original_of(copy)):
            if not self.has(folder):
                continue
            with self.real["scandir"](folder) as found:
                for entry in found:
                    if entry.name in names:
                        names.discard(entry.name)
                        yield entry

    def rmtree(self, path: Any, ignore_errors: bool = False, *args: Any, **keywords: Any) -> None:
        copy = self.copy_of(path)
        try:
            place = self.readable(path)
            if copy is None or place == copy:
                REMOVE_TREE(place, ignore_errors, *args, **keywords)
            elif not os.path.isdir(place):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(path))
        except OSError:
            if not ignore_errors:
                raise
            return
        if copy is not None:
            self.removed.add(self.original_of(copy))


REMOVE_TREE = shutil.rmtree


def standing_in(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Entries:
    """What os.scandir returns: an iterator that can be closed."""

    def __init__(self, entries: Iterator[Any]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[Any]:
        return self.entries

    def __next__(self) -> Any:
        return next(self.entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def close(self) -> None:
        return None


# Landlock's rights to change files, by the version of its interface that brought them.
WRITE_RIGHTS = {1: 0b1_1111_1111_0010, 2: 1 << 13, 3: 1 << 14}
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
NO_NEW_PRIVILEGES = 38


def confine(free: tuple[str, ...]) -> bool:
    """Lets this process and its children write below `free` only; False where that cannot be."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(CREATE_RULESET, None, 0, 1)
    if version < 1:
        return False
    rights = sum(bits for since, bits in WRITE_RIGHTS.items() if since <= version)
    wanted = ctypes.c_uint64(rights)
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(wanted), 8, 0)
    if ruleset < 0:
        return False
    for place in free:
        try:
            folder = os.open(place, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rule = (ctypes.c_char * 12)()
        ctypes.memmove(rule, rights.to_bytes(8, sys.byteorder), 8)
        ctypes.memmove(ctypes.byref(rule, 8), folder.to_bytes(4, sys.byteorder, signed=True), 4)
        libc.syscall(ADD_RULE, ruleset, 1, ctypes.byref(rule), 0)
        os.close(folder)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    done = bool(libc.syscall(RESTRICT_SELF, ruleset, 0) == 0)
    os.close(ruleset)
    return done
