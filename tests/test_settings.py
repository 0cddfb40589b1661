"""Settings: discovery, layers, errors, selectors and the project's root."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import call, write

from oomlint.errors import OomlintError
from oomlint.selection import select
from oomlint.settings import Settings, SettingsFinder, settings_for


def settings(folder: Path, table: str, name: str = "a.py") -> Settings:
    write(folder, {"pyproject.toml": f"[tool.oomlint]\n{table}\n"})
    return settings_for(folder / name)


def codes(found: Settings) -> set[str]:
    return {rule.code for rule in select(found).rules if rule.code.startswith("FAK")}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            "selekt = []",
            "pyproject.toml:2: unknown key `selekt`; the keys are baseline, cache-dir, effects,",
        ),
        ("select = 'A'", "pyproject.toml:2: `select` must be a list of strings"),
        ("\n\nselect = [1]", "pyproject.toml:4: `select` must be a list of strings"),
        ("preview = 'yes'", "pyproject.toml:2: `preview` must be true or false"),
        (
            "output-format = 'xml'",
            "`output-format` must be one of `full`, `concise`, `grouped`, `json`",
        ),
        ("fail-on = 'never'", "`fail-on` must be one of `error`, `warning`, `advice`"),
        ("torch-version = 2.4", '`torch-version` must be a release as a string, such as "2.4"'),
        ("torch-version = 'two'", '`torch-version` must be a release as a string, such as "2.4"'),
        ("per-file-ignores = ['a']", "`per-file-ignores` must be a table of pattern"),
        ("[tool.oomlint.per-file-ignores]\n'a.py' = 'OOM1'", "must be a list of strings"),
        ("[tool.oomlint.lint]\nselect = []", "pyproject.toml:2: unknown key `lint`"),
        ("cache-dir = 1", "`cache-dir` must be a string"),
        ("= 1", "pyproject.toml: is not valid TOML: Invalid statement (at line 2, column 1)"),
    ],
)
def test_invalid_settings(project: Path, table: str, message: str) -> None:
    with pytest.raises(OomlintError) as error:
        settings(project, table)
    assert message in str(error.value)
    assert str(error.value).startswith("pyproject.toml")
    answer = call("check")
    assert (answer.code, answer.out) == (2, "")


def test_unknown_selector_names_its_file(project: Path) -> None:
    with pytest.raises(OomlintError, match=r"^pyproject.toml: unknown rule selector `OOM77`"):
        select(settings(project, "ignore = ['OOM77']"))


def test_key_of_another_table_does_not_confuse_the_row(project: Path) -> None:
    text = "[tool.other]\nselekt = 1\n[tool.oomlint]\nselekt = 1\n"
    write(project, {"pyproject.toml": text})
    with pytest.raises(OomlintError, match=r"pyproject.toml:4: "):
        settings_for(project / "a.py")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("", {"FAK101", "FAK102"}),
        ("select = ['FAK1']", {"FAK101", "FAK102"}),
        ("select = ['FAK9']", {"FAK901"}),
        ("select = ['ALL']", {"FAK101", "FAK102", "FAK901"}),
        ("extend-select = ['FAK901']", {"FAK101", "FAK102", "FAK901"}),
        ("ignore = ['FAK']", set()),
        ("ignore = ['FAK102']", {"FAK101"}),
        ("ignore = ['wrong-number']", {"FAK101"}),
        ("select = ['FAK101']\nignore = ['FAK1']", {"FAK101"}),
        ("select = ['FAK1']\nignore = ['FAK101']", {"FAK102"}),
        ("select = ['FAK101']\nignore = ['FAK101']", set()),
        ("select = ['FAK10']\nignore = ['FAK1', 'FAK102']", {"FAK101"}),
        ("select = ['ALL']\nignore = ['FAK']", set()),
        ("select = ['OOM2']", set()),
    ],
)
def test_selectors(project: Path, table: str, expected: set[str]) -> None:
    assert codes(settings(project, table)) & {"FAK101", "FAK102", "FAK901"} == expected


def test_options_beat_the_file(project: Path) -> None:
    write(
        project,
        {
            "pyproject.toml": "[tool.oomlint]\nselect = ['FAK101']\nignore = ['FAK102']\n",
            "a.py": "kept += a\nwrong\nhint\n",
        },
    )

    def found(*options: str) -> list[str]:
        out = call("check", "-q", "--output-format", "concise", *options).out
        return [line.split()[1] for line in out.splitlines()]

    assert found() == ["FAK101"]
    assert found("--select", "FAK102") == ["FAK102"]
    assert found("--extend-select", "FAK102") == ["FAK101", "FAK102"]
    assert found("--extend-select", "FAK9") == ["FAK101", "FAK901"]
    assert found("--ignore", "FAK1") == []
    assert found("--isolated") == ["FAK101", "FAK102"]
    assert found("--config", "select = ['FAK9']") == ["FAK901"]
    assert found("--config", "select = ['FAK9']", "--select", "FAK102") == ["FAK102"]


def test_closest_file_with_our_table_counts_whole(project: Path) -> None:
    write(
        project,
        {
            "pyproject.toml": "[tool.oomlint]\nselect = ['FAK101']\n",
            "sub/pyproject.toml": "[tool.other]\n",
            "sub/deep/oomlint.toml": "ignore = ['FAK102']\n",
            "sub/hidden/.oomlint.toml": "select = ['FAK9']\n",
            "sub/hidden/pyproject.toml": "[tool.oomlint]\nselect = ['FAK102']\n",
        },
    )
    finder = SettingsFinder()
    assert codes(finder.for_file(project / "a.py")) == {"FAK101"}
    assert codes(finder.for_file(project / "sub/a.py")) == {"FAK101"}
    assert "FAK101" in codes(finder.for_file(project / "sub/deep/a.py"))
    assert "FAK102" not in codes(finder.for_file(project / "sub/deep/a.py"))
    assert codes(finder.for_file(project / "sub/hidden/a.py")) == {"FAK901"}
    assert "FAK102" in codes(SettingsFinder(isolated=True).for_file(project / "a.py"))


def test_config_option_names_the_only_file(project: Path) -> None:
    write(
        project,
        {
            "pyproject.toml": "[tool.oomlint]\nselect = ['FAK9']\n",
            "other/oomlint.toml": "select = ['FAK101']\n[per-file-ignores]\n'sub/*' = ['FAK1']\n",
            "a.py": "kept += a\n",
            "sub/b.py": "kept += a\n",
        },
    )
    answer = call("check", "--config", "other/oomlint.toml", "-q", "--output-format", "concise")
    assert answer.out == "a.py:1:1: FAK101 [*] kept is flagged\n"


@pytest.mark.parametrize(
    ("files", "name", "root"),
    [
        ({}, "train.py", "."),
        ({}, "deep/er/train.py", "deep/er"),
        ({"pkg/__init__.py": ""}, "pkg/train.py", "pkg"),
        ({"pkg/__init__.py": "", "pkg/sub/__init__.py": ""}, "pkg/sub/train.py", "pkg"),
        ({"pkg/__init__.py": ""}, "pkg/sub/train.py", "pkg/sub"),
        ({"setup.py": ""}, "deep/train.py", "."),
        ({"setup.cfg": ""}, "deep/train.py", "."),
        ({"pyproject.toml": ""}, "deep/train.py", "."),
        ({".git/HEAD": ""}, "deep/train.py", "."),
        ({"oomlint.toml": ""}, "deep/train.py", "."),
        ({"setup.py": "", "sub/setup.py": ""}, "sub/deep/train.py", "sub"),
        (
            {"setup.py": "", "lib/site-packages/p/__init__.py": ""},
            "lib/site-packages/p/t.py",
            "lib/site-packages/p",
        ),
    ],
)
def test_root_of_the_project(tmp_path: Path, files: dict[str, str], name: str, root: str) -> None:
    write(tmp_path, files)
    assert settings_for(tmp_path / name, isolated=True).root == tmp_path / root


def test_fingerprint_is_about_findings_only(project: Path, tmp_path: Path) -> None:
    base = settings(project, "ignore = ['FAK1']").fingerprint
    assert settings(project, "ignore = ['FAK1']\nfail-on = 'error'").fingerprint == base
    assert settings(project, "ignore = ['FAK1']\nexclude = ['b']").fingerprint == base
    assert settings(project, "ignore = ['FAK2']").fingerprint != base
    assert settings(project, "ignore = ['FAK1']\ntorch-version = '2.4'").fingerprint != base
    assert settings(project, "ignore = ['FAK1']\nunfixable = ['FAK2']").fingerprint != base
    moved = tmp_path / "moved"
    moved.mkdir()
    assert settings(moved, "ignore = ['FAK1']").fingerprint == base


def test_torch_version(project: Path) -> None:
    assert settings(project, "torch-version = '2.4.1'").torch_version == (2, 4)
    assert settings(project, "").torch_version is None


def test_fixability_settings(project: Path) -> None:
    table = "extend-safe-fixes = ['FAK102']\nextend-unsafe-fixes = ['FAK101']\n"
    write(
        project,
        {"pyproject.toml": f"[tool.oomlint]\n{table}", "a.py": "kept += a\nwrong\n"},
    )
    assert call("check", "--fix").code == 1
    assert (project / "a.py").read_text() == "kept += a\nright\n"


@pytest.mark.parametrize(
    ("pattern", "path", "applies"),
    [
        ("a.py", "sub/a.py", True),
        ("tests", "tests/deep/a.py", True),
        ("tests/**", "tests/deep/a.py", True),
        ("tests/*", "tests/a.py", True),
        ("tests/*.py", "tests/deep/a.py", False),
        ("**/deep/*.py", "tests/deep/a.py", True),
        ("*.pyi", "a.py", False),
        ("test_?.py", "test_1.py", True),
        ("test_[!1].py", "test_1.py", False),
        ("!tests/**", "src/a.py", True),
        ("!tests/**", "tests/a.py", False),
    ],
)
def test_per_file_ignores(project: Path, pattern: str, path: str, applies: bool) -> None:
    found = settings(project, f"per-file-ignores = {{'{pattern}' = ['FAK101']}}")
    on = {rule.code for rule in select(found).rules_for(str(project / path), found)}
    assert ("FAK101" not in on) is applies
