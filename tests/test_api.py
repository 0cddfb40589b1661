"""`oomlint.check` and what else programs call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shell import write

import oomlint

EVALUATE = """\
import torch


def evaluate(model: torch.nn.Module, loader):
    model.eval()
    for x, y in loader:
        print(model(x).argmax(1))
"""
CLIP = """\
import torch
def train(model, loader, optimizer, criterion):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(criterion(model(x), y)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""


def test_importing_loads_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import oomlint; dir(oomlint)\n"
        "print(*sorted(set(sys.modules) - before - {'__future__', 'typing', 'oomlint'}))"
    )
    shown = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    # -S leaves out site-packages; the package is then found by its place.
    if "No module named" in shown.stderr:
        pytest.skip("oomlint is installed where only site-packages leads to it")
    loaded = [name for name in shown.stdout.split() if name.partition(".")[0] == "oomlint"]
    assert loaded == []


def test_public_names_exist_and_no_others() -> None:
    assert sorted(oomlint.__all__) == sorted(oomlint.PUBLIC)
    for name in oomlint.__all__:
        assert getattr(oomlint, name) is not None
        assert name in dir(oomlint)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = oomlint.nonsense


def test_findings_of_a_text() -> None:
    (finding,) = oomlint.check(EVALUATE)
    assert isinstance(finding, oomlint.Finding)
    assert (finding.code, finding.row, finding.column) == ("OOM101", 7, 15)
    assert EVALUATE[finding.start : finding.end] == "model(x)"
    assert finding.severity is oomlint.Severity.WARNING
    assert finding.fix is not None and finding.fix.safety is oomlint.Safety.SAFE
    assert oomlint.check("x = 1\n") == ()


def test_config_is_that_of_settings_files() -> None:
    assert oomlint.check(EVALUATE, config={"ignore": ["OOM101"]}) == ()
    ignores = {"per-file-ignores": {"a.py": ["OOM1"]}}
    assert oomlint.check(EVALUATE, "a.py", config=ignores) == ()
    for config in ({"selekt": []}, {"select": "OOM1"}, {"select": ["OOM8"]}, {"extend": "a.toml"}):
        with pytest.raises(oomlint.OomlintError, match=r"^config: "):
            oomlint.check(EVALUATE, config=config)


def test_without_a_name_nothing_but_the_text_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"pyproject.toml": "[tool.oomlint]\nignore = ['OOM101']\n"})
    monkeypatch.chdir(tmp_path)
    assert len(oomlint.check(EVALUATE)) == 1
    assert oomlint.check(EVALUATE, "any.py") == ()


def test_other_files_are_read_anew(tmp_path: Path) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    text = CLIP.replace("import torch", "import torch, helper").replace(clip, "helper.clip(model)")
    helper = "import torch\n\n\ndef clip(model):\n    {}\n"
    write(tmp_path, {"pyproject.toml": "", "helper.py": helper.format("pass")})
    assert oomlint.check(text, tmp_path / "a.py") == ()
    write(tmp_path, {"helper.py": helper.format(clip)})
    assert [f.code for f in oomlint.check(text, tmp_path / "a.py")] == ["OOM301"]


def test_fix_keeps_unsafe_ones_back() -> None:
    fixed = oomlint.fix(EVALUATE + CLIP.partition("\n")[2])
    assert "@torch.no_grad()\ndef evaluate" in fixed.text
    assert [f.code for f in fixed.applied] == ["OOM101"]
    assert [f.code for f in fixed.remaining] == ["OOM301"]
    both = oomlint.fix(EVALUATE + CLIP.partition("\n")[2], unsafe=True)
    assert "scaler.unscale_(optimizer)" in both.text
    assert both.remaining == ()
    assert oomlint.fix("\ufeff" + EVALUATE).text == "\ufeff" + oomlint.fix(EVALUATE).text


def test_notebook_as_its_json() -> None:
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "source": EVALUATE}
    text = json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    assert [f.code for f in oomlint.check(text, "a.ipynb")] == ["OOM101"]
    fixed = json.loads(oomlint.fix(text, "a.ipynb").text)
    assert "@torch.no_grad()" in "".join(fixed["cells"][0]["source"])


def test_what_is_no_python() -> None:
    with pytest.raises(SyntaxError) as error:
        oomlint.check("import torch\ndef f(:\n")
    assert (error.value.filename, error.value.lineno) == ("<text>", 2)
    for text, name in (("x = '\0'\n", "a.py"), ("{", "a.ipynb")):
        with pytest.raises(SyntaxError):
            oomlint.check(text, name)


def test_check_paths(tmp_path: Path) -> None:
    write(
        tmp_path,
        {"oomlint.toml": "", "a.py": EVALUATE, "b.py": "x = 1\n", "c.py": "def (\n"},
    )
    found = oomlint.check_paths([tmp_path], jobs=1, use_cache=False)
    assert [one.path.name for one in found] == ["a.py", "c.py"]
    assert [f.code for f in found[0].findings] == ["OOM101"]
    assert found[0].problem is None
    assert found[1].problem
    with pytest.raises(oomlint.OomlintError, match="no such file"):
        oomlint.check_paths([tmp_path / "nowhere"])
