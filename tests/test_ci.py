"""What docs/ci.md and action.yml promise: commands run, and so do the steps of the action."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shell import PLUGIN, call, write

yaml = pytest.importorskip("yaml", reason="pre-commit, which brings it, is not installed")

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
WORKFLOWS = [yaml.safe_load(text) for language, text in BLOCKS if language == "yaml"]
COMMANDS = sorted({text.strip() for text in re.findall(r"oomlint check --[^`|\n]+", PAGE)})
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"]}


def test_the_page_is_read() -> None:
    assert len(WORKFLOWS) == 3
    assert len(COMMANDS) == 9


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_page(project: Path, command: str) -> None:
    write(project, {"a.py": "kept += a\n"})
    if "--baseline" in command:
        assert call("check", "--write-baseline", "oomlint-baseline.json").code == 0
    answer = call(*shlex.split(command)[1:])
    assert (answer.code, "error" in answer.err) == (int("baseline" not in command), False)
    if "--output-file" in command:
        assert answer.out == ""
        assert "kept is flagged" in (project / command.split()[-1]).read_text()


def test_the_settings_of_the_page(project: Path) -> None:
    (text,) = [text for language, text in BLOCKS if language == "toml"]
    write(project, {"a.py": "kept += a\n"})
    assert call("check", "--write-baseline", "oomlint-baseline.json").code == 0
    write(project, {"pyproject.toml": text})
    assert call("check").code == 0


def test_the_workflow_gives_what_the_action_takes() -> None:
    steps = WORKFLOWS[0]["jobs"]["oomlint"]["steps"]
    ours, upload = steps[1], steps[2]
    assert ours["uses"].startswith("oomlint/oomlint@")
    assert ours["with"].keys() <= ACTION["inputs"].keys()
    assert upload["with"]["sarif_file"] == "${{ steps.oomlint.outputs.sarif-file }}"
    assert "sarif-file" in ACTION["outputs"] and ours["id"] == "oomlint"


def test_gitlab_finds_the_report_that_the_job_writes() -> None:
    job = WORKFLOWS[2]["oomlint"]
    assert job["script"][1].endswith(f"--output-file {job['artifacts']['reports']['codequality']}")
    assert job["artifacts"]["when"] == "always", "a job that found something failed"


def test_the_action_names_only_what_exists() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert ACTION["runs"]["using"] == "composite"
    for name in re.findall(r"\$\{\{ inputs\.([a-z-]+) \}\}", text):
        assert name in ACTION["inputs"], name
    for step, output in re.findall(r"steps\.([a-z]+)\.outputs\.([a-z-]+)", text):
        # `python-path` is what setup-python answers.
        assert output == "python-path" or f"{output}=" in STEPS[step]["run"], output
    for value in ACTION["inputs"].values():
        assert isinstance(value["default"], str) and value["description"]
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), "an expression would be read as shell"
        assert "uses" in step or step["shell"] == "bash"


def run_step(name: str, folder: Path, **environment: str) -> tuple[int, str, dict[str, str]]:
    """The exit status, stdout and outputs of one step, run as GitHub's runner does."""
    outputs = folder.parent / "outputs"
    outputs.write_text("")
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PLUGIN), **environment, "GITHUB_OUTPUT": str(outputs)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    pairs = dict(line.split("=", 1) for line in outputs.read_text().splitlines())
    return done.returncode, done.stdout, pairs


def check(folder: Path, **inputs: str) -> tuple[int, str, dict[str, str]]:
    given = {name: value["default"] for name, value in ACTION["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    named = {"INPUT_" + name.upper().replace("-", "_"): value for name, value in given.items()}
    program = str(Path(sys.executable).with_name("oomlint"))
    return run_step("check", folder, OOMLINT=program, **named)


@pytest.mark.parametrize(
    ("inputs", "status", "found"),
    [
        ({}, 1, ["a b/c.py", "d.py"]),
        ({"paths": "a b\n"}, 1, ["a b/c.py"]),
        ({"paths": "a b\nd.py\n"}, 1, ["a b/c.py", "d.py"]),
        ({"args": "--ignore=FAK101\n"}, 1, ["d.py"]),
        ({"args": "--select\nFAK101"}, 1, ["a b/c.py"]),
        ({"args": "--fail-on=error", "paths": "d.py"}, 0, ["d.py"]),
        ({"args": "--no-such-option"}, 2, []),
        ({"paths": "$(touch injected)"}, 2, []),
        ({"paths": "--fix"}, 2, []),
    ],
)
def test_check_step_annotates(
    project: Path, inputs: dict[str, str], status: int, found: list[str]
) -> None:
    write(project, {"a b/c.py": "kept += a\n", "d.py": "wrong\n"})
    code, out, outputs = check(project, **inputs)
    places = re.findall(r"^::(?:error|warning) title=[^,]+,file=([^,]+),", out, re.MULTILINE)
    assert places == [f"{project}/{name}" for name in found]
    assert (code, outputs) == (status, {"exit-code": str(status)})
    assert not (project / "injected").exists()


def test_check_step_without_annotations(project: Path) -> None:
    write(project, {"a.py": "wrong\n"})
    code, out, _ = check(project, annotations="false")
    assert (code, out.splitlines()[1]) == (1, " --> a.py:1:1")


def test_check_step_writes_sarif(project: Path) -> None:
    write(project, {"a.py": "kept += a\n"})
    code, out, outputs = check(project, sarif_file="oomlint.sarif")
    assert code == 1 and out.startswith("::error ")
    assert outputs == {"sarif-file": f"{project}/oomlint.sarif", "exit-code": "1"}
    document = json.loads((project / "oomlint.sarif").read_text())
    assert [result["ruleId"] for result in document["runs"][0]["results"]] == ["FAK101"]
    write(project, {"a.py": "x = 1\n"})
    elsewhere = str(project.parent / "clean.sarif")
    assert check(project, sarif_file=elsewhere) == (
        0,
        "",
        {"sarif-file": elsewhere, "exit-code": "0"},
    )


def test_install_step_calls_pip_for_the_action_itself(tmp_path: Path) -> None:
    """With a venv whose pip only writes down what it was asked: the network is not a test's."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\n"
        'if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit; fi\n'
        'echo "$@" > "$RUNNER_TEMP/asked"\n'
    )
    python.chmod(0o755)
    folder = tmp_path / "work"
    folder.mkdir()
    given: dict[str, Any] = {"PYTHON": python, "RUNNER_TEMP": tmp_path, "GITHUB_ACTION_PATH": ROOT}
    code, _, outputs = run_step("install", folder, **{k: str(v) for k, v in given.items()})
    assert (code, outputs) == (0, {"oomlint": f"{tmp_path}/oomlint/bin/oomlint"})
    assert (tmp_path / "asked").read_text().split()[:3] == ["-m", "pip", "install"]
    assert (tmp_path / "asked").read_text().split()[-1] == str(ROOT)
