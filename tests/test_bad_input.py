"""Input that cannot be checked: one clear line each, nothing written, no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from shell import Answer, call, spawn, write

GOOD = {"good.py": "kept += a\n"}
FOUND = "good.py:1:1: FAK101 [*] kept is flagged\n"


def concise(*arguments: str) -> Answer:
    return call("check", "-q", "--output-format", "concise", *arguments)


@pytest.mark.parametrize("token", ["", "kept\n"])
@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("def f(:\n", "{row}:7: invalid-syntax: invalid syntax"),
        ("print 'a'\n", "{row}:1: invalid-syntax: Missing parentheses in call to 'print'."),
        ("x = [1,\n", "{row}:5: invalid-syntax: '[' was never closed"),
        ("if x:\npass\n", "{next}:1: invalid-syntax: expected an indented block after 'if'"),
        ("s = '''\n", "{row}:5: invalid-syntax: unterminated triple-quoted string literal"),
        ('x = "é" +\n', "{row}:10: invalid-syntax: invalid syntax"),
        ("(" * 300 + ")" * 300 + "\n", "{row}:201: invalid-syntax: brackets nest deeper than 200"),
        ("(" * 5000, "{row}:201: invalid-syntax: brackets nest deeper than 200 levels"),
        ("-" * 20000 + "1\n", "1:1: invalid-syntax: the code nests too deeply"),
        ("x = 1\0\n", "1:1: unreadable: holds null bytes and is not Python source"),
        (b"x = '\xff\xfe'\n", "1:1: unreadable: is not valid utf-8"),
        (b"# coding: nonsense\n", "1:1: unreadable: cannot be decoded: unknown encoding"),
        (b"# coding: ascii\nx = '\xc3\xa9'\n", "1:1: unreadable: is not valid ascii"),
        (bytes(range(255, 240, -1)) + b"\0", "1:1: unreadable: holds null bytes"),
    ],
)
def test_file_is_reported_and_the_others_are_checked(
    project: Path, content: str | bytes, line: str, token: str
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    is_binary = isinstance(content, bytes)
    before = data + token.encode() if is_binary else token.encode() + data
    write(project, {**GOOD, "bad.py": before})
    answer = concise()
    row = 2 if token and not is_binary else 1
    first, second, *rest = answer.out.splitlines(keepends=True)
    assert first.startswith("bad.py:" + line.format(row=row, next=row + 1))
    assert (second, rest, answer.err, answer.code) == (FOUND, [], "", 1)
    fixed = concise("--fix")
    assert (fixed.code, fixed.out) == (1, first)
    assert (project / "bad.py").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "\f",
        "kept\n",
        b"\xef\xbb\xbf",
        b"# coding: latin-1\nx = '\xe9'\n",
        "x = 1",
        'type X[T] = list[T]\nx = f"{d["a"]}"\n',
        "try:\n    pass\nexcept* ValueError:\n    pass\n",
        "def f[T](x: T) -> T: return x\n",
    ],
)
def test_odd_files_that_are_right(project: Path, content: str | bytes) -> None:
    write(project, {"a.py": content})
    assert concise() == Answer(0, "", "")


def test_newer_syntax_is_checked(project: Path) -> None:
    write(project, {"a.py": "type X = int\nkept += a\n"})
    assert concise().out == "a.py:2:1: FAK101 [*] kept is flagged\n"


def test_deprecated_escapes_print_nothing(project: Path) -> None:
    write(project, {"a.py": "x = '\\d'\n", "b.py": "kept\nx = '\\d'; y = 1 is 1\n"})
    answer = spawn("check", "-q", "--output-format", "concise", str(project))
    assert answer.err == ""


def test_big_file(project: Path) -> None:
    line = "x = wrong if a else b\n"
    write(project, {"big.py": line * (10 * 1024 * 1024 // len(line) + 1)})
    assert concise().out == "big.py:1:1: unreadable: is larger than 10 MiB and was not read\n"
    write(project, {"big.py": "x = 1\n" * (2 * 1024 * 1024)})
    assert concise() == Answer(0, "", ""), "no rule can fire in it, so its size is no matter"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(project: Path) -> None:
    write(project, {**GOOD, "bad.py": "x = 1\n"})
    (project / "bad.py").chmod(0)
    assert concise() == Answer(
        1, "bad.py:1:1: unreadable: cannot be read: permission denied\n" + FOUND, ""
    )


def test_circular_and_dangling_links(project: Path) -> None:
    write(project, GOOD)
    (project / "loop").symlink_to(".")
    (project / "one.py").symlink_to("one.py")
    (project / "two.py").symlink_to("gone.py")
    answer = concise()
    assert answer.code == 1
    assert answer.out == (
        FOUND
        + "one.py:1:1: unreadable: cannot be read: too many levels of symbolic links\n"
        + "two.py:1:1: unreadable: cannot be read: no such file or directory\n"
    )
    named = call("check", "one.py")
    assert (named.code, named.err) == (2, "error: one.py: too many levels of symbolic links\n")


def test_file_that_kills_its_worker_costs_only_itself(project: Path) -> None:
    write(project, {f"m{n:02}.py": f"kept += v{n}\n" for n in range(60)})
    write(project, {"m30.py": "fatal_word\n"})
    answer = concise("--jobs", "2")
    lines = answer.out.splitlines()
    assert lines[30] == (
        "m30.py:1:1: crashed: the process that checked this file ended (exit status 9);"
        " it was not checked"
    )
    assert len(lines) == 60
    assert all("FAK101" in line for line in lines[:30] + lines[31:])
    assert (answer.code, answer.err) == (1, "")
    assert concise("--jobs", "2") == answer, "a death is not stored as a result"


def test_file_that_takes_too_long_costs_only_itself(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oomlint.workers.FILE_SECONDS", 1.0)
    write(project, {f"m{n}.py": f"kept += v{n}\n" for n in range(5)})
    write(project, {"m2.py": "sleeping_word\n"})
    answer = concise("--jobs", "1")
    lines = answer.out.splitlines()
    assert lines[2] == (
        "m2.py:1:1: crashed: the process that checked this file ended (no answer within 1 s);"
        " it was not checked"
    )
    assert [line.split()[1] for line in lines] == ["FAK101"] * 2 + ["crashed:"] + ["FAK101"] * 2
    monkeypatch.setattr("oomlint.workers.FILE_SECONDS", 600.0)
    assert concise("--jobs", "1") == answer, "what is slow is slow again"


def test_rule_that_raises_is_a_bug_of_ours(project: Path) -> None:
    write(project, {**GOOD, "bad.py": "raising_word\n"})
    answer = concise("--exit-zero")
    assert answer.code == 2
    first, second = answer.out.splitlines(keepends=True)
    assert first.startswith(
        "bad.py:1:1: internal-error: FAK106 failed with ValueError: a fault in the rule ("
    )
    assert second == FOUND


def test_unprintable_file_name(project: Path) -> None:
    name = os.fsdecode(b"b\xff.py")
    write(project, {name: "kept += a\n"})
    answer = spawn("check", "-q", "--output-format", "concise", str(project))
    assert answer.code == 1
    assert answer.out.endswith("b?.py:1:1: FAK101 [*] kept is flagged\n")
    assert spawn("check", "--output-format", "json", str(project)).code == 1
    assert spawn("check", "--fix", str(project)).code == 0
