"""The example that the README leads with: its faults are found, and repaired for good."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from lsp_client import OOMLINT

EXAMPLE = Path(__file__).parent.parent / "examples" / "train.py"
FAULTS = ["OOM201", "OOM102", "OOM301", "OOM101", "OOM202"]


def check(folder: Path, *options: str) -> tuple[int, list[str]]:
    """The exit status and the codes that are left."""
    command = [str(OOMLINT), "check", "--no-cache", "--isolated", "--output-format", "json"]
    run = subprocess.run(
        [*command, *options, "train.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    return run.returncode, [item["code"] for item in json.loads(run.stdout)]


def test_the_faults_are_found_and_repaired(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    assert check(tmp_path) == (1, FAULTS)
    safe_left = check(tmp_path, "--fix")
    assert safe_left == (1, ["OOM201", "OOM301", "OOM202"])
    assert check(tmp_path, "--fix", "--unsafe-fixes") == (0, [])
    assert check(tmp_path) == (0, [])
    compile((tmp_path / "train.py").read_text(), "train.py", "exec")
