"""Stored results: used when all is as it was, and never a moment longer."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from shell import call, write

from oomlint.files import find_files
from oomlint.settings import SettingsFinder
from oomlint.tree import TreeResult, check_paths

FILES = {"a.py": "kept += a\n", "b.py": "x = 1\n", "sub/c.py": "b = wrong  # noqa: fak102\n"}


def check(*paths: str, jobs: int | None = None) -> TreeResult:
    return check_paths(find_files(paths or (".",), SettingsFinder()).files, jobs=jobs)


def seen(result: TreeResult) -> list[tuple[str, list[str]]]:
    return [(item.path.name, [f.code for f in item.findings]) for item in result.results]


def stored(project: Path) -> list[Path]:
    return sorted((project / ".oomlint_cache").glob("*.json"))


def test_second_run_uses_all_and_says_the_same(project: Path) -> None:
    write(project, FILES)
    first, second = check(), check()
    assert (first.cached, second.cached) == (0, 3)
    assert second.results == first.results
    assert len(stored(project)) == 1
    assert (project / ".oomlint_cache/.gitignore").read_text() == "*\n"


def test_content_decides_and_not_time_or_size(project: Path) -> None:
    write(project, FILES)
    check()
    before = (project / "a.py").stat()
    os.utime(project / "a.py")
    os.utime(project / "b.py", ns=(1, 1))
    assert check().cached == 3
    write(project, {"a.py": "kept =+ a\n"})
    os.utime(project / "a.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = check()
    assert (after.cached, seen(after)) == (2, [("c.py", ["FAK102"])])


@pytest.mark.parametrize(
    ("change", "codes"),
    [
        ({"other.py": "BAD\n"}, ["FAK108"]),
        ({"other.py": "fine\n"}, []),
        ({"third.py": "BAD\n"}, []),
    ],
)
def test_dependency_that_appears_or_changes(
    project: Path, change: dict[str, str], codes: list[str]
) -> None:
    write(project, {"a.py": "asks_other\n"})
    assert seen(check()) == []
    write(project, change)
    assert [code for _, found in seen(check("a.py")) for code in found] == codes
    write(project, {"other.py": "BAD = True\n"})
    assert seen(check("a.py")) == [("a.py", ["FAK108"])]
    assert check("a.py").cached == 1
    (project / "other.py").unlink()
    assert seen(check("a.py")) == []


def test_dependency_on_callers(project: Path) -> None:
    write(project, {"a.py": "asks_callers\n", "b.py": "x = 1\n"})
    assert seen(check("a.py")) == []
    assert check("a.py").cached == 1
    write(project, {"sub/caller.py": "CALLS\n"})
    assert seen(check("a.py")) == [("a.py", ["FAK109"])]
    assert check("a.py").cached == 1
    (project / "sub/caller.py").unlink()
    assert seen(check("a.py")) == []


@pytest.mark.parametrize(
    "options",
    [
        ["--select", "FAK102"],
        ["--ignore", "FAK101"],
        ["--unfixable", "FAK101"],
        ["--per-file-ignores", "a.py:FAK1"],
        ["--preview"],
        ["--config", "torch-version = '2.4'"],
    ],
)
def test_other_settings_have_their_own_results(project: Path, options: list[str]) -> None:
    write(project, FILES)
    plain = call("check")
    changed = call("check", *options)
    assert len(stored(project)) == 2
    assert call("check") == plain
    assert call("check", *options) == changed
    assert call("check", "--no-cache", *options) == changed


def test_changed_rules_make_results_worthless(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oomlint import registry

    write(project, FILES)
    check()
    real = registry.stat_line
    monkeypatch.setattr(registry, "stat_line", lambda path: real(path) + "changed")
    registry.digest.cache_clear()
    assert check().cached == 0


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"format": 0}', '{"format": 1, "files": 3, "warnings": []}', "\0\1", "null"],
)
def test_damaged_cache_is_ignored_and_replaced(project: Path, content: str) -> None:
    write(project, FILES)
    good = check()
    stored(project)[0].write_text(content)
    again = check()
    assert (again.results, again.cached) == (good.results, 0)
    assert check().cached == 3


@pytest.mark.parametrize("entry", [3, [], [1, 2], ["", [], "", "", []], {"a": 1}])
def test_damaged_entry_is_ignored(project: Path, entry: object) -> None:
    write(project, FILES)
    good = check()
    path = stored(project)[0]
    document = json.loads(path.read_text())
    own = document["files"]["a.py"][0]
    document["files"]["a.py"] = [own, *entry[1:]] if isinstance(entry, list) and entry else entry
    path.write_text(json.dumps(document))
    assert check().results == good.results


def test_result_of_a_file_that_changes_during_the_run_is_not_stored(project: Path) -> None:
    future = time.time() + 60
    write(project, {"a.py": "asks_other\n", "other.py": "fine\n"})
    os.utime(project / "other.py", (future, future))
    check("a.py")
    assert check("a.py").cached == 0


def test_part_of_a_project_keeps_the_rest(project: Path) -> None:
    write(project, FILES)
    check()
    write(project, {"b.py": "y = 2\n"})
    assert check("b.py").cached == 0
    assert check().cached == 3
    (project / "a.py").unlink()
    write(project, {"b.py": "z = 3\n"})
    check("b.py")
    assert set(json.loads(stored(project)[0].read_text())["files"]) == {"b.py", "sub/c.py"}


def test_old_files_go(project: Path) -> None:
    write(project, FILES)
    for number in range(12):
        call("check", "--per-file-ignores", f"a{number}.py:FAK1")
    assert len(stored(project)) == 8


def test_a_project_can_be_moved(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, FILES)
    check()
    project.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    moved = check()
    assert moved.cached == 3
    assert all(result.path.is_relative_to(tmp_path / "moved") for result in moved.results)


def test_where_results_are_stored(tmp_path: Path, project: Path) -> None:
    loose = tmp_path / "loose"
    write(loose, FILES)
    call("check", str(loose))
    assert not (loose / ".oomlint_cache").exists(), "a folder without a marker is left clean"
    assert list((tmp_path / "home/.cache/oomlint").glob("*.json"))
    write(project, FILES)
    call("check", "--cache-dir", "elsewhere")
    assert not stored(project)
    assert list((project / "elsewhere").glob("*.json"))
    call("check", "--no-cache")
    assert not stored(project)


def test_folder_that_cannot_be_written_is_no_error(project: Path) -> None:
    write(project, {**FILES, ".oomlint_cache": "a file in the way"})
    answer = call("check", "--select", "FAK101")
    assert (answer.code, answer.err) == (1, "")


def test_one_worker_or_many_say_the_same(project: Path) -> None:
    write(project, {f"d{n % 7}/m{n}.py": f"kept += a{n}\n" * (n % 3) for n in range(150)})
    call("check", "--no-cache", "--jobs", "1")
    one, many = (call("check", "--no-cache", "--jobs", jobs) for jobs in ("1", "3"))
    assert one == many
    assert one.code == 1
