"""Brings the public repositories of repositories.tsv, each at its commit, onto this disk."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from corpus import PARALLEL_DOWNLOADS, CorpusError, cache_folder, contents, write_code

LIST = Path(__file__).with_name("repositories.tsv")
TARBALL = "https://codeload.github.com/{name}/tar.gz/{commit}"
SECONDS_TO_WAIT = 120


@dataclass(frozen=True, slots=True)
class Repository:
    """One pinned repository; `name` is owner/name, as GitHub spells it."""

    name: str
    commit: str

    @property
    def folder(self) -> str:
        return self.name.replace("/", "+", 1)

    @property
    def version(self) -> str:
        return self.commit[:8]

    @property
    def archive(self) -> str:
        return f"{self.folder}-{self.commit}.tar.gz"


def read_list(path: Path = LIST) -> tuple[Repository, ...]:
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return tuple(Repository(*line.split("\t")) for line in lines if line)


def trees_folder(cache: Path) -> Path:
    return cache / "repositories"


def present(folder: Path) -> Iterator[tuple[Repository, Path]]:
    """The listed repositories that have a tree below a folder."""
    for repository in read_list():
        if (folder / repository.folder).is_dir():
            yield repository, folder / repository.folder


def download(repository: Repository, cache: Path) -> Path:
    """The archive of the pinned commit, downloaded unless it is there."""
    target = cache / "archives" / repository.archive
    if target.is_file():
        return target
    address = TARBALL.format(name=repository.name, commit=repository.commit)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent) as scratch:
        try:
            with urllib.request.urlopen(address, timeout=SECONDS_TO_WAIT) as answer:
                shutil.copyfileobj(answer, scratch)
        except (urllib.error.URLError, TimeoutError) as error:
            raise CorpusError(f"{repository.name} could not be downloaded: {error}") from error
        scratch.flush()
        shutil.copyfile(scratch.name, target)
    return target


def unpack(repository: Repository, cache: Path) -> Path:
    """Writes the code of the pinned commit to its folder; runs nothing of it."""
    folder = trees_folder(cache) / repository.folder
    stamp = cache / "stamps" / f"{repository.folder}.commit"
    if folder.is_dir() and stamp.is_file() and stamp.read_text() == repository.commit:
        return folder
    write_code(download(repository, cache), folder, levels=1)
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(repository.commit)
    return folder


def obtain(repository: Repository, cache: Path) -> CorpusError | None:
    try:
        unpack(repository, cache)
    except CorpusError as error:
        return error
    return None


def print_table(folder: Path) -> None:
    found = [(repository, contents(path)) for repository, path in present(folder)]
    print(f"{'repository':52} {'commit':8} {'files':>7} {'lines':>9}")
    for repository, inside in found:
        name, version = repository.name, repository.version
        print(f"{name:52} {version:8} {inside.files:7,} {inside.lines:9,}")
    files, lines = (sum(getattr(one, key) for _, one in found) for key in ("files", "lines"))
    print(f"{f'{len(found)} repositories':61} {files:7,} {lines:9,}")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="also OOMLINT_CORPUS")
    cache: Path = parser.parse_args(words).cache
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        results = list(pool.map(lambda repository: obtain(repository, cache), read_list()))
    print_table(trees_folder(cache))
    failures = [error for error in results if error is not None]
    for error in failures:
        print(f"error: {error}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
