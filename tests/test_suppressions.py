"""Comments that silence findings, one row a form."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from shell import call, write

from oomlint.linter import FileResult, check_source
from oomlint.settings import Layer, settings_for
from oomlint.source import Source
from oomlint.suppressions import noqa_row

SILENT, FLAGGED, WARNED = "silent", "flagged", "warned"


def check(folder: Path, text: str) -> FileResult:
    """What is found beside the comments that silence nothing, which tests/test_unused.py is for."""
    settings = settings_for(folder / "a.py")
    layers = (Layer("the test", ignore=("OOM001",)),)
    return check_source(Source(folder / "a.py", text), replace(settings, layers=layers))


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# noqa", SILENT),
        ("#NOQA", SILENT),
        ("#   NoQa", SILENT),
        ("# why  # noqa", SILENT),
        ("# noqa: FAK101", SILENT),
        ("# noqa: FAK101, E711", SILENT),
        ("# noqa:E711,FAK101", SILENT),
        ("# noqa: E711 FAK101", SILENT),
        ("# noqa : FAK101", SILENT),
        ("# why  # noqa: FAK101 because", SILENT),
        ("# noqa: E711  # noqa: FAK101", SILENT),
        ("# noqa: E711", FLAGGED),
        ("# noqa: FAK102", FLAGGED),
        ("# noqa: FAK1", FLAGGED),
        ("# noqa: FAK1010", FLAGGED),
        ("# noqa: because FAK101", WARNED),
        ("# noqa: fak101", WARNED),
        ("# noqa:", WARNED),
        ("# noqa FAK101", "silent and warned"),
        ("# noqa because", SILENT),
        ("# noqa-something", FLAGGED),
        ("# nothing", FLAGGED),
        ("# ruff: noqa", FLAGGED),
        ("# oomlint: ignore[FAK101]", SILENT),
        ("# oomlint:ignore[FAK102,FAK101]", SILENT),
        ("# oomlint: ignore[kept-value] since it is summed on purpose", SILENT),
        ("# why  # oomlint: ignore[FAK101]", SILENT),
        ("# oomlint: ignore[FAK102]", FLAGGED),
        ("# oomlint: ignore[FAK1]", WARNED),
        ("# oomlint: ignore[]", WARNED),
        ("# oomlint: ignore", WARNED),
        ("# oomlint: noqa", SILENT),
        ("# oomlint: noqa: FAK101", SILENT),
        ("# oomlint: noqa: FAK102", FLAGGED),
    ],
)
def test_comment_at_the_end_of_the_line(project: Path, comment: str, expected: str) -> None:
    result = check(project, f"kept += value  {comment}\n")
    assert [finding.code for finding in result.findings] == ["FAK101"] * (
        expected in (FLAGGED, WARNED)
    )
    assert bool(result.warnings) == ("warned" in expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# oomlint: noqa\nkept += a\n", SILENT),
        ("kept += a\n# oomlint: noqa: FAK101\n", SILENT),
        ("# noqa\nkept += a\n", FLAGGED),
        ("# ruff: noqa\nkept += a\n", FLAGGED),
        ("# flake8: noqa\nkept += a\n", FLAGGED),
        ("# oomlint: ignore[FAK101]\nkept += a\n", SILENT),
        ("# oomlint: ignore[FAK101]\n\n# more\nkept += a\n", SILENT),
        ("# oomlint: ignore[FAK101]\nx = 1\nkept += a\n", FLAGGED),
        ("if x:\n    # oomlint: ignore[FAK101]\n    kept += a\n", SILENT),
        (
            "# oomlint: ignore[FAK101]\nx = [\n  1,\n  {kept += a},\n]\n".replace(
                "{kept += a}", "'kept += a'"
            ),
            SILENT,
        ),
        ("s = '# noqa'; kept += a\n", FLAGGED),
        ("kept += a; s = '''\n'''  # noqa\n", SILENT),
        ("kept += a; s = '''  # noqa\n'''\n", FLAGGED),
        ("s = '''\n# noqa\n'''; kept += a\n", FLAGGED),
        ("s = '''kept += a\nb\n'''  # noqa: FAK101\n", SILENT),
        ("s = f'''{x}\nkept += a\n'''  # noqa: FAK101\n", SILENT),
        (
            "kept += a \\\n  .b.c  # noqa: FAK101\n".replace(" \\\n  .b.c", " + \\\n  1 + \\\n  2"),
            SILENT,
        ),
        ("kept += a + (  # noqa\n  1)\n", SILENT),
        ("kept += a + (\n  1)  # noqa\n", FLAGGED),
    ],
)
def test_place_of_the_comment(project: Path, text: str, expected: str) -> None:
    found = [finding.code for finding in check(project, text).findings]
    assert found == ["FAK101"] * (expected == FLAGGED)


def test_row_of_the_comment_for_a_finding() -> None:
    text = "a = 1\nb = '''\nx\n''' + c\nd = 1 + \\\n  2 + \\\n  3\n"
    source = Source(Path("a.py"), text)
    assert [noqa_row(source, row) for row in range(1, 8)] == [1, 4, 3, 4, 7, 7, 7]


def test_warnings_name_the_place_on_stderr(project: Path) -> None:
    write(project, {"a.py": "kept += a  # noqa: fak101\nkept += b\nx = 1  # noqa: nothing\n"})
    answer = call("check", "-q", "--output-format", "concise")
    assert answer.err == (
        "warning: a.py:1: invalid `# noqa`: `fak101` is no code; it silences nothing\n"
    )
    assert call("check", "-q", "--output-format", "concise") == answer, "stored with the result"


def test_file_that_the_tokenizer_refuses_half_way_is_still_read(project: Path) -> None:
    result = check(project, "kept += a  # noqa\nkept += b\nprint(f'{x!r:{'a'}}')\ntype X = int\n")
    assert [finding.row for finding in result.findings] in ([2], [])


def test_ruff_leaves_our_comments_alone(project: Path) -> None:
    """As the documentation says: `external` keeps codes in a shared list, `ignore[...]` is safe."""
    text = (
        "import os  # noqa: OOM101, F401\n"
        "x = 1  # noqa: OOM101, E711\n"
        "y = 2  # oomlint: ignore[OOM101]\n"
    )
    write(project, {"a.py": text, "ruff.toml": 'lint.external = ["OOM"]\nlint.select = ["ALL"]\n'})
    ruff = Path(sys.executable).parent / "ruff"
    if not ruff.exists():
        pytest.skip("ruff is not installed")
    fixing = [str(ruff), "check", "--fix", "-q", "--select", "RUF100,RUF102,F401,E711", "a.py"]
    subprocess.run(fixing, cwd=project, capture_output=True)
    lines = (project / "a.py").read_text().splitlines()
    assert lines == [
        "import os  # noqa: OOM101, F401",
        "x = 1  # noqa: OOM101",
        "y = 2  # oomlint: ignore[OOM101]",
    ]
