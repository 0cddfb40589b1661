"""What is written about oomlint in its own files is true of its code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from oomlint.cli import cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_on_disk_is_shipped() -> None:
    on_disk = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "oomlint").rglob("__init__.py")
    }
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == on_disk | {"oomlint.rules"}


def test_every_other_file_of_the_package_is_shipped() -> None:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "oomlint", "rules"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    others = {name for name in listing if not name.endswith((".py", ".pyi"))}
    shipped = {
        str(path.relative_to(ROOT))
        for package, patterns in PYPROJECT["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in ROOT.joinpath(*package.split(".")).glob(pattern)
    }
    assert others <= shipped


def test_every_dependency_is_pinned() -> None:
    project = PYPROJECT["project"]
    wanted = [
        *project["dependencies"],
        *(
            item
            for name, items in project["optional-dependencies"].items()
            if name != "all"
            for item in items
        ),
        *PYPROJECT["dependency-groups"]["dev"],
    ]
    pinned = re.findall(
        r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {re.split(r"[^\w-]", name)[0] for name in wanted} <= set(pinned)
    assert len(pinned) == len(set(pinned))


def test_torchfix_can_stand_beside_it() -> None:
    """As docs/flake8.md says: TorchFix 0.7.0 wants libcst>=1.5.0,<1.6.0."""
    (wanted,) = [one for one in PYPROJECT["project"]["dependencies"] if one.startswith("libcst")]
    assert wanted == "libcst>=1.5"


def test_the_table_links_to_files_that_exist() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README + CONTRIBUTING)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_readme_names_commands_and_options_that_exist() -> None:
    context = click.Context(cli)
    commands = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    spoken = re.findall(r"oomlint ([a-z]+)\b((?: +[^\n`]*)?)", README)
    named = [(name, rest) for name, rest in spoken if name in commands]
    assert {name for name, _ in named} >= {"check", "rule", "verify", "server"}
    for name, rest in named:
        command = commands[name]
        assert command is not None
        known = {
            option for param in command.params for option in (*param.opts, *param.secondary_opts)
        }
        assert set(re.findall(r"(?<!\S)--[a-z-]+", rest)) <= known, name


def test_the_page_of_the_command_line_names_all_of_it() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    context = click.Context(cli)
    assert [name for name in cli.list_commands(context) if f"| `oomlint {name}" not in page] == []
    check = cli.get_command(context, "check")
    assert check is not None
    options = [param for param in check.params if isinstance(param, click.Option)]
    names = {param.opts[-1] for param in options if not param.hidden}
    spoken = set(re.findall(r"--[a-z][a-z-]+", page.partition("## Options of `check`")[2]))
    assert names <= spoken, "options that the page does not name"
    every = {one for param in options for one in (*param.opts, *param.secondary_opts)}
    assert spoken - every == {"--target-version"}
    variables = {str(param.envvar) for param in options if param.envvar} | {"OOMLINT_CONFIG"}
    assert variables == set(re.findall(r"`(OOMLINT_\w+)`", page))


def test_the_readme_names_files_that_exist() -> None:
    for name in re.findall(r"`(scripts/[a-z-]+)\b", README + CONTRIBUTING):
        assert os.access(ROOT / name, os.X_OK), name


@pytest.mark.parametrize(
    "name", [".ci/run", *sorted(f"scripts/{p.name}" for p in (ROOT / "scripts").iterdir())]
)
def test_scripts_parse(name: str) -> None:
    subprocess.run(["bash", "-n", str(ROOT / name)], check=True)


def test_the_hook_is_complete_and_documented() -> None:
    yaml = pytest.importorskip("yaml")
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    for hook in hooks:
        assert {"id", "name", "entry", "language", "description"} <= set(hook)
        assert re.search(rf"\bid: {hook['id']}\b", README)
        assert hook["entry"].split()[:2] == ["oomlint", "check"]
