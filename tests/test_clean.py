"""`oomlint clean` and `--show-settings`: what is removed, what is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from shell import Answer, call, write

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def caches(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.json"))


def test_clean_removes_the_results_of_projects_and_nothing_else(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"a.py": "kept += a\n", "inner/pyproject.toml": "", "inner/b.py": "wrong\n"})
    # A folder of the same name that oomlint did not make.
    write(project, {"other/.oomlint_cache/precious.json": "{}"})
    assert call("check").code == 1
    assert len(caches(project)) == 3
    monkeypatch.chdir(project / "inner")
    answer = call("clean")
    assert answer == Answer(0, "", "Removed .oomlint_cache\n")
    monkeypatch.chdir(tmp_path)
    answer = call("clean", "project")
    assert answer == Answer(0, "", "Removed project/.oomlint_cache\n")
    assert caches(project) == ["other/.oomlint_cache/precious.json"]
    assert (project / "a.py").exists()
    assert call("clean", "project") == Answer(0, "", "")


def test_clean_from_a_folder_of_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(project, {"src/a.py": "kept += a\n"})
    assert call("check").code == 1
    monkeypatch.chdir(project / "src")
    assert call("clean", "-q") == Answer(0, "", "")
    assert caches(project) == []


def test_clean_of_results_that_lie_elsewhere(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"a.py": "kept += a\n"})
    write(tmp_path, {"other/pyproject.toml": "", "other/b.py": "wrong\n"})
    monkeypatch.setenv("OOMLINT_CACHE_DIR", str(tmp_path / "store"))
    assert call("check", ".", "../other").code == 1
    both = caches(tmp_path / "store")
    assert len(both) == 2
    assert call("clean", "-q").code == 0
    (left,) = caches(tmp_path / "store")
    assert call("clean", "-q", "../other").code == 0
    assert left in both and caches(tmp_path / "store") == []


@pytest.mark.parametrize("path", ["a.py", "no/such"])
def test_clean_of_what_is_no_folder(project: Path, path: str) -> None:
    write(project, {"a.py": ""})
    answer = call("clean", path)
    assert answer.code == 2 and f"{path}: is no folder" in answer.err


def test_show_settings(project: Path) -> None:
    write(
        project,
        {
            "pyproject.toml": "[tool.oomlint]\n"
            "select = ['FAK1']\nunfixable = ['FAK102']\nignore = ['nested-call']\n"
            "extend-exclude = ['old']\nbaseline = 'known.json'\ntorch-version = '2.4'\n"
            "per-file-ignores = { 'sub/**' = ['FAK10'] }\n",
            "sub/b.py": "",
            "z.py": "",
        },
    )
    answer = call("check", "--show-settings", "--fail-on", "error", "z.py", "sub")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("# The settings of sub/b.py, from pyproject.toml\n")
    shown = tomllib.loads(answer.out)
    assert shown["rules"] == ["FAK110"]
    assert shown["project"] == str(project)
    assert shown["baseline"] == str(project / "known.json")
    assert shown["torch-version"] == "2.4"
    assert shown["fail-on"] == "error"
    assert shown["exclude"][-1] == "old"
    assert "cache-dir" not in shown
    other = tomllib.loads(call("check", "--show-settings", "z.py").out)
    assert {"FAK101", "FAK102"} <= set(other["rules"]) and "FAK111" not in other["rules"]
    assert set(other["rules"]) - set(other["fixable"]) == {"FAK102"}


def test_show_settings_without_a_file(project: Path) -> None:
    write(project, {"a.py": ""})
    answer = call("check", "--show-settings", "--isolated")
    assert answer.out.startswith("# The settings of a.py, from defaults and options\n")
    assert "OOM101" in tomllib.loads(answer.out)["rules"]
