"""Brings the public code that oomlint is judged on, pinned in corpus.toml, onto this disk."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCK = Path(__file__).with_name("corpus.toml")
KEPT_SUFFIXES = frozenset({".py", ".pyi", ".toml", ".cfg"})
LICENCE = re.compile(r"(licen[cs]e|copying|notice)", re.IGNORECASE)
PARALLEL_DOWNLOADS = 3

# pip builds the metadata of an sdist even with --no-deps, which runs the package's setup code. This
# start of pip reads the PKG-INFO that every sdist carries instead, so nothing of the package runs.
INERT_PIP = """
import pathlib, sys
from pip._internal.cli.main import main
from pip._internal.distributions.sdist import SourceDistribution
from pip._internal.metadata import get_metadata_distribution
from pip._internal.req.req_install import InstallRequirement
from pip._vendor.packaging.utils import canonicalize_name

wheel_metadata = InstallRequirement.get_dist

def read_metadata(self):
    if self.is_wheel:
        return wheel_metadata(self)
    text = (pathlib.Path(self.unpacked_source_directory) / "PKG-INFO").read_bytes()
    return get_metadata_distribution(text, "METADATA", canonicalize_name(self.req.name))

assert hasattr(SourceDistribution, "prepare_distribution_metadata"), "this pip is unknown"
SourceDistribution.prepare_distribution_metadata = lambda self, *args, **keywords: None
InstallRequirement.get_dist = read_metadata
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Package:
    """One pinned archive; `platform` picks the smallest wheel where each platform has its own."""

    name: str
    form: str
    version: str = ""
    archive: str = ""
    sha256: str = ""
    platform: str = ""

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.version}"


@dataclass(frozen=True, slots=True)
class Contents:
    """What was kept of a package: its Python files and lines, and which kinds of folder it has."""

    files: int
    lines: int
    examples: bool
    tests: bool


class CorpusError(Exception):
    """The corpus cannot be had; the message is one sentence for the user."""


def cache_folder() -> Path:
    """OOMLINT_CORPUS, or oomlint-corpus in the user's cache folder."""
    named = os.environ.get("OOMLINT_CORPUS")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oomlint-corpus"


def code_folder(cache: Path) -> Path:
    return cache / "packages"


def read_lock(path: Path = LOCK) -> tuple[Package, ...]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
    return tuple(Package(**row) for row in rows)


def write_lock(packages: Sequence[Package], path: Path = LOCK) -> None:
    lines = ["# The code that bench/ledger.tsv judges; `bench/corpus.py --lock` pins what is open."]
    for package in sorted(packages, key=lambda one: one.name.lower()):
        lines += ["", "[[package]]"]
        for key in ("name", "form", "version", "archive", "sha256", "platform"):
            value = getattr(package, key)
            if value:
                lines.append(f'{key} = "{value}"')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        sha256 = hashlib.sha256()
        while block := file.read(1 << 20):
            sha256.update(block)
    return sha256.hexdigest()


def download(package: Package, cache: Path) -> Package:
    """Fetches the archive unless it is there, and returns the package fully pinned."""
    archives = cache / "archives"
    archives.mkdir(parents=True, exist_ok=True)
    if package.archive and (archives / package.archive).is_file():
        return checked(package, archives / package.archive)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wanted = f"{package.name}=={package.version}" if package.version else package.name
        command = [sys.executable, "-c", INERT_PIP, "download", "--no-deps", "--quiet"]
        command += ["--ignore-requires-python", "--dest", scratch]
        command += [
            f"--no-binary={package.name}" if package.form == "sdist" else "--only-binary=:all:"
        ]
        if package.platform:
            command += ["--platform", package.platform, "--python-version", "3.11"]
        done = subprocess.run([*command, wanted], capture_output=True, text=True)
        found = [path for path in Path(scratch).iterdir() if path.is_file()]
        if done.returncode or len(found) != 1:
            reason = (done.stderr.strip() or done.stdout.strip() or "no archive").splitlines()[-1]
            raise CorpusError(f"{wanted} ({package.form}) could not be downloaded: {reason}")
        target = archives / found[0].name
        shutil.move(found[0], target)
    return checked(replace(package, archive=target.name), target)


def checked(package: Package, archive: Path) -> Package:
    found = digest(archive)
    if package.sha256 and package.sha256 != found:
        raise CorpusError(
            f"{archive} is not the archive that corpus.toml pins; delete it and retry"
        )
    version = package.version or version_in(archive.name)
    return replace(package, version=version, sha256=found)


def version_in(archive: str) -> str:
    if archive.endswith(".whl"):
        return archive.split("-")[1]
    stem = re.sub(r"\.(tar\.(gz|bz2|xz)|tgz|zip)$", "", archive)
    return stem.rsplit("-", 1)[1]


def kept(path: PurePosixPath) -> bool:
    return path.suffix in KEPT_SUFFIXES or LICENCE.match(path.name) is not None


def members(archive: Path) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Every regular file of an archive; links and devices are left out."""
    if archive.name.endswith((".whl", ".zip")):
        with zipfile.ZipFile(archive) as file:
            for info in file.infolist():
                if not info.is_dir():
                    with file.open(info) as content:
                        yield PurePosixPath(info.filename), content
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            body = tar.extractfile(member) if member.isreg() else None
            if body is not None:
                yield PurePosixPath(member.name), body


def unpack(package: Package, cache: Path) -> Path:
    """Writes what is kept of an archive to its folder; runs nothing of it."""
    folder = code_folder(cache) / package.folder
    stamp = cache / "stamps" / f"{package.folder}.sha256"
    if folder.is_dir() and stamp.is_file() and stamp.read_text() == package.sha256:
        return folder
    write_code(cache / "archives" / package.archive, folder, int(package.form == "sdist"))
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(package.sha256)
    return folder


def write_code(archive: Path, folder: Path, levels: int) -> None:
    """Replaces a folder by what is kept of an archive, less so many folders of each path."""
    if folder.exists():
        shutil.rmtree(folder)
    # The empty .git marks where the project begins, as it does in a checkout.
    (folder / ".git").mkdir(parents=True)
    for path, content in members(archive):
        inner = PurePosixPath(*path.parts[levels:])
        if path.is_absolute() or ".." in path.parts or not inner.parts or not kept(inner):
            continue
        target = folder / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            shutil.copyfileobj(content, file)


def python_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if path.is_file())


def contents(folder: Path) -> Contents:
    files = python_files(folder)
    folders = {part for path in files for part in path.relative_to(folder).parts[:-1]}
    return Contents(
        files=len(files),
        lines=sum(path.read_bytes().count(b"\n") for path in files),
        examples=bool(folders & {"examples", "example", "recipes", "egs2", "scripts", "projects"}),
        tests=bool(folders & {"tests", "test"}),
    )


def tree_digest(folder: Path) -> str:
    """One hash over the names and bytes of every file below a folder."""
    sha256 = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        sha256.update(f"{path.relative_to(folder).as_posix()}\0".encode())
        sha256.update(hashlib.sha256(path.read_bytes()).digest())
    return sha256.hexdigest()


def obtain(package: Package, cache: Path) -> Package | CorpusError:
    try:
        pinned = download(package, cache)
        unpack(pinned, cache)
    except CorpusError as error:
        return error
    return pinned


def print_table(packages: Sequence[Package], cache: Path) -> None:
    print(f"{'package':28} {'version':14} {'form':6} {'files':>7} {'lines':>9}  has")
    total_files = total_lines = 0
    for package in packages:
        found = contents(code_folder(cache) / package.folder)
        has = " ".join(name for name in ("examples", "tests") if getattr(found, name))
        print(
            f"{package.name:28} {package.version:14} {package.form:6} "
            f"{found.files:7,} {found.lines:9,}  {has}"
        )
        total_files, total_lines = total_files + found.files, total_lines + found.lines
    print(f"{f'{len(packages)} packages':50} {total_files:7,} {total_lines:9,}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="also OOMLINT_CORPUS")
    parser.add_argument("--lock", action="store_true", help="pin what corpus.toml leaves open")
    options = parser.parse_args()
    wanted = read_lock()
    if not options.lock and any(not package.sha256 for package in wanted):
        print("error: corpus.toml holds an unpinned package; run with --lock", file=sys.stderr)
        return 2
    options.cache.mkdir(parents=True, exist_ok=True)
    ready = options.cache / "READY"
    ready.unlink(missing_ok=True)
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        results = list(pool.map(lambda package: obtain(package, options.cache), wanted))
    failures = [result for result in results if isinstance(result, CorpusError)]
    packages = [result for result in results if isinstance(result, Package)]
    if options.lock:
        failed = [one for one, result in zip(wanted, results, strict=True) if result in failures]
        write_lock([*packages, *failed])
    print_table(packages, options.cache)
    for failure in failures:
        print(f"error: {failure}", file=sys.stderr)
    if failures:
        return 1
    ready.write_text("".join(f"{package.folder}\n" for package in packages))
    return 0


if __name__ == "__main__":
    sys.exit(main())
