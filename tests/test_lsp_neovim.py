"""The language server in a real editor: a headless Neovim shows a finding and applies its fix."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from lsp_client import OOMLINT, PLUGIN

SCRIPT = Path(__file__).with_name("neovim.lua")
EDITORS = Path(__file__).parent.parent / "docs" / "editors.md"
TEXT = 'kept = 0\nfor value in range(9):\n    name = "é😀"; kept += value; print(wrong)\n'
TEXT += 'if __name__ == "__main__":\n    print(kept)\n'
# A newer Neovim than the one on the path, to try what only that can do.
NEOVIM = os.environ.get("OOMLINT_NEOVIM") or shutil.which("nvim")


def release() -> tuple[int, int]:
    """Major and minor number of the Neovim that is here; (0, 0) for none."""
    if NEOVIM is None:
        return (0, 0)
    said = subprocess.run([NEOVIM, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    assert found is not None
    return int(found[1]), int(found[2])


RELEASE = release()
needs_neovim = pytest.mark.skipif(not any(RELEASE), reason="Neovim (nvim) is not installed")


def run(folder: Path, **environment: str) -> dict[str, Any]:
    (folder / "a.py").write_text(TEXT, encoding="utf-8")
    (folder / "pyproject.toml").touch()
    report = folder / "report.json"
    environment = {
        **os.environ,
        "PATH": f"{OOMLINT.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PLUGIN),
        "OOMLINT": str(OOMLINT),
        "REPORT": str(report),
        "XDG_STATE_HOME": str(folder / "state"),
        "LC_ALL": "C.UTF-8",
        **environment,
    }
    command = [
        str(NEOVIM),
        "--headless",
        "-u",
        "NONE",
        "-i",
        "NONE",
        "-n",
        "-S",
        str(SCRIPT),
        "a.py",
    ]
    subprocess.run(command, cwd=folder, env=environment, timeout=300, capture_output=True)
    seen: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return seen


def assert_works(folder: Path, seen: dict[str, Any]) -> None:
    assert seen.get("failure") is None
    assert [(item["code"], item["text"], item["severity"]) for item in seen["before"]] == [
        ("TST001", "kept += value", 1),
        ("TST002", "wrong", 2),
    ]
    assert seen["page"].startswith("# kept-value (TST001)")
    assert seen["title"] == "oomlint (TST001): Detach it"
    assert [item["code"] for item in seen["after"]] == ["TST002"]
    saved = (folder / "a.py").read_text(encoding="utf-8")
    assert saved == TEXT.replace("+= value", "+= value.detach()")


@needs_neovim
def test_neovim_shows_a_finding_and_applies_its_fix(tmp_path: Path) -> None:
    assert_works(tmp_path, run(tmp_path))


@needs_neovim
def test_the_configuration_of_the_manual_works(tmp_path: Path) -> None:
    current, older, _ = re.findall(r"```lua\n(.*?)```", EDITORS.read_text(encoding="utf-8"), re.S)
    snippet = tmp_path / "snippet.lua"
    snippet.write_text(current if RELEASE >= (0, 11) else older)
    # The newer ones show lenses without being told how, or not at all.
    shows_lenses = RELEASE < (0, 11) and find_spec("torch") is not None
    seen = run(tmp_path, SNIPPET=str(snippet), **({"LENSES": "yes"} if shows_lenses else {}))
    assert_works(tmp_path, seen)
    if shows_lenses:
        assert seen["lenses"] == [[2, "Measure these 2 fixes", "oomlint.measure"]]
    assert seen["pulls"] == (RELEASE >= (0, 11))
