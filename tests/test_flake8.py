"""The plugin in the real flake8: as installed, beside its own rules, its options and its `noqa`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from shell import Answer, write

pytest.importorskip("flake8")

CLIP = """\
def train(model, loader, optimizer, criterion):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        scaler.scale(criterion(model(x), y)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
"""
TRAIN = f"import torch\n\n\n{CLIP}"
NO_TRAIN = TRAIN.replace("1.0)", "1.0){}")
PLACE = "train.py:9:9: OOM301"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, {"pyproject.toml": "", "train.py": TRAIN})
    return tmp_path


OPTIONS = ("-j1", "--max-line-length=120")


@pytest.fixture
def ask(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Runs flake8 in this process, which spares its start; returns what it prints, by lines."""
    from flake8.main.cli import main

    monkeypatch.chdir(folder)

    def run(*arguments: str) -> list[str]:
        main([*OPTIONS, "train.py", *arguments])
        out, err = capfd.readouterr()
        assert err == ""
        return out.splitlines()

    return run


def flake8(folder: Path, *arguments: str, stdin: str = "") -> Answer:
    done = subprocess.run(
        [sys.executable, "-m", "flake8", *OPTIONS, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def test_the_plugin_is_declared() -> None:
    declared = [one.value for one in entry_points(group="flake8.extension") if one.name == "OOM"]
    assert declared == ["oomlint.flake8:Plugin"], "install oomlint again: pip install -e ."


def test_finding_beside_those_of_flake8(folder: Path) -> None:
    write(folder, {"train.py": "import os\n" + TRAIN})
    answer = flake8(folder, ".")
    assert (answer.code, answer.err) == (1, "")
    lines = answer.out.splitlines()
    assert lines[0] == "./train.py:1:1: F401 'os' imported but unused"
    assert lines[1].startswith("./train.py:10:9: OOM301 gradients are clipped while they still")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("files", "arguments", "found"),
    [
        ({}, [], [PLACE]),
        ({}, ["--extend-ignore=OOM3"], []),
        ({}, ["--select=OOM1,E"], []),
        ({}, ["--per-file-ignores=train.py:OOM301"], []),
        ({}, ["--per-file-ignores=other.py:OOM301"], [PLACE]),
        ({"pyproject.toml": "[tool.oomlint]\nignore = ['OOM301']\n"}, [], []),
        ({"oomlint.toml": "per-file-ignores = {'train.py' = ['OOM']}\n"}, [], []),
        ({"train.py": NO_TRAIN.format("  # noqa: OOM301")}, [], []),
        ({"train.py": NO_TRAIN.format("  # noqa")}, [], []),
        ({"train.py": NO_TRAIN.format("  # oomlint: ignore[OOM301]")}, [], []),
        ({"train.py": NO_TRAIN.format("  # noqa: OOM301")}, ["--disable-noqa"], [PLACE]),
        (
            {"train.py": NO_TRAIN.format("  # noqa: OOM301,OOM102")},
            [],
            ["train.py:9:66: OOM001"],
        ),
    ],
)
def test_who_decides(
    folder: Path,
    ask: Callable[..., list[str]],
    files: Mapping[str, str],
    arguments: list[str],
    found: list[str],
) -> None:
    write(folder, files)
    assert [" ".join(line.split()[:2]) for line in ask(*arguments)] == found


def test_stdin_under_a_name(folder: Path) -> None:
    write(folder, {"pyproject.toml": "[tool.oomlint.per-file-ignores]\n'quiet.py' = ['OOM3']\n"})
    loud = flake8(folder, "-", "--stdin-display-name", "loud.py", stdin=TRAIN)
    assert loud.out.startswith("loud.py:9:9: OOM301")
    assert flake8(folder, "-", "--stdin-display-name", "quiet.py", stdin=TRAIN).out == ""


def test_other_files_of_the_project_count(folder: Path, ask: Callable[..., list[str]]) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    write(
        folder,
        {
            "helpers.py": f"import torch\n\n\ndef clip(model):\n    {clip}\n",
            "train.py": "import helpers\n" + TRAIN.replace(clip, "helpers.clip(model)"),
        },
    )
    assert [line.split()[1] for line in ask()] == ["OOM301"]


def test_what_is_no_python_is_said_once_and_by_flake8(
    folder: Path, ask: Callable[..., list[str]]
) -> None:
    write(folder, {"train.py": TRAIN + "def (\n"})
    codes = [line.split()[1] for line in ask()]
    assert codes.count("E999") == 1
    assert not [code for code in codes if code.startswith("OOM")]


def test_wrong_settings_are_a_report_and_no_traceback(
    folder: Path, ask: Callable[..., list[str]]
) -> None:
    write(folder, {"pyproject.toml": "[tool.oomlint]\nselekt = []\n"})
    (line,) = ask()
    assert line.startswith("train.py:1:1: OOM000 ")
    assert "unknown key `selekt`" in line
