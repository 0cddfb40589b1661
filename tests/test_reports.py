"""Output formats, each as a whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import call, write

from oomlint.reports.full import window
from oomlint.reports.style import printable, width


def lines(*rows: str) -> str:
    return "\n".join(rows) + "\n"


def test_full(project: Path) -> None:
    write(project, {"a.py": "x = 1\n\nfor y in z:\n    kept += loss\n    b = wrong\n"})
    assert call("check").out == lines(
        "FAK101 error [*] kept is flagged",
        " --> a.py:4:5",
        "  |",
        "3 | for y in z:",
        "4 |     kept += loss",
        "  |     ^^^^^^^^^^^^",
        "5 |     b = wrong",
        "  |",
        "  = path: a.py:1  starts  x = 1",
        "      ->  a.py:4  ends    kept += loss",
        "help: Fix kept",
        "  |",
        "3 | for y in z:",
        "  -     kept += loss",
        "4 +     kept += loss.detach()",
        "5 |     b = wrong",
        "  |",
        "",
        "FAK102 warning wrong is flagged",
        " --> a.py:5:9",
        "  |",
        "3 | for y in z:",
        "4 |     kept += loss",
        "5 |     b = wrong",
        "  |         ^^^^^",
        "  |",
        "  = path: a.py:1  starts  x = 1",
        "      ->  a.py:5  ends    b = wrong",
        "help: Fix wrong",
        "  |",
        "4 |     kept += loss",
        "  -     b = wrong",
        "5 +     b = right",
        "  |",
        "note: This is an unsafe fix: it changes what the code computes",
        "",
        "Found 2 problems: 1 error, 1 warning.",
        "[*] 1 fixable with `--fix`; 1 more with `--fix --unsafe-fixes` (training changes).",
    )


def test_full_with_tabs_wide_characters_and_distant_edits(project: Path) -> None:
    body = "".join(f"x{n} = {n}\n" for n in range(9))
    write(
        project,
        {
            "a.py": f"{body}none = 0\nif x0:\n\ts = '語😀e\u0301'; use_it\n",
        },
    )
    out = call("check", "--select", "FAK104").out
    assert (
        lines(
            "   |",
            "10 | none = 0",
            "11 | if x0:",
            "12 |     s = '語😀e\u0301'; use_it",
            "   |                  ^^^^^^",
            "   |",
        )
        in out
    )
    assert (
        lines(
            "help: Fix use_it",
            "   |",
            " 1 + import tool",
            " 2 | x0 = 0",
            " 3 | x1 = 1",
            "   :",
            "12 | if x0:",
            "   -     s = '語😀e\u0301'; use_it",
            "13 +     s = '語😀e\u0301'; tool.it",
            "   |",
        )
        in out
    )


def test_full_of_a_file_that_could_not_be_checked(project: Path) -> None:
    write(project, {"a.py": "x = 1\ndef f(:\n", "b.py": "x\0"})
    assert call("check").out == lines(
        "invalid-syntax: invalid syntax",
        " --> a.py:2:7",
        "  |",
        "1 | x = 1",
        "2 | def f(:",
        "  |       ^",
        "  |",
        "",
        "unreadable: holds null bytes and is not Python source",
        " --> b.py:1:1",
        "",
        "Found 2 problems: 2 files not checked.",
    )


def test_full_shortens_long_ranges(project: Path) -> None:
    rows = [f"    'row {n}'," for n in range(30)]
    write(project, {"a.py": lines("a = call(", *rows, ")")})
    shown = call("check", "--select", "FAK111").out.splitlines()
    assert shown[2:9] == [
        "   |",
        " 1 | a = call(",
        "   |     ^^^^^",
        " 2 |     'row 0',",
        "   |     ^^^^^^^^",
        " 3 |     'row 1',",
        "   |     ^^^^^^^^",
    ]
    assert "   :" in shown
    assert not any("'row 15'" in line for line in shown[:30])


def test_full_shortens_long_lines(project: Path) -> None:
    write(project, {"a.py": "x = 'a" + "b" * 500 + "'; kept += a; y = 'c" + "d" * 500 + "'\n"})
    shown = call("check").out.splitlines()
    row = next(index for index, line in enumerate(shown) if line.startswith("1 | ..."))
    assert max(map(len, shown)) < 180
    caret = shown[row + 1].index("^")
    assert shown[row][caret : caret + 9] == "kept += a"


def test_control_characters_do_not_reach_the_terminal(project: Path) -> None:
    write(project, {"a.py": "s = '\x1b[31m\u202e'; kept += a\n"})
    out = call("check").out
    assert "\x1b" not in out and "\u202e" not in out
    assert "s = '␛[31m�'; kept += a" in out


@pytest.mark.parametrize(
    ("text", "cells"),
    [("abc", 3), ("\t", 4), ("語", 2), ("😀", 2), ("e\u0301", 1), ("é", 1), ("", 0)],
)
def test_width(text: str, cells: int) -> None:
    assert width(printable(text)) == cells


def test_window_of_a_short_line() -> None:
    assert window("\tab", 1, 2) == ("    ab", 4, 1)


def test_json(project: Path) -> None:
    text = "s = '''\n'''; kept += loss\nb = use_it\n"
    write(project, {"sub/a.py": text})
    path = str(project / "sub/a.py")

    def place(row: int, column: int) -> dict[str, int]:
        return {"row": row, "column": column}

    first, second = json.loads(call("check", "--output-format", "json").out)
    assert first == {
        "cell": None,
        "code": "FAK101",
        "name": "kept-value",
        "severity": "error",
        "filename": path,
        "message": "kept is flagged",
        "url": None,
        "noqa_row": 2,
        "location": place(2, 6),
        "end_location": place(2, 18),
        "fix": {
            "applicability": "safe",
            "message": "Fix kept",
            "edits": [
                {
                    "content": "kept += loss.detach()",
                    "location": place(2, 6),
                    "end_location": place(2, 18),
                }
            ],
        },
        "path": [
            {
                "message": "starts",
                "filename": path,
                "location": place(1, 1),
                "end_location": place(1, 2),
            },
            {
                "message": "ends",
                "filename": path,
                "location": place(2, 6),
                "end_location": place(2, 18),
            },
        ],
        "effect": [
            {"claim": "peak-falls", "description": "the peak of device bytes falls"},
        ],
    }
    assert [edit["content"] for edit in second["fix"]["edits"]] == ["import tool\n", "tool.it"]


def test_json_of_unsafe_missing_and_broken(project: Path) -> None:
    write(project, {"a.py": "wrong\nasks_other\n", "b.py": "def f(:\n", "other.py": "BAD\n"})
    found = json.loads(call("check", "--output-format", "json").out)
    assert [item["code"] for item in found] == ["FAK102", "FAK108", "invalid-syntax"]
    assert found[0]["fix"]["applicability"] == "unsafe"
    assert found[1]["fix"] is None
    assert found[2]["location"] == {"row": 1, "column": 7}
    assert [item["filename"] for item in found[1:]] == [str(project / n) for n in ("a.py", "b.py")]


def test_json_of_nothing(project: Path) -> None:
    write(project, {"a.py": ""})
    assert call("check", "--output-format", "json").out == "[]\n"


def test_statistics(project: Path) -> None:
    write(project, {"a.py": "kept += a\nkept += b\nwrong\n", "b.py": "def f(:\n"})
    assert call("check", "--statistics").out == (
        "2\tFAK101\t[*] kept-value\n1\tFAK102\t[ ] wrong-number\n1\tinvalid-syntax\t[ ]"
        " invalid-syntax\n"
    )
    found = json.loads(call("check", "--statistics", "--output-format", "json").out)
    assert found[0] == {
        "code": "FAK101",
        "name": "kept-value",
        "count": 2,
        "fixable": True,
        "fixable_count": 2,
    }
    assert found[1]["fixable"] is False
    assert call("check", "--statistics", "--unsafe-fixes").out.splitlines()[1].split("\t")[2] == (
        "[*] wrong-number"
    )


def test_path_into_another_file(project: Path) -> None:
    from oomlint.linter import FileResult
    from oomlint.reports import full
    from oomlint.reports.report import Report, Texts
    from oomlint.rule import Finding, Severity, Waypoint

    write(project, {"a.py": "call()\n", "lib/b.py": "\n\n    loss.backward()\n"})
    waypoints = (
        Waypoint("called", 1, 1, 1, 7),
        Waypoint("scaled backward", 3, 5, 3, 20, str(project / "lib/b.py")),
    )
    found = Finding("OOM999", "x", "said", Severity.ERROR, 0, 6, 1, 1, 1, 7, None, waypoints)
    result = FileResult(project / "a.py", (found,))
    shown = list(full.render(Report((result,), Texts(), False)))
    assert shown[-3:] == [
        "  = path: a.py:1      called           call()",
        "      ->  lib/b.py:3  scaled backward  loss.backward()",
        "",
    ]
