"""`--add-noqa`: comments that silence what is found, and nothing else in the file changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Answer, call, write

from oomlint.suppressions import MENTION


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("kept += a\n", "kept += a  # oomlint: ignore[FAK101]\n"),
        ("kept += a", "kept += a  # oomlint: ignore[FAK101]"),
        ("kept += a\r\nx = 1\r\n", "kept += a  # oomlint: ignore[FAK101]\r\nx = 1\r\n"),
        ("kept += a  # why\n", "kept += a  # why  # oomlint: ignore[FAK101]\n"),
        (
            "kept += a  # noqa: E501\n",
            "kept += a  # noqa: E501  # oomlint: ignore[FAK101]\n",
        ),
        (
            "kept += a, wrong\nwrong\n",
            "kept += a, wrong  # oomlint: ignore[FAK101, FAK102]\n"
            "wrong  # oomlint: ignore[FAK102]\n",
        ),
        (
            "kept += a, wrong  # oomlint: ignore[FAK102]\n",
            "kept += a, wrong  # oomlint: ignore[FAK102, FAK101]\n",
        ),
        ("kept += a; s = '''\n'''\n", "kept += a; s = '''\n'''  # oomlint: ignore[FAK101]\n"),
        ("wrong + \\\n  1\n", "wrong + \\\n  1  # oomlint: ignore[FAK102]\n"),
        ("wrong = (\n    1)\n", "wrong = (  # oomlint: ignore[FAK102]\n    1)\n"),
        ("s = '語😀'; wrong\n", "s = '語😀'; wrong  # oomlint: ignore[FAK102]\n"),
    ],
)
def test_comments(project: Path, before: str, after: str) -> None:
    write(project, {"a.py": before})
    answer = call("check", "--add-noqa")
    number = after.count("ignore[") - before.count("ignore[") or 1
    said = f"Added {number} {'comment' if number == 1 else 'comments'}.\n"
    assert answer == Answer(0, "All checks passed!\n", said)
    assert (project / "a.py").read_bytes().decode() == after
    assert call("check", "-q").code == 0
    assert call("check", "--add-noqa").err == "Added 0 comments.\n"
    assert (project / "a.py").read_bytes().decode() == after


@pytest.mark.parametrize("name", ["--add-noqa", "--add-ignore"])
def test_reason(project: Path, name: str) -> None:
    write(project, {"a.py": "wrong\n", "b.py": "wrong\n"})
    # Without `=` the next word is a path.
    assert call("check", f"{name}=not  ours\nto fix", "a.py").code == 0
    assert (project / "a.py").read_text() == "wrong  # oomlint: ignore[FAK102] not ours to fix\n"
    assert call("check", name, "b.py").code == 0
    assert (project / "b.py").read_text() == "wrong  # oomlint: ignore[FAK102]\n"
    assert call("check", "-q").code == 0


def test_only_what_the_baseline_does_not_know(project: Path) -> None:
    write(project, {"a.py": "wrong\n"})
    assert call("check", "--write-baseline", "known.json").code == 0
    write(project, {"a.py": "wrong\nkept += a\n"})
    assert call("check", "--baseline", "known.json", "--add-noqa").code == 0
    assert not MENTION.search((project / "a.py").read_text().splitlines()[0])
    assert call("check", "-q", "--baseline", "known.json").code == 0


def test_a_file_that_is_no_python_is_reported_all_the_same(project: Path) -> None:
    write(project, {"a.py": "wrong\n", "b.py": "def f(:\n"})
    answer = call("check", "--output-format", "concise", "--add-noqa")
    assert answer.code == 1 and "b.py:1:7: invalid-syntax" in answer.out
    assert "a.py" not in answer.out


def test_what_looks_like_a_comment_and_is_none(project: Path) -> None:
    text = "s = '# oomlint: ignore[FAK101]'; wrong\n"
    write(project, {"a.py": text})
    answer = call("check", "-q", "--add-noqa")
    assert answer.code == 0
    assert (project / "a.py").read_text() == text.replace("\n", "  # oomlint: ignore[FAK102]\n")


def test_what_python_cannot_tokenize_stays_reported(project: Path) -> None:
    write(project, {"b.py": "wrong\n", "sub/c.py": "s = f'{x!r:{'a'}}'; wrong\n"})
    answer = call("check", "--output-format", "concise", "--add-noqa")
    left = [line.split(":")[0] for line in answer.out.splitlines() if "FAK102" in line]
    unchanged = "ignore" not in (project / "sub/c.py").read_text()
    # Newer Pythons read the nested quotes; where they do not, the file stays as it is.
    assert (answer.code, left) == (unchanged, ["sub/c.py"] * unchanged)
    assert ("sub/c.py: row 1 can hold no comment that silences FAK102" in answer.err) is unchanged
    assert "ignore" in (project / "b.py").read_text()


def test_notebook(project: Path) -> None:
    cells = [["%time x = 1\n", "wrong"], ["kept += a\n"]]
    notebook = {
        "cells": [
            {"cell_type": "code", "metadata": {}, "outputs": [], "source": source}
            for source in cells
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    write(project, {"n.ipynb": json.dumps(notebook)})
    assert call("check", "-q", "--add-noqa").code == 0
    after = json.loads((project / "n.ipynb").read_text())
    assert ["".join(cell["source"]) for cell in after["cells"]] == [
        "%time x = 1\nwrong  # oomlint: ignore[FAK102]",
        "kept += a  # oomlint: ignore[FAK101]\n",
    ]


@pytest.mark.parametrize(
    "other",
    [
        ["--fix"],
        ["--fix-only"],
        ["--diff"],
        ["--statistics"],
        ["--write-baseline", "b.json"],
        ["--stdin-filename", "a.py"],
        ["-"],
    ],
)
def test_conflicts(project: Path, other: list[str]) -> None:
    write(project, {"a.py": "wrong\n"})
    answer = call("check", "--add-noqa", *other)
    assert answer.code == 2 and f"`{other[0]}`" in answer.err
    assert (project / "a.py").read_text() == "wrong\n"


RUFF = Path(sys.executable).parent / "ruff"


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
def test_ruff_leaves_the_comments_alone(project: Path) -> None:
    write(project, {"a.py": "import wrong  # noqa: F401, E711\nkept += wrong\n"})
    assert call("check", "-q", "--add-noqa").code == 0
    fixing = [str(RUFF), "check", "--isolated", "--fix", "-q", "--select", "RUF100,RUF102,F,E"]
    subprocess.run([*fixing, "--ignore", "F821", "a.py"], cwd=project, check=True)
    assert (project / "a.py").read_text() == (
        "import wrong  # oomlint: ignore[FAK102]\n"
        "kept += wrong  # oomlint: ignore[FAK101, FAK102]\n"
    )
