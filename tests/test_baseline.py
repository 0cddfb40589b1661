"""Baselines: what is known is not shown, also when lines move; what is gone is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from shell import Answer, call, write

LINES = "kept += a\nkept += b\nwrong\n"
FILE = "known.json"


def concise(*arguments: str, stdin: bytes = b"") -> Answer:
    return call("check", "-q", "--output-format", "concise", *arguments, stdin=stdin)


@pytest.fixture
def known(project: Path) -> Path:
    """A project whose findings are all in a baseline."""
    write(project, {"a.py": LINES, "sub/b.py": "wrong\n"})
    answer = call("check", "--write-baseline", FILE)
    assert answer == Answer(
        0, "4 known findings not shown.\nAll checks passed!\n", f"Wrote 4 findings to {FILE}.\n"
    )
    return project


def test_baseline_is_sorted_and_says_what_it_holds(known: Path) -> None:
    document = json.loads((known / FILE).read_text())
    assert document["version"] == 1
    shown = {
        path: [(entry["code"], entry["message"]) for entry in entries]
        for path, entries in document["findings"].items()
    }
    kept, wrong = ("FAK101", "kept is flagged"), ("FAK102", "wrong is flagged")
    assert shown == {"a.py": [kept, kept, wrong], "sub/b.py": [wrong]}
    before = (known / FILE).read_bytes()
    assert call("check", "--write-baseline", FILE).code == 0
    assert (known / FILE).read_bytes() == before


@pytest.mark.parametrize(
    ("after", "found"),
    [
        (LINES, []),
        ("import x\n\n\n" + LINES, []),
        ("if x:\n    kept += a\n    kept += b\n    wrong\n", []),
        ("wrong\nkept += b\nkept += a\n", []),
        (LINES + "kept += c\n", [4]),
        (LINES + "kept += a\n", [4]),
        ("kept += c\n" + LINES, [1]),
        (LINES.replace("kept += a", "kept += a2"), [1]),
        ("wrong  # once more\n" + LINES, [1]),
    ],
)
def test_only_what_is_new_is_reported(known: Path, after: str, found: list[int]) -> None:
    write(known, {"a.py": after})
    answer = concise("--baseline", FILE)
    assert [int(line.split(":")[1]) for line in answer.out.splitlines()] == found
    assert answer.code == bool(found)


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ({"new.py": LINES}, []),
        ({"new.py": "\n" + LINES + "kept += c\n"}, [5]),
        ({"new.py": LINES, "copy.py": LINES}, [1, 2, 3]),
        ({"other.py": "wrong\nwrong\nkept += c\nkept += d\n"}, [1, 2, 3, 4]),
    ],
)
def test_a_renamed_file_stays_known(known: Path, after: dict[str, str], found: list[int]) -> None:
    (known / "a.py").unlink()
    write(known, after)
    answer = concise("--baseline", FILE)
    assert [int(line.split(":")[1]) for line in answer.out.splitlines()] == found
    call("check", "--write-baseline", FILE)
    names = json.loads((known / FILE).read_text())["findings"].keys()
    assert names == {*after, "sub/b.py"}


def test_a_copied_file_is_new(known: Path) -> None:
    write(known, {"copy.py": LINES})
    assert concise("--baseline", FILE).out.count("copy.py:") == 3


def test_counts_are_of_what_is_new(known: Path) -> None:
    write(known, {"a.py": LINES + "kept += c\n"})
    assert call("check", "--baseline", FILE, "--output-format", "concise").out == (
        "a.py:4:1: FAK101 [*] kept is flagged\n"
        "4 known findings not shown.\n"
        "Found 1 problem: 1 error.\n"
        "[*] 1 fixable with `--fix`.\n"
    )
    found = json.loads(call("check", "--baseline", FILE, "--output-format", "json").out)
    assert [item["location"]["row"] for item in found] == [4]
    assert call("check", "--baseline", FILE, "--statistics").out.split("\t")[:2] == ["1", "FAK101"]


def test_baseline_counts_from_its_own_folder(
    known: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(known / "sub")
    assert concise("--baseline", f"../{FILE}", "..").code == 0
    monkeypatch.chdir(tmp_path)
    assert concise("--baseline", f"project/{FILE}", "project") == Answer(0, "", "")
    # A copy elsewhere means other files.
    write(tmp_path, {FILE: (known / FILE).read_bytes()})
    assert concise("--baseline", FILE, "project").code == 1


def test_baseline_from_the_settings(known: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(known, {"pyproject.toml": f"[tool.oomlint]\nbaseline = '{FILE}'\n"})
    assert concise().code == 0
    monkeypatch.chdir(known / "sub")
    assert concise().code == 0
    assert concise("--config", "baseline = ''").code == 1
    assert concise("--isolated").code == 1


def test_stdin(known: Path) -> None:
    def check(text: str) -> list[str]:
        answer = concise("--baseline", FILE, "--stdin-filename", "a.py", stdin=text.encode())
        assert answer.err == ""
        return answer.out.splitlines()

    assert check("x = 1\n" + LINES) == []
    assert check(LINES + "kept += c\n") == ["a.py:4:1: FAK101 [*] kept is flagged"]


def stale(*arguments: str) -> list[str]:
    """What is said to be gone."""
    return [line.strip() for line in concise("--baseline", FILE, *arguments).err.splitlines()]


GONE = (
    f"warning: {FILE}: 1 entry matches no finding any more; remove with `--write-baseline {FILE}`"
)


@pytest.mark.parametrize(
    ("files", "arguments", "said"),
    [
        ({}, [], []),
        ({"a.py": "kept += a\nwrong\n"}, [], [GONE, "a.py: FAK101 kept is flagged"]),
        ({"a.py": LINES + "x = 1\n"}, [], []),
        ({"a.py": "kept += a\nwrong\n"}, ["sub"], []),
        ({"a.py": "kept += a\nwrong\n"}, ["--ignore", "FAK101"], []),
        ({"a.py": "kept += a\nwrong\n"}, ["--per-file-ignores", "a.py:FAK1"], []),
        ({"a.py": "def f(:\n"}, [], []),
        ({"sub/b.py": None}, ["a.py"], [GONE, "sub/b.py: FAK102 wrong is flagged"]),
        ({"sub/b.py": None}, ["-s"], []),
    ],
)
def test_what_is_gone_is_said_where_this_run_can_know(
    known: Path, files: dict[str, str | None], arguments: list[str], said: list[str]
) -> None:
    for name, text in files.items():
        if text is None:
            (known / name).unlink()
        else:
            write(known, {name: text})
    if "-s" in arguments:
        assert call("check", "--baseline", FILE, "-s") == Answer(0, "", "")
    else:
        assert stale(*arguments) == said


def test_many_that_are_gone_are_not_all_listed(project: Path) -> None:
    write(project, {"a.py": "".join(f"kept += a{n}\n" for n in range(14))})
    assert call("check", "--write-baseline", FILE).code == 0
    write(project, {"a.py": ""})
    said = stale()
    assert len(said) == 12
    assert "14 entries match" in said[0] and said[-1] == "and 4 more"


def test_writing_again_drops_what_is_gone_and_keeps_what_was_not_looked_at(known: Path) -> None:
    write(known, {"a.py": "kept += a\nkept += new\n"})
    answer = call("check", "-q", "--write-baseline", FILE, "a.py")
    assert answer == Answer(0, "", "")
    assert stale() == [] and concise("--baseline", FILE).code == 0
    said = call("check", "--write-baseline", FILE, "a.py").err
    assert said == f"Wrote 2 findings to {FILE} and kept 1 that this run did not look at.\n"
    (known / "sub/b.py").unlink()
    assert call("check", "--write-baseline", FILE, "a.py").err == f"Wrote 2 findings to {FILE}.\n"


def test_fixes_come_first(known: Path) -> None:
    answer = call("check", "--fix", "--baseline", FILE)
    assert answer.code == 0
    assert (known / "a.py").read_text() == "kept += a.detach()\nkept += b.detach()\nwrong\n"
    assert answer.err.count("FAK101 kept is flagged") == 2, "what was fixed is gone"


def test_a_file_that_is_no_python_is_never_known(project: Path) -> None:
    write(project, {"a.py": "def f(:\n"})
    answer = call("check", "--write-baseline", FILE)
    assert (answer.code, answer.err) == (1, f"Wrote 0 findings to {FILE}.\n")
    assert "invalid-syntax" in concise("--baseline", FILE).out


def test_suppressed_findings_are_not_written(project: Path) -> None:
    write(project, {"a.py": "kept += a  # noqa: FAK101\n"})
    assert call("check", "--write-baseline", FILE).err == f"Wrote 0 findings to {FILE}.\n"


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (None, ["--baseline", FILE], f"{FILE}: there is no such baseline"),
        ("[1]", ["--baseline", FILE], f"{FILE}: is no baseline of oomlint"),
        ("no json", ["--baseline", FILE], f"{FILE}: is no baseline of oomlint"),
        ('{"version": 1, "findings": []}', ["--baseline", FILE], "is no baseline of oomlint"),
        ('{"version": 2, "findings": {}}', ["--baseline", FILE], "a baseline of version 2"),
        # Another file is not overwritten.
        ("no json", ["--write-baseline", FILE], f"{FILE}: is no baseline of oomlint"),
        (None, ["--write-baseline", "no/such/folder.json"], "cannot be written"),
        (None, ["--write-baseline", FILE, "--diff"], "cannot be used with"),
        (None, ["--write-baseline", FILE, "--baseline", FILE], "cannot be used with"),
    ],
)
def test_errors(project: Path, text: str | None, arguments: list[str], said: str) -> None:
    write(project, {"a.py": LINES, **({} if text is None else {FILE: text})})
    answer = call("check", *arguments)
    assert answer.code == 2 and said in answer.err and not answer.out
    if text is not None:
        assert (project / FILE).read_text() == text
