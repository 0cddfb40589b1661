"""OOM001: which comments count as unused, and the text without them."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import call, write

from oomlint.fixer import fix_text
from oomlint.linter import check_source
from oomlint.settings import settings_for
from oomlint.source import Source


def found(folder: Path, text: str) -> list[str]:
    """What OOM001 says, by place."""
    result = check_source(Source(folder / "a.py", text), settings_for(folder / "a.py"))
    assert result.problem is None
    return [
        f"{item.row}:{item.column} {item.message.split(' silenced')[0]}"
        for item in result.findings
        if item.code == "OOM001"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kept += a  # oomlint: ignore[FAK101]\n", []),
        ("kept += a  # oomlint: ignore[kept-value]\n", []),
        ("kept += a  # noqa: FAK101\n", []),
        ("kept += a  # noqa: E501, OOM101, FAK101\n", ["1:12 `OOM101` is"]),
        ("x = 1  # oomlint: ignore[FAK101]\n", ["1:8 `FAK101` is"]),
        ("x = 1  # oomlint: ignore[kept-value]\n", ["1:8 `kept-value` is"]),
        ("x = 1  # noqa: OOM101\n", ["1:8 `OOM101` is"]),
        ("x = 1  # why  # noqa: OOM101 because\n", ["1:15 `OOM101` is"]),
        ("x = 1  # oomlint: ignore[OOM101, OOM102]\n", ["1:8 `OOM101` and `OOM102` are"]),
        ("kept += a  # oomlint: ignore[OOM101, FAK101]\n", ["1:12 `OOM101` is"]),
        # Others may need what says nothing here.
        ("x = 1  # noqa\n", []),
        ("x = 1  # noqa: E501\n", []),
        ("x = 1  # noqa: OOM\n", []),
        ("x = 1  # noqa: OOM999\n", []),
        ("x = 1  # oomlint: ignore[OOM999, no-such-rule]\n", []),
        ("x = 1  # oomlint: noqa\n", []),
        ("s = '# oomlint: ignore[OOM101]'\n", []),
        # Rules that are off by default or in preview may be on in another run.
        ("x = 1  # oomlint: ignore[FAK901, FAK201, OOM901]\n", []),
        # Above a statement, and for the whole file.
        ("# oomlint: ignore[FAK101]\nkept += a\n", []),
        (
            "# oomlint: ignore[FAK101]\nx = [\n  kept += a\n]\n".replace("+= a", ", wrong"),
            ["1:1 `FAK101` is"],
        ),
        ("# oomlint: ignore[FAK102]\nx = [\n  1,\n  wrong,\n]\n", []),
        ("# oomlint: ignore[FAK101]\nx = 1\nkept += a\n", ["1:1 `FAK101` is"]),
        ("x = 1\n# oomlint: ignore[OOM101]\n", ["2:1 `OOM101` is"]),
        ("# oomlint: noqa: FAK101\nx = 1\nkept += a\n", []),
        ("# oomlint: noqa: FAK101, FAK102\nkept += a\n", ["1:1 `FAK102` is"]),
        ("wrong + \\\n  1  # oomlint: ignore[FAK102]\n", []),
        ("wrong = '''\n'''  # oomlint: ignore[FAK102]\n", []),
        ("x = (  # oomlint: ignore[FAK102]\n  wrong)\n", ["1:8 `FAK102` is"]),
        # It can be silenced itself, and such a comment is never unused.
        ("x = 1  # oomlint: ignore[OOM101, OOM001]\n", []),
        ("x = 1  # oomlint: ignore[unused-suppression]\n", []),
        ("# oomlint: noqa: OOM001\nx = 1  # oomlint: ignore[OOM101]\n", []),
    ],
)
def test_what_is_unused(project: Path, text: str, expected: list[str]) -> None:
    assert found(project, text) == expected


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ([], 1),
        (["--ignore", "OOM001"], 0),
        (["--ignore", "OOM102"], 0),
        (["--per-file-ignores", "a.py:OOM102"], 0),
        (["--select", "FAK1"], 0),
        (["--select", "OOM001"], 0),
        (["--select", "unused-suppression,OOM102"], 1),
    ],
)
def test_only_rules_that_are_on_count(project: Path, options: list[str], count: int) -> None:
    write(project, {"a.py": "x = 1  # oomlint: ignore[OOM102]\n"})
    cold = call("check", "--statistics", *options)
    assert cold.out == "1\tOOM001\t[*] unused-suppression\n" * count
    assert call("check", "--statistics", *options) == cold, "stored"
    assert cold.code == bool(count)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1  # noqa: OOM101\n", "x = 1\n"),
        ("x = 1  # noqa: OOM101", "x = 1"),
        ("x = 1\t# noqa: OOM101 because  \r\ny\r\n", "x = 1\r\ny\r\n"),
        ("x = 1  # why  # noqa: OOM101\n", "x = 1  # why\n"),
        ("x = 1  # noqa: OOM101  # why\n", "x = 1  # why\n"),
        ("x = 1  # noqa: E501, OOM101\n", "x = 1  # noqa: E501\n"),
        ("x = 1  # noqa: OOM101 E501 because\n", "x = 1  # noqa: E501 because\n"),
        ("x = 1  # noqa:OOM101,E501,OOM102,W1\n", "x = 1  # noqa:E501, W1\n"),
        (
            "kept += a, wrong  # oomlint: ignore[FAK101, OOM102, FAK102] since\n",
            "kept += a, wrong  # oomlint: ignore[FAK101, FAK102] since\n",
        ),
        ("if x:\n    # oomlint: ignore[OOM101]\n    y = 1\n", "if x:\n    y = 1\n"),
        ("y = 1\n    # oomlint: ignore[OOM101]", "y = 1\n"),
        ("# oomlint: ignore[OOM101]  # why\ny = 1\n", "# why\ny = 1\n"),
        ("# oomlint: noqa: OOM101, OOM102\n\ny = 1\n", "\ny = 1\n"),
        (
            "x = 1  # oomlint: ignore[OOM101]  # noqa: OOM102\n",
            "x = 1\n",
        ),
        ("s = '語😀'  # noqa: OOM101\n", "s = '語😀'\n"),
    ],
)
def test_fix(project: Path, before: str, after: str) -> None:
    settings = settings_for(project / "a.py")
    fixed = fix_text(Source(project / "a.py", before), settings, unsafe=False)
    # Other rules' safe fixes would change the code, too.
    assert fixed.text.replace(".detach()", "") == after
    assert found(project, fixed.text) == []


def test_a_file_in_which_no_other_rule_can_fire_must_be_python(project: Path) -> None:
    write(project, {"a.py": "def f(:  # oomlint: ignore[OOM101]\n"})
    answer = call("check", "-q", "--output-format", "concise")
    assert answer.out.startswith("a.py:1:7: invalid-syntax")


def test_notebook(project: Path) -> None:
    cell = '{"cell_type": "code", "metadata": {}, "outputs": [], "source": ["x = 1  %s"]}'
    both = ", ".join(cell % comment for comment in ("# noqa: OOM101", "# why"))
    text = f'{{"cells": [{both}], "metadata": {{}}, "nbformat": 4, "nbformat_minor": 5}}'
    write(project, {"n.ipynb": text})
    answer = call("check", "-q", "--output-format", "concise")
    assert answer.out.startswith("n.ipynb:cell 1:1:8: OOM001 [*] `OOM101` is silenced here")
    assert call("check", "-q", "--fix").code == 0
    assert (project / "n.ipynb").read_text() == text.replace("  # noqa: OOM101", "")


def test_explain_asks_about_comments_too(project: Path) -> None:
    write(project, {"a.py": "x = 1  # oomlint: ignore[OOM102]\nkept += a  # noqa: FAK101\n"})
    out = call("explain", "a.py:1", "--rule", "OOM001").out
    assert "`OOM102` is silenced here and not found" in out
    assert "found nothing on this line" in call("explain", "a.py:2", "--rule", "OOM001").out
