"""Edits, convergence, refusals, and bytes on disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from shell import call, write

from oomlint.errors import OomlintError
from oomlint.fixer import apply_edits, fix_text, write_atomically
from oomlint.rule import Edit, Fix, Safety
from oomlint.settings import settings_for
from oomlint.source import Source


def fix(*edits: tuple[int, int, str]) -> Fix:
    return Fix("", tuple(Edit(*edit) for edit in edits), Safety.SAFE)


@pytest.mark.parametrize(
    ("fixes", "text", "applied"),
    [
        ([], "abcdef", []),
        ([fix((1, 2, "X"))], "aXcdef", [0]),
        ([fix((1, 2, ""))], "acdef", [0]),
        ([fix((3, 3, "X"))], "abcXdef", [0]),
        ([fix((4, 5, "Y")), fix((1, 2, "X"))], "aXcdYf", [0, 1]),
        ([fix((1, 3, "X")), fix((2, 4, "Y"))], "aXdef", [0]),
        ([fix((2, 4, "Y")), fix((1, 3, "X"))], "aXdef", [1]),
        ([fix((1, 3, "X")), fix((3, 5, "Y"))], "aXYf", [0, 1]),
        ([fix((1, 3, "X")), fix((3, 3, "Y"))], "aXYdef", [0, 1]),
        ([fix((1, 3, "X")), fix((2, 2, "Y"))], "aXdef", [0]),
        ([fix((2, 2, "X")), fix((2, 2, "Y"))], "abXcdef", [0]),
        ([fix((0, 0, "I"), (1, 2, "X")), fix((0, 0, "I"), (4, 5, "Y"))], "IaXcdYf", [0, 1]),
        ([fix((0, 0, "I"), (1, 2, "X")), fix((0, 0, "J"), (4, 5, "Y"))], "IaXcdef", [0]),
        ([fix((0, 1, "X"), (5, 6, "Y")), fix((2, 3, "Z"))], "XbZdeY", [0, 1]),
        ([fix((0, 1, "X"), (3, 6, "Y")), fix((4, 5, "Z"))], "XbcY", [0]),
        ([fix((0, 2, "X")), fix((0, 2, "X"))], "Xcdef", [0, 1]),
    ],
)
def test_apply_edits(fixes: list[Fix], text: str, applied: list[int]) -> None:
    after, done = apply_edits("abcdef", fixes)
    assert after == text
    assert sorted(index for index, item in enumerate(fixes) if any(item is d for d in done)) == (
        applied
    )


@pytest.mark.parametrize(
    ("text", "unsafe", "expected"),
    [
        ("x = 1\n", True, "x = 1\n"),
        ("kept += a\n", False, "kept += a.detach()\n"),
        ("a = wrong\n", False, "a = wrong\n"),
        ("a = wrong\n", True, "a = right\n"),
        ("a = call(call(call(b)))\n", False, "a = b\n"),
        ("a = use_it + use_it\n", False, "import tool\na = tool.it + tool.it\n"),
        ("a = broken\nkept += a\n", False, "a = broken\nkept += a.detach()\n"),
    ],
)
def test_fix_text_converges(project: Path, text: str, unsafe: bool, expected: str) -> None:
    settings = settings_for(project / "a.py")
    fixed = fix_text(Source(project / "a.py", text), settings, unsafe)
    assert fixed.text == expected
    again = fix_text(Source(project / "a.py", expected), settings, unsafe)
    assert (again.text, again.applied) == (expected, ())


def test_fix_that_never_ends_stops_after_ten_passes(project: Path) -> None:
    source = Source(project / "a.py", "grow\n")
    fixed = fix_text(source, settings_for(project / "a.py"), False)
    assert fixed.text.count("grow") > 2**9


def test_refused_fix_is_told_and_the_rest_is_made(project: Path) -> None:
    write(project, {"a.py": "a = broken\nkept += a\n"})
    answer = call("check", "--fix", "--output-format", "concise")
    assert answer.code == 1
    assert answer.err.startswith("warning: a.py: the fix of FAK103 at row 1 was refused,")
    assert answer.err.count("\n") == 1
    assert (project / "a.py").read_text() == "a = broken\nkept += a.detach()\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"kept += a\r\nx = 1\r\n", b"kept += a.detach()\r\nx = 1\r\n"),
        (b"\xef\xbb\xbfkept += a\n", b"\xef\xbb\xbfkept += a.detach()\n"),
        (b"x = 1\rkept += a\r", b"x = 1\rkept += a.detach()\r"),
        (b"x = 1\r\nkept += a\ny = 2\r", b"x = 1\r\nkept += a.detach()\ny = 2\r"),
        (b"if x:\n\tkept += a\t# why\f\n\n\n", b"if x:\n\tkept += a.detach()\t# why\f\n\n\n"),
        (b"kept += a", b"kept += a.detach()"),
        (
            b"kept += a  \n# \xc3\xa9\xf0\x9f\x98\x80",
            b"kept += a.detach()  \n# \xc3\xa9\xf0\x9f\x98\x80",
        ),
        (
            b"# coding: latin-1\ns = '\xe9'; kept += a\n",
            b"# coding: latin-1\ns = '\xe9'; kept += a.detach()\n",
        ),
        (b"s = '\xf0\x9f\x98\x80'; kept += a\n", b"s = '\xf0\x9f\x98\x80'; kept += a.detach()\n"),
        (b"use_it\r\n", b"import tool\r\ntool.it\r\n"),
        (b"type X = int\nkept += a\n", b"type X = int\nkept += a.detach()\n"),
    ],
)
def test_every_other_byte_is_kept(project: Path, before: bytes, after: bytes) -> None:
    write(project, {"a.py": before})
    call("check", "--fix")
    assert (project / "a.py").read_bytes() == after
    assert call("check", "--fix").out == "All checks passed!\n"
    assert (project / "a.py").read_bytes() == after


def test_text_that_the_encoding_cannot_hold_is_refused(project: Path) -> None:
    before = b"# coding: latin-1\na = widen\n"
    write(project, {"a.py": before})
    answer = call("check", "--fix")
    assert "the fix of FAK110 at row 2 was refused" in answer.err
    assert (project / "a.py").read_bytes() == before


def test_unchanged_file_is_not_written(project: Path) -> None:
    write(project, {"a.py": "a = wrong\n"})
    path = project / "a.py"
    os.utime(path, ns=(1, 1))
    before = path.stat()
    call("check", "--fix")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, 1)


def test_mode_and_links_are_kept(project: Path) -> None:
    write(project, {"real/a.py": "kept += a\n"})
    target = project / "real/a.py"
    target.chmod(0o754)
    (project / "b.py").symlink_to("real/a.py")
    assert call("check", "--fix", "b.py").code == 0
    assert (project / "b.py").is_symlink()
    assert target.read_text() == "kept += a.detach()\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o754
    assert sorted(path.name for path in (project / "real").iterdir()) == ["a.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_read_only_file(project: Path) -> None:
    write(project, {"a.py": "kept += a\n"})
    (project / "a.py").chmod(0o444)
    answer = call("check", "--fix")
    assert "a.py: cannot be written: permission denied; it is unchanged" in answer.err
    assert answer.code == 1


def test_write_to_a_vanished_file_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(OomlintError, match=r"cannot be written: no such file or directory"):
        write_atomically(tmp_path / "a.py", b"x")
    assert list(tmp_path.iterdir()) == []


def test_fix_in_one_file_settles_findings_in_another(project: Path) -> None:
    write(project, {"a.py": "asks_other\n", "other.py": "kept += BAD\n"})
    assert "FAK108" in call("check").out
    write(project, {"other.py": "BAD = wrong\nkept += a\n"})
    answer = call("check", "--fix", "--unsafe-fixes", "--output-format", "concise")
    assert answer.out.startswith("a.py:1:1: FAK108 asks_other is flagged\n")
    assert "Found 3 problems (2 fixed, 1 remaining)." in answer.out
