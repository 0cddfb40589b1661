"""The extension for VS Code fits the server; with OOMLINT_NPM=1 it is built, tried and packaged."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oomlint import __version__

FOLDER = Path(__file__).resolve().parents[1] / "editors" / "vscode"
PACKAGE = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))
LOCK = (FOLDER / "package-lock.json").read_text(encoding="utf-8")


def test_it_has_the_version_of_the_server() -> None:
    assert PACKAGE["version"] == __version__


def test_its_commands_are_not_those_that_the_client_registers_for_the_server() -> None:
    source = (FOLDER / "src" / "extension.ts").read_text(encoding="utf-8")
    registered = re.findall(r'registerCommand\("([\w.]+)"', source)
    assert sorted(registered) == sorted(c["command"] for c in PACKAGE["contributes"]["commands"])
    asked = set(re.findall(r'ask\("([\w.]+)"', source))
    assert asked == {"oomlint.applyAutofix", "oomlint.measure"}
    assert asked.isdisjoint(registered)


def test_what_starts_a_program_is_not_taken_from_a_workspace_that_is_not_trusted() -> None:
    settings = PACKAGE["contributes"]["configuration"]["properties"]
    restricted = PACKAGE["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    assert set(settings) - set(restricted) == {"oomlint.trace.server"}


def test_its_packages_are_pinned_for_any_registry() -> None:
    pinned = {**PACKAGE["dependencies"], **PACKAGE["devDependencies"]}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned.values())
    packages = json.loads(LOCK)["packages"]
    assert all("integrity" in found for name, found in packages.items() if name)
    assert not any("resolved" in found for found in packages.values())


@pytest.mark.skipif(not os.environ.get("OOMLINT_NPM"), reason="OOMLINT_NPM is not set")
def test_it_is_linted_built_tried_and_packaged(tmp_path: Path) -> None:
    # A copy, for npm writes beside its files.
    folder = tmp_path / "editors" / "vscode"
    skipped = shutil.ignore_patterns("node_modules", "dist", "out", "*.vsix")
    shutil.copytree(FOLDER, folder, ignore=skipped)
    shutil.copy(FOLDER.parents[1] / "LICENSE", tmp_path)
    environment = {**os.environ, "OOMLINT_PYTHON": sys.executable}
    for step in (["ci"], ["run", "lint"], ["run", "package"], ["test"]):
        done = subprocess.run(
            ["npm", *step], cwd=folder, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"npm {step}: {done.stdout}{done.stderr}"
    with zipfile.ZipFile(folder / "oomlint.vsix") as package:
        names = set(package.namelist())
    assert {"extension/package.json", "extension/dist/extension.js"} <= names
    assert not any("node_modules" in name or name.endswith(".ts") for name in names)
