"""The language server in a real editor: a batch Emacs with eglot, set up as the manual says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

import pytest
from lsp_client import OOMLINT, PLUGIN

SCRIPT = Path(__file__).with_name("emacs.el")
EDITORS = Path(__file__).parent.parent / "docs" / "editors.md"
TEXT = 'kept = 0\nfor value in range(9):\n    name = "é😀"; kept += value; print(wrong)\n'
PACKAGES = '(setq package-directory-list \'("/usr/share/emacs/site-lisp/elpa"))'


@lru_cache(maxsize=1)
def has_eglot() -> bool:
    if shutil.which("emacs") is None:
        return False
    load = ["--eval", PACKAGES, "--eval", "(package-initialize)", "--eval", "(require 'eglot)"]
    return subprocess.run(["emacs", "-Q", "--batch", *load], capture_output=True).returncode == 0


def test_emacs_shows_a_finding_and_applies_its_fix(tmp_path: Path) -> None:
    if not has_eglot():
        pytest.skip("Emacs with eglot is not installed")
    (found,) = re.findall(r"```elisp\n(.*?)```", EDITORS.read_text(encoding="utf-8"), re.S)
    snippet, report, file = (tmp_path / name for name in ("init.el", "report.json", "a.py"))
    snippet.write_text(found)
    file.write_text(TEXT, encoding="utf-8")
    environment = {
        **os.environ,
        "PATH": f"{OOMLINT.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(PLUGIN),
        "SNIPPET": str(snippet),
        "REPORT": str(report),
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
    }
    command = ["emacs", "-Q", "--batch", "-l", str(SCRIPT)]
    subprocess.run(command, cwd=tmp_path, env=environment, timeout=180, capture_output=True)
    seen = json.loads(report.read_text(encoding="utf-8"))

    assert seen.get("failure") is None
    assert [(item["message"].splitlines()[0], item["text"]) for item in seen["before"]] == [
        ("oomlint [TST001]: value is kept", "kept += value"),
        ("oomlint [TST002]: a wrong number", "wrong"),
    ]
    assert seen["page"].startswith("# kept-value (TST001)")
    assert seen["title"] == "oomlint (TST001): Detach it"
    assert [item["text"] for item in seen["after"]] == ["wrong"]
    assert file.read_text(encoding="utf-8") == TEXT.replace("+= value", "+= value.detach()")
