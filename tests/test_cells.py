"""What a notebook shows and so keeps: which cells OOM114 finds, and that verify keeps the same."""

from __future__ import annotations

import ast
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import oomlint

SETUP = """\
import torch
from torch import nn
net = nn.Linear(4, 2).cuda()
x = torch.randn(8, 4, device="cuda")
"""


def notebook(*sources: str) -> str:
    cells = [
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def found(text: str, name: str) -> list[str]:
    config = {"preview": True, "select": ["OOM114"]}
    return [finding.code for finding in oomlint.check(text, name, config=config)]


@pytest.mark.parametrize(
    ("cells", "count"),
    [
        (["net(x)"], 1),
        (["net(x)\n"], 1),
        (["%%time\nnet(x)"], 1),
        (["y = net(x)\ny"], 1),
        (["y = net(x)", "y"], 1),
        (["net(x)", "net(x)"], 2),
        (["net(x);"], 0),
        (["net(x)  ;  # not shown"], 0),
        (["net(x)\nx"], 0),
        (["if True:\n    net(x)"], 0),
        (["net(x).sum().item()"], 0),
        (["net(x).shape"], 0),
        (["loss = net(x).sum()\nloss", "loss.backward()"], 0),
        (["with torch.no_grad():\n    y = net(x)\ny"], 0),
    ],
)
def test_cells_of_a_notebook(tmp_path: Path, cells: list[str], count: int) -> None:
    assert len(found(notebook(SETUP, *cells), str(tmp_path / "a.ipynb"))) == count
    scripts = "".join(f"\n# %%\n{cell}\n" for cell in cells if "%%time" not in cell)
    if scripts:
        assert len(found(f"# %%\n{SETUP}{scripts}", str(tmp_path / "a.py"))) == count


def test_a_script_without_cells_keeps_nothing(tmp_path: Path) -> None:
    assert found(f"{SETUP}net(x)\n", str(tmp_path / "a.py")) == []


def test_it_is_a_preview(tmp_path: Path) -> None:
    assert oomlint.check(notebook(SETUP, "net(x)"), tmp_path / "a.ipynb") == ()


def test_the_fix_shows_the_same_without_the_graph(tmp_path: Path) -> None:
    config = {"preview": True, "select": ["OOM114"]}
    fixed = oomlint.fix(notebook(SETUP, "net(x)"), tmp_path / "a.ipynb", config=config)
    assert json.loads(fixed.text)["cells"][1]["source"] == "net(x).detach()"
    assert fixed.remaining == ()


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("text", "out"),
    [
        ("# %%\n1 + 1\n", {1: 2}),
        ("# %%\nx = 3\nx\n\n# %% named\nx + 1;\n# %%\nx + 2\n", {1: 3, 3: 5}),
        ("#%%\n'é'; \n# %%\n'é' # ;\n", {2: "é"}),
        ("x = 1\nx\n", None),
        ("# %%\ndef f():\n    return 1\n", None),
    ],
)
def test_verify_keeps_what_cells_show(text: str, out: dict[int, object] | None) -> None:
    from oomlint.verify.cells import keep_shown

    tree = ast.parse(text)
    keep_shown(tree, text)
    names: dict[str, object] = {}
    exec(compile(tree, "a.py", "exec"), names)
    assert names.get("Out") == out
