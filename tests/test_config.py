"""`oomlint config`, `extend`, and what the environment says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from shell import call, write

from oomlint.errors import OomlintError
from oomlint.key_help import HELP
from oomlint.keys import KEYS, checked_table
from oomlint.selection import select
from oomlint.settings import SettingsFinder, settings_for

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

KEPT = "kept += loss\n"


def test_every_key_is_explained_and_nothing_else() -> None:
    assert set(HELP) == set(KEYS)


@pytest.mark.parametrize("key", sorted(HELP))
def test_the_example_of_a_key_is_valid(key: str) -> None:
    raw = tomllib.loads(HELP[key].example)
    assert list(raw) == [key]
    checked_table(raw, "example", ".", lambda *keys: "example")


def test_config_lists_and_explains(project: Path) -> None:
    listed = call("config")
    assert (listed.code, listed.out.split()) == (0, sorted(KEYS))
    shown = call("config", "fail-on")
    assert "The mildest severity with which a run exits with 1." in shown.out
    assert '    [tool.oomlint]\n    fail-on = "error"\n' in shown.out
    assert max(map(len, call("config", "extend").out.splitlines())) <= 100
    found = json.loads(call("config", "preview", "--output-format", "json").out)
    assert (found["default"], found["value_type"]) == ("false", "true or false")
    assert set(json.loads(call("config", "--output-format", "json").out)) == set(KEYS)
    unknown = call("config", "selekt")
    assert (unknown.code, unknown.out) == (2, "")
    assert "error: there is no key `selekt`; the keys are baseline, " in unknown.err


def test_extend_starts_from_another_file(project: Path) -> None:
    write(
        project,
        {
            "shared/base.toml": 'select = ["FAK9"]\nfail-on = "error"\nextend-exclude = ["gone"]\n',
            "shared/middle.toml": 'extend = "base.toml"\nextend-select = ["FAK102"]\n',
            "oomlint.toml": 'extend = "shared/middle.toml"\nignore = ["FAK901"]\n',
        },
    )
    found = settings_for(project / "a.py")
    assert [rule.code for rule in select(found).rules] == ["FAK102"]
    assert found.fail_on == "error"
    assert found.source == project / "oomlint.toml"
    assert found.base == project
    assert any(pattern.glob == "gone" for pattern in found.exclude)


def test_patterns_start_at_the_file_in_which_they_stand(project: Path) -> None:
    write(
        project,
        {
            "base.toml": '[per-file-ignores]\n"sub/a.py" = ["FAK1"]\n',
            "sub/oomlint.toml": 'extend = "../base.toml"\n',
            "sub/a.py": KEPT,
            "sub/sub/a.py": KEPT,
        },
    )
    answer = call("check", "-q", "--output-format", "concise")
    assert answer.out.splitlines() == ["sub/sub/a.py:1:1: FAK101 [*] kept is flagged"]


def test_extend_expands_home_and_variables(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEAM", str(project / "team"))
    write(project, {"team/base.toml": 'select = ["FAK9"]\n', "o/oomlint.toml": ""})
    for wanted in ("$TEAM/base.toml", "~/base.toml"):
        write(project, {"o/oomlint.toml": f'extend = "{wanted}"\n'})
        monkeypatch.setenv("HOME", str(project / "team"))
        found = SettingsFinder().for_file(project / "o" / "a.py")
        assert {rule.code for rule in select(found).rules} == {"FAK901"}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"oomlint.toml": 'extend = "no.toml"'}, "oomlint.toml: `extend` names no.toml, which is"),
        (
            {"oomlint.toml": 'extend = "sub/pyproject.toml"', "sub/pyproject.toml": ""},
            "which has no `[tool.oomlint]` table",
        ),
        (
            {"oomlint.toml": 'extend = "b.toml"', "b.toml": 'extend = "oomlint.toml"'},
            "b.toml: `extend` leads back to oomlint.toml; remove one of them",
        ),
        ({"oomlint.toml": 'extend = "b.toml"', "b.toml": "selekt = 1"}, "b.toml:1: unknown key"),
        ({"oomlint.toml": "extend = 1"}, "oomlint.toml:1: `extend` must be a string"),
    ],
)
def test_extend_of_what_cannot_be(project: Path, files: dict[str, str], message: str) -> None:
    write(project, files)
    with pytest.raises(OomlintError) as error:
        settings_for(project / "a.py")
    assert message in str(error.value)


def test_extend_stands_in_files_only(project: Path) -> None:
    answer = call("check", "--config", 'extend = "a.toml"')
    assert answer.code == 2
    assert "`extend` can only stand in a settings file" in answer.err


def test_config_file_from_the_environment(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(project, {"a.py": KEPT})
    write(tmp_path, {"all of us.toml": 'ignore = ["FAK1"]\n', "other.toml": ""})
    assert call("check").code == 1
    monkeypatch.setenv("OOMLINT_CONFIG", str(tmp_path / "all of us.toml"))
    assert call("check").code == 0
    assert call("check", "--config", str(tmp_path / "other.toml")).code == 1
    assert call("check", "--isolated").code == 1
    assert call("check", "--config", "preview = false").code == 0
    monkeypatch.setenv("OOMLINT_CONFIG", "nowhere.toml")
    missing = call("check")
    assert missing.code == 2
    assert "error: OOMLINT_CONFIG names `nowhere.toml`, which is no file" in missing.err


def test_other_variables(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"a.py": KEPT})
    monkeypatch.setenv("OOMLINT_OUTPUT_FILE", "report.txt")
    monkeypatch.setenv("OOMLINT_OUTPUT_FORMAT", "concise")
    monkeypatch.setenv("OOMLINT_NO_CACHE", "1")
    assert call("check").out == ""
    assert (project / "report.txt").read_text().startswith("a.py:1:1: FAK101")
    assert not (project / ".oomlint_cache").exists()
    monkeypatch.setenv("OOMLINT_NO_CACHE", "0")
    call("check")
    assert (project / ".oomlint_cache").exists()
    monkeypatch.setenv("OOMLINT_CACHE_DIR", "kept-here")
    call("check")
    assert (project / "kept-here").exists()


def test_ignore_noqa_reports_what_is_silenced(project: Path) -> None:
    write(project, {"a.py": "kept += loss  # noqa: FAK101\n", "b.py": "# oomlint: noqa\n" + KEPT})
    assert call("check").code == 0
    shown = call("check", "--ignore-noqa", "-q", "--output-format", "concise")
    assert [line.split()[1] for line in shown.out.splitlines()] == ["FAK101", "FAK101"]
    assert call("check").code == 0, "stored results of the other kind do not count"


def test_torch_version_option(project: Path) -> None:
    write(project, {"a.py": ""})
    shown = call("check", "--torch-version", "2.1", "--show-settings")
    assert 'torch-version = "2.1"' in shown.out
    wrong = call("check", "--torch-version", "new")
    assert wrong.code == 2
    assert "--torch-version: `torch-version` must be a release" in wrong.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("oomlint che", ["check"]),
        ("oomlint check --select FAK10", ["FAK101", "FAK102"]),
        ("oomlint check --ignore OOM101,kept-v", ["OOM101,kept-value"]),
        ("oomlint rule wrong-n", ["wrong-number"]),
        ("oomlint config fail", ["fail-on"]),
        ("oomlint check --output-format json", ["json", "json-lines"]),
        ("oomlint check --baseline ba", ["ba"]),
    ],
)
def test_shell_completion(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    expected: list[str],
) -> None:
    monkeypatch.setenv("_OOMLINT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    found = [line.partition(",")[2] for line in call().out.splitlines()]
    assert set(expected) <= set(found)
    assert all(item.startswith(expected[0][:3]) for item in found)
