"""Which files a run takes: gitignore as git has it, excludes, named paths, odd entries."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from shell import write

from oomlint.errors import OomlintError
from oomlint.files import find_files
from oomlint.keys import Table
from oomlint.settings import SettingsFinder


def found(folder: Path, *paths: str, **values: object) -> list[str]:
    table = Table("test", str(folder), {k.replace("_", "-"): v for k, v in values.items()})
    result = find_files(paths or (str(folder),), SettingsFinder([table]))
    return [os.path.relpath(path, folder) for path, _ in result.files]


def test_python_files_only_and_each_once(project: Path) -> None:
    write(project, {name: "" for name in ("b.py", "a.pyi", "c.txt", "d.pyc", "sub/e.py", "py")})
    assert found(project, ".", "b.py", "sub") == ["a.pyi", "b.py", "sub/e.py"]


@pytest.mark.parametrize(
    "name", [".venv", "venv", "node_modules", "build", "dist", "__pypackages__"]
)
def test_default_excludes_hold_below_what_was_named(project: Path, name: str) -> None:
    write(project, {f"{name}/lib/a.py": "", "b.py": ""})
    assert found(project) == ["b.py"]
    assert found(project, name) == [f"{name}/lib/a.py"]
    assert found(project, f"{name}/lib") == [f"{name}/lib/a.py"]
    assert found(project, f"{name}/lib/a.py") == [f"{name}/lib/a.py"]
    assert found(project, f"{name}/lib/a.py", force_exclude=True) == []
    assert found(project, f"{name}/lib", force_exclude=True) == []


def test_a_folder_above_the_project_excludes_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"build/project/pyproject.toml": "", "build/project/a.py": ""})
    inside = tmp_path / "build/project"
    assert found(inside, str(inside), force_exclude=True) == ["a.py"]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"exclude": ("gen",)}, ["a.py", "sub/b.py", "venv/c.py"]),
        ({"extend_exclude": ("gen",)}, ["a.py", "sub/b.py"]),
        ({"extend_exclude": ("gen/d.py", "sub/*.py")}, ["a.py"]),
        ({"extend_exclude": ("[ab].py", "gen/")}, []),
        ({"extend_exclude": ("**/b.py",)}, ["a.py", "gen/d.py"]),
    ],
)
def test_excludes(project: Path, values: dict[str, object], expected: list[str]) -> None:
    write(project, {name: "" for name in ("a.py", "sub/b.py", "venv/c.py", "gen/d.py")})
    assert found(project, **values) == expected


def test_gitignore_outside_any_repository(project: Path) -> None:
    write(project, {".gitignore": "gen\n", "gen/a.py": "", "b.py": ""})
    assert found(project) == ["b.py"]
    assert found(project, respect_gitignore=False) == ["b.py", "gen/a.py"]


def test_ignored_path_that_is_named_is_checked(project: Path) -> None:
    write(project, {".git/HEAD": "", ".gitignore": "gen/\n", "gen/a.py": "", "gen/sub/b.py": ""})
    assert found(project) == []
    assert found(project, "gen") == ["gen/a.py", "gen/sub/b.py"]
    assert found(project, "gen/a.py") == ["gen/a.py"]


def test_repository_inside_a_repository_has_its_own_rules(project: Path) -> None:
    files = {
        ".git/HEAD": "",
        ".gitignore": "*.py\n",
        "a.py": "",
        "inner/.git/HEAD": "",
        "inner/b.py": "",
    }
    write(project, files)
    assert found(project) == ["inner/b.py"]


PATTERNS = [
    "*.py",
    "a/",
    "/a",
    "b",
    "a/b",
    "a/**/c",
    "**/c",
    "c/**",
    "!a",
    "!*.py",
    "/*.py",
    "a*.py",
    "[ab].py",
    "!b/",
    "d/*.py",
    "\\!a",
    "*a*",
    "b/*/a",
    "?.py",
    "#",
    "!/a/b/",
    "a/*",
]


@pytest.mark.parametrize("seed", range(12))
def test_gitignore_agrees_with_git(project: Path, seed: int) -> None:
    """Random rules in nested gitignore files and in info/exclude, held against git itself."""
    chance = random.Random(seed)
    names = ["a", "b", "c", "d"]
    files = {
        "/".join([*chance.choices(names, k=depth), f"{chance.choice(names)}.py"]): ""
        for depth in (0, 1, 1, 2, 2, 2, 3, 3) * 6
    }
    write(project, files)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    folders = {"", *(str(Path(name).parent) for name in files)}
    holders = chance.sample(sorted(folders), min(4, len(folders)))
    rules = {f"{folder}/.gitignore".lstrip("/."): folder for folder in holders}
    for holder in (
        *(f"{folder or '.'}/.gitignore" for folder in rules.values()),
        ".git/info/exclude",
    ):
        write(project, {holder: "\n".join(chance.sample(PATTERNS, 4)) + "\n"})
    listed = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard", "-z"],
        cwd=project,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    expected = sorted(name for name in listed if name.endswith(".py"))
    assert found(project, exclude=()) == expected


def test_links(project: Path) -> None:
    write(project, {"a.py": "", "sub/b.py": ""})
    (project / "loop").symlink_to(project)
    (project / "one.py").symlink_to("two.py")
    (project / "two.py").symlink_to("one.py")
    (project / "link.py").symlink_to("a.py")
    (project / "folder.py").symlink_to("sub")
    (project / ".#a.py").symlink_to("user@host.1234")
    assert found(project) == ["a.py", "link.py", "one.py", "sub/b.py", "two.py"]


@pytest.mark.parametrize("name", ["nope", "nope.py", "a.py/b.py"])
def test_missing_path(project: Path, name: str) -> None:
    write(project, {"a.py": ""})
    with pytest.raises(OomlintError, match=rf"^{name}: no"):
        found(project, name)


def test_file_of_any_name_is_checked_when_named(project: Path) -> None:
    write(project, {"script": "", "b.py": ""})
    assert found(project, "script") == ["script"]


def test_twenty_thousand_files_in_about_a_second(tmp_path: Path) -> None:
    for folder in range(200):
        place = tmp_path / f"pkg{folder % 20}" / f"sub{folder}"
        place.mkdir(parents=True)
        for name in range(100):
            (place / f"m{name}.py").touch()
    write(
        tmp_path, {".git/HEAD": "", ".gitignore": "*.pyc\n/out\n__pycache__/\n*.egg-info\n!keep\n"}
    )
    before = time.process_time()
    assert len(found(tmp_path)) == 20_000
    assert time.process_time() - before < 2
