"""The language server in a real editor: a headless Neovim shows a finding and applies its fix."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lsp_client import OOMLINT, PLUGIN

SCRIPT = Path(__file__).with_name("neovim.lua")
TEXT = 'kept = 0\nfor value in range(9):\n    name = "é😀"; kept += value; print(wrong)\n'


@pytest.mark.skipif(shutil.which("nvim") is None, reason="Neovim (nvim) is not installed")
def test_neovim_shows_a_finding_and_applies_its_fix(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(TEXT, encoding="utf-8")
    report = tmp_path / "report.json"
    environment = {
        **os.environ,
        "PYTHONPATH": str(PLUGIN),
        "OOMLINT": str(OOMLINT),
        "REPORT": str(report),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "LC_ALL": "C.UTF-8",
    }
    command = ["nvim", "--headless", "-u", "NONE", "-i", "NONE", "-n", "-S", str(SCRIPT), "a.py"]
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=120, capture_output=True)
    seen = json.loads(report.read_text(encoding="utf-8"))

    assert seen.get("failure") is None
    assert [(item["code"], item["text"], item["severity"]) for item in seen["before"]] == [
        ("TST001", "kept += value", 1),
        ("TST002", "wrong", 2),
    ]
    assert seen["title"] == "oomlint (TST001): Detach it"
    assert seen["text"] == TEXT.replace("+= value", "+= value.detach()").rstrip("\n")
    assert [item["code"] for item in seen["after"]] == ["TST002"]
