"""The command line: what goes where, which exit code, which options mean what."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shell import PLUGIN, Answer, call, spawn, write

KEPT = "kept = 0\nkept += loss\n"
WRONG = "a = wrong\n"
HINT = "a = hint\n"


@pytest.mark.parametrize(
    ("files", "arguments", "code", "out"),
    [
        ({"a.py": "x = 1\n"}, [], 0, "All checks passed!\n"),
        ({"a.py": KEPT}, [], 1, "a.py:2:1: FAK101 [*] kept is flagged\n"),
        ({"a.py": WRONG}, [], 1, "a.py:1:5: FAK102 wrong is flagged\n"),
        ({"a.py": WRONG}, ["--unsafe-fixes"], 1, "a.py:1:5: FAK102 [*] wrong is flagged\n"),
        ({"a.py": HINT}, [], 0, "All checks passed!\n"),
        ({"a.py": HINT}, ["--extend-select", "FAK9"], 1, "a.py:1:5: FAK901 hint is flagged\n"),
        ({"a.py": HINT}, ["--select", "mere-hint"], 1, "a.py:1:5: FAK901 hint is flagged\n"),
        ({"a.py": KEPT}, ["--select", "FAK9"], 0, "All checks passed!\n"),
        ({"a.py": KEPT}, ["--ignore", "FAK1,FAK2"], 0, "All checks passed!\n"),
        ({"a.py": KEPT}, ["--exit-zero"], 0, "FAK101"),
        ({"a.py": WRONG}, ["--fail-on", "error"], 0, "FAK102"),
        ({"a.py": WRONG}, ["--fail-on", "warning"], 1, "FAK102"),
        ({"a.py": KEPT}, ["--fail-on", "error"], 1, "FAK101"),
        ({"a.py": KEPT}, ["--per-file-ignores", "a.py:FAK1"], 0, "All checks passed!\n"),
        ({"a.py": KEPT}, ["--per-file-ignores", "!b.py:FAK1"], 0, "All checks passed!\n"),
        ({"a.py": KEPT}, ["--per-file-ignores", "b.py:FAK1"], 1, "FAK101"),
        ({"a.py": KEPT}, ["--config", 'ignore = ["FAK101"]'], 0, "All checks passed!\n"),
        ({"a.py": KEPT}, ["--statistics"], 1, "1\tFAK101\t[*] kept-value\n"),
        ({"a.py": KEPT}, ["--quiet"], 1, "a.py:2:1: FAK101 [*] kept is flagged\n"),
        ({"a.py": KEPT}, ["--silent"], 1, ""),
        ({"a.py": KEPT}, ["--unfixable", "FAK101"], 1, "a.py:2:1: FAK101 kept is flagged\n"),
        ({"a.py": KEPT}, ["--fixable", "FAK102"], 1, "a.py:2:1: FAK101 kept is flagged\n"),
    ],
)
def test_check(
    project: Path, files: dict[str, str], arguments: list[str], code: int, out: str
) -> None:
    write(project, files)
    answer = call("check", "--output-format", "concise", *arguments)
    assert (answer.code, answer.err) == (code, "")
    assert out in answer.out if out else not answer.out


def test_options_may_follow_paths(project: Path) -> None:
    write(project, {"src/a.py": KEPT})
    assert call("check", "src/", "--fix").code == 0
    assert (project / "src/a.py").read_text() == "kept = 0\nkept += loss.detach()\n"


@pytest.mark.parametrize(
    ("arguments", "err"),
    [
        (["check", "nope.py"], "error: nope.py: no such file or directory\n"),
        (["check", "--select", "OOM8"], "error: command line: unknown rule selector `OOM8`"),
        (["check", "--select", "fak1"], "error: command line: unknown rule selector `fak1`"),
        (["check", "--diff", "--statistics"], "`--diff` cannot be used with `--statistics`"),
        (["check", "--config", "nope.toml"], "is neither a file nor a setting"),
        (
            ["check", "--config", "selekt = []"],
            "unknown key `selekt`; the keys are baseline, cache-dir,",
        ),
        (["check", "--config", "preview = 1"], "`preview` must be true or false"),
        (["check", "--isolated", "--config", "pyproject.toml"], "cannot be used with `--isolated`"),
        (["check", "--per-file-ignores", "a.py"], "is not of the form PATTERN:RULE"),
        (["check", "--stdin-filename", "a.py", "b.py"], "cannot be used with paths but `-`"),
        (["check", "--no-such-option"], "No such option"),
        (["check", "--output-format", "xml"], "'xml' is not one of"),
        (["rule", "FAK999"], "error: there is no rule `FAK999`"),
        (["rule"], "error: name one rule"),
        (["nonsense"], "No such command 'nonsense'"),
    ],
)
def test_usage_errors(project: Path, arguments: list[str], err: str) -> None:
    answer = call(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert err in answer.err
    assert "Traceback" not in answer.err


def test_every_family_of_the_catalogue_is_a_selector(project: Path) -> None:
    write(project, {"a.py": KEPT})
    families = "OOM,OOM0,OOM1,OOM2,OOM3,OOM4,OOM5,OOM6,OOM9,ALL"
    assert call("check", "--select", families, "--ignore", "FAK").code == 0


def test_no_python_files_is_a_warning(project: Path) -> None:
    answer = call("check")
    assert answer == Answer(
        0,
        "All checks passed!\n",
        "warning: No Python files found under the given path(s)\n",
    )


def test_preview_rule_needs_preview(project: Path) -> None:
    write(project, {"a.py": "a = early\n"})
    warned = call("check", "--select", "FAK201")
    assert warned.code == 0
    assert warned.err == (
        "warning: Selection `FAK201` has no effect because preview is not enabled.\n"
    )
    assert call("check", "--select", "FAK201").err == warned.err, "the stored result warns too"
    assert call("check", "--select", "FAK201", "--preview").code == 1
    assert call("check", "--preview").code == 1
    explicit = ("--preview", "--config", "explicit-preview-rules = true")
    assert call("check", "--select", "FAK2", *explicit).code == 0
    assert call("check", "--select", "FAK201", *explicit).code == 1


def test_fix_applies_safe_fixes_and_names_those_held_back(project: Path) -> None:
    write(project, {"a.py": KEPT + WRONG})
    answer = call("check", "--fix", "--output-format", "concise")
    assert answer.code == 1
    assert (project / "a.py").read_text() == "kept = 0\nkept += loss.detach()\na = wrong\n"
    assert answer.out == (
        "a.py:3:5: FAK102 wrong is flagged\n"
        "Found 2 problems (1 fixed, 1 remaining).\n"
        "Held back 1 correction that changes what the training computes;"
        " apply with `--fix --unsafe-fixes`:\n"
        "  a.py:3: FAK102 Fix wrong\n"
    )
    again = call("check", "--fix", "--unsafe-fixes", "--show-fixes")
    assert again.code == 0
    assert again.out == (
        "Fixed 1 problem:\n- a.py:\n    1 x FAK102 (wrong-number)\n\n"
        "Found 1 problem (1 fixed, 0 remaining).\n"
    )
    assert (project / "a.py").read_text() == "kept = 0\nkept += loss.detach()\na = right\n"
    assert call("check", "--fix", "--unsafe-fixes").out == "All checks passed!\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--fix"], 0),
        (["--fix", "--exit-non-zero-on-fix"], 1),
        (["--fix-only"], 0),
        (["--fix-only", "--exit-non-zero-on-fix"], 1),
    ],
)
def test_exit_code_after_fixing(project: Path, arguments: list[str], code: int) -> None:
    write(project, {"a.py": KEPT})
    assert call("check", *arguments).code == code
    assert "detach" in (project / "a.py").read_text()


def test_fix_only_is_silent_about_what_remains(project: Path) -> None:
    write(project, {"a.py": WRONG})
    assert call("check", "--fix-only") == Answer(0, "", "")


def test_diff_writes_nothing(project: Path) -> None:
    write(project, {"a.py": KEPT + WRONG, "bad.py": "kept += (\n"})
    answer = call("check", "--diff")
    assert answer.code == 1
    assert answer.out == (
        "--- a.py\n+++ a.py\n@@ -1,3 +1,3 @@\n kept = 0\n-kept += loss\n+kept += loss.detach()\n"
        " a = wrong\n"
    )
    assert answer.err == "Would fix 1 problem (1 more with `--unsafe-fixes`).\n"
    assert (project / "a.py").read_text() == KEPT + WRONG


def test_diff_of_a_broken_file_is_empty(project: Path) -> None:
    write(project, {"bad.py": "kept += (\n"})
    assert call("check", "--diff") == Answer(0, "", "")


def test_stdin(project: Path) -> None:
    plain = call("check", "-", "--output-format", "concise", stdin=KEPT.encode())
    assert plain.code == 1
    assert plain.out.startswith("<stdin>:2:1: FAK101 [*] kept is flagged\n")
    named = ("check", "--stdin-filename", "sub/n.py", "-")
    shown = call(*named, "--output-format", "concise", "-q", stdin=KEPT.encode())
    assert shown == Answer(1, "sub/n.py:2:1: FAK101 [*] kept is flagged\n", "")
    ignored = call(*named, "--per-file-ignores", "sub/*:FAK1", stdin=KEPT.encode())
    assert ignored.code == 0


@pytest.mark.parametrize("text", [KEPT.encode(), KEPT.replace("\n", "\r\n").encode("utf-8-sig")])
def test_fix_of_stdin_prints_the_text_and_reports_on_stderr(project: Path, text: bytes) -> None:
    answer = call("check", "--fix", "-", stdin=text)
    assert answer.code == 0
    assert answer.out.encode() == text.replace(b"loss", b"loss.detach()")
    assert answer.err == "Found 1 problem (1 fixed, 0 remaining).\n"


def test_fix_of_excluded_or_unreadable_stdin_prints_it_back(project: Path) -> None:
    excluded = ("--stdin-filename", "build/a.py", "--force-exclude", "--fix")
    assert call("check", *excluded, "-", stdin=KEPT.encode()) == Answer(0, KEPT, "")
    unreadable = call("check", "--fix", "-", stdin=b"kept += a\0\n")
    assert (unreadable.code, unreadable.out) == (1, "kept += a\0\n")


def test_diff_of_stdin_is_labelled_with_its_name(project: Path) -> None:
    answer = call("check", "--diff", "--stdin-filename", "n.py", "-", stdin=KEPT.encode())
    assert answer.code == 1
    assert answer.out.startswith("--- n.py\n+++ n.py\n")


def test_machine_format_holds_the_document_and_nothing_else(project: Path) -> None:
    write(project, {"a.py": KEPT + "b = 1  # noqa: fak101\nkept += b  # noqa: fak101\n"})
    answer = call("check", "--output-format", "json", "--color", "always")
    assert [item["code"] for item in json.loads(answer.out)] == ["FAK101", "FAK101"]
    assert answer.err.startswith("\x1b[33m\x1b[1mwarning:\x1b[0m a.py:4: invalid `# noqa`")
    assert call("check", "--output-format", "json", "--select", "FAK9").out == "[]\n"


def test_output_file(project: Path) -> None:
    write(project, {"a.py": KEPT})
    answer = call("check", "--output-format", "concise", "-o", "report.txt", "--color", "always")
    assert answer == Answer(1, "", "")
    assert (project / "report.txt").read_text().startswith("a.py:2:1: FAK101 [*]")
    failed = call("check", "-o", "no/such/folder.txt")
    assert failed.code == 2
    assert "cannot be written" in failed.err


def test_output_format_from_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"a.py": KEPT})
    monkeypatch.setenv("OOMLINT_OUTPUT_FORMAT", "json")
    assert json.loads(call("check").out)[0]["code"] == "FAK101"


@pytest.mark.parametrize(
    ("option", "environment", "colored"),
    [
        ([], {}, False),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": ""}, True),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["--color", "always", "--output-format", "json"], {}, False),
    ],
)
def test_color(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: list[str],
    environment: dict[str, str],
    colored: bool,
) -> None:
    write(project, {"a.py": KEPT})
    plain = call("check", *[item for item in option if item not in ("always", "--color")][-2:])
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    answer = call("check", *option)
    assert ("\x1b[" in answer.out) is colored
    if option[:2] != ["--color", "never"]:
        assert re.sub(r"\x1b\[[\d;]*m", "", answer.out) == plain.out


@pytest.mark.parametrize("no_color", ["", "1"])
def test_terminal_and_pipe_show_the_same(project: Path, no_color: str) -> None:
    write(project, {"a.py": KEPT})
    piped = spawn("check", str(project)).out
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "oomlint", "check", str(project)]
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN), "TERM": "xterm", "NO_COLOR": no_color}
    # On a slow machine a progress bar would be shown, on stderr.
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.wait(20) == 1
    text = shown.decode().replace("\r\n", "\n")
    assert ("\x1b[" in text) is not bool(no_color)
    assert re.sub(r"\x1b\[[\d;]*m", "", text) == piped


def test_color_before_the_command(project: Path) -> None:
    write(project, {"a.py": KEPT})
    assert "\x1b[" in call("--color", "always", "check").out
    assert call("--isolated", "--config", "ignore = ['FAK1']", "check").code == 0


def test_verbose_goes_to_stderr(project: Path) -> None:
    write(project, {"a.py": KEPT, "venv/b.py": ""})
    answer = call("check", "-v", "--output-format", "concise")
    assert "FAK101" in answer.out
    assert "1 files, 0 unchanged since the last run" in answer.err


def test_show_files(project: Path) -> None:
    write(project, {"b.py": "", "a.pyi": "", "c.txt": ""})
    assert call("check", "--show-files") == Answer(0, f"{project}/a.pyi\n{project}/b.py\n", "")


def test_rule_text_and_json(project: Path) -> None:
    text = call("rule", "FAK108")
    assert text.code == 0
    assert text.out.startswith("# bad-neighbour (FAK108)\n")
    assert "Flags `asks_other` while the file `other.py` beside it holds `BAD`." in text.out
    assert call("rule", "bad-neighbour").out == text.out
    shown = json.loads(call("rule", "FAK901", "--output-format", "json").out)
    assert (shown["code"], shown["name"], shown["severity"]) == ("FAK901", "mere-hint", "advice")
    assert (shown["default"], shown["preview"], shown["status"]) == (False, False, "stable")
    assert (shown["fix"], shown["fix_availability"], shown["measured"]) == (None, "none", [])
    own = json.loads(call("rule", "OOM101", "--output-format", "json").out)
    assert own["fix"].startswith("Safe: ")
    assert own["fix_availability"] == "sometimes"
    assert "the peak of device bytes falls" in own["measured"][0]
    codes = [
        item["code"] for item in json.loads(call("rule", "--all", "--output-format", "json").out)
    ]
    assert codes == sorted(codes)
    assert {"FAK101", "FAK901"} <= set(codes)


def test_version_both_ways(project: Path) -> None:
    assert call("--version").out == call("version").out == "oomlint 0.1.0\n"
    assert json.loads(call("version", "--output-format", "json").out) == {"version": "0.1.0"}


def test_help_names_every_command(project: Path) -> None:
    answer = call("--help")
    assert answer.code == 0
    assert all(f"  {name} " in answer.out for name in ("check", "rule", "server", "verify"))


def test_bug_of_ours_ends_with_2(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"a.py": KEPT})
    monkeypatch.setattr("oomlint.tree.FILES_PER_CHUNK", 0)
    answer = call("check")
    assert answer.code == 2
    assert "Traceback" in answer.err
    assert "error: this is a bug in oomlint; please report it" in answer.err
