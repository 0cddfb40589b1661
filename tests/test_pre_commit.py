"""The hook as pre-commit runs it: installed from a clone, on a scratch repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PRE_COMMIT = Path(sys.executable).with_name("pre-commit")
BAD = """\
import torch


def evaluate(model: torch.nn.Module, loader):
    model.eval()
    correct = 0
    for images, labels in loader:
        correct += (model(images).argmax(1) == labels).sum().item()
    return correct
"""


def notebook(code: str) -> str:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": code}
    return json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


pytestmark = [
    pytest.mark.skipif(not PRE_COMMIT.exists(), reason="pre-commit is not installed"),
    # One installation of the hook serves all tests of this file.
    pytest.mark.xdist_group("pre-commit"),
]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
    command = ["git", *identity, "-c", "commit.gpgsign=false", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def new_repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q")
    return folder


@pytest.fixture(scope="module")
def hook_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout with its uncommitted changes, as a repository to install the hook from."""
    copy = new_repository(tmp_path_factory.mktemp("hook") / "oomlint")
    listing = git(ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listing.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    git(copy, "add", "--all")
    git(copy, "commit", "-qm", "As it is now")
    return copy


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def run(folder: Path, store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Git sets variables for the hooks it runs; with them the scratch repository would be another.
    outer = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return subprocess.run(
        [str(PRE_COMMIT), *arguments],
        cwd=folder,
        env={**outer, "PRE_COMMIT_HOME": str(store), "PRE_COMMIT_COLOR": "never"},
        capture_output=True,
        text=True,
        timeout=600,
    )


def scratch(
    tmp_path: Path, hook_repository: Path, files: dict[str, str], hook: str = "oomlint"
) -> Path:
    """A repository that uses a hook, with these files staged."""
    folder = new_repository(tmp_path / "scratch")
    revision = git(hook_repository, "rev-parse", "HEAD").strip()
    (folder / ".pre-commit-config.yaml").write_text(
        f"repos:\n- repo: {hook_repository}\n  rev: {revision}\n  hooks:\n  - id: {hook}\n"
    )
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    return folder


def test_try_repo_shows_the_finding_and_fails(tmp_path: Path, hook_repository: Path) -> None:
    folder = new_repository(tmp_path / "scratch")
    (folder / "train.py").write_text(BAD)
    git(folder, "add", "--all")
    tried = run(folder, tmp_path, "try-repo", str(hook_repository), "oomlint", "--all-files")
    assert tried.returncode == 1, tried.stdout + tried.stderr
    assert "train.py:8" in tried.stdout
    assert "OOM101" in tried.stdout
    assert (folder / "train.py").read_text() == BAD


def test_with_fix_the_file_changes_and_the_next_run_passes(
    tmp_path: Path, hook_repository: Path, store: Path
) -> None:
    folder = scratch(tmp_path, hook_repository, {"train.py": BAD}, "oomlint-fix")
    first = run(folder, store, "run")
    assert first.returncode == 1, first.stdout + first.stderr
    assert "@torch.no_grad()" in (folder / "train.py").read_text()
    git(folder, "add", "--all")
    again = run(folder, store, "run")
    assert again.returncode == 0, again.stdout + again.stderr


@pytest.mark.parametrize(
    ("files", "verdict"),
    [
        ({"train.py": BAD.replace("    model.eval()\n", "    model.eval()  # é\n")}, "Failed"),
        ({"good.py": "import torch\n"}, "Passed"),
        ({"notes.md": BAD, "notebook.json": notebook(BAD)}, "Skipped"),
        ({"notebook.ipynb": notebook(BAD)}, "Failed"),
        ({"notebook.ipynb": notebook("import torch\n")}, "Passed"),
        ({"skipped/train.py": BAD, "oomlint.toml": 'extend-exclude = ["skipped"]\n'}, "Passed"),
        ({"stub.pyi": "def f() -> int: ...\n"}, "Passed"),
    ],
)
def test_verdicts(
    tmp_path: Path, hook_repository: Path, store: Path, files: dict[str, str], verdict: str
) -> None:
    folder = scratch(tmp_path, hook_repository, files)
    tried = run(folder, store, "run")
    assert verdict in tried.stdout, tried.stdout + tried.stderr
    assert tried.returncode == (1 if verdict == "Failed" else 0)


def test_the_hook_brings_no_torch(tmp_path: Path, hook_repository: Path, store: Path) -> None:
    run(scratch(tmp_path, hook_repository, {}), store, "install-hooks")
    installed = {path.name for path in store.glob("repo*/py_env*/lib/python*/site-packages/*")}
    assert "oomlint" in installed
    assert "torch" not in installed
