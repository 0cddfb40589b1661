"""Rules of third parties: the example package as users install it, and packages that are broken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from shell import Answer, spawn, write

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "plugin"
TRAIN = """\
import torch
from torch import load as read

first = torch.load("a.pt")
second = read(
    "b.pt",
    map_location="cpu",
)
third = torch.load("c.pt", weights_only=False)
fourth = torch.load("d.pt", **options)
fifth = json.load(file)
"""
FIXED = TRAIN.replace('"a.pt")', '"a.pt", weights_only=True)').replace(
    '"cpu",\n', '"cpu", weights_only=True,\n'
)
RULE = """\
from oomlint.rule import Claim, Finding, Rule, Severity

class R(Rule):
    '''## What it does
    Flags nothing.
    '''
    code = "BAD101"
    name = "some-defect"
    severity = Severity.WARNING
    tokens = (("x",),)
    claims = ()

    def check(self, model):
        yield from ()
"""
PLACES = "'BAD101', 'some-defect', 'm', Severity.ERROR, {}, {}, 1, 1, 1, 2"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package, built and installed by pip without a network."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")
    target = folder / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    options = ["--no-build-isolation", "--target", str(target), str(folder / "source")]
    done = subprocess.run([*pip, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return target


def check(folder: Path, plugin: Path, *options: str) -> Answer:
    where = str(folder)
    arguments = ("check", "--isolated", "--no-cache", "--output-format", "concise", *options, where)
    return spawn(*arguments, PYTHONPATH=str(plugin))


def test_the_example_finds_and_fixes(tmp_path: Path, installed: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(TRAIN)
    found = check(tmp_path, installed, "--select", "ACM")
    assert (found.code, found.err) == (1, "")
    places = [line.partition("train.py:")[2] for line in found.out.splitlines()[:2]]
    assert places == [
        "4:9: ACM101 `torch.load` unpickles whatever the file holds",
        "5:10: ACM101 `read` unpickles whatever the file holds",
    ]
    held = check(tmp_path, installed, "--select", "ACM", "--fix")
    assert (held.code, file.read_text()) == (1, TRAIN)
    fixed = check(tmp_path, installed, "--select", "ACM", "--fix", "--unsafe-fixes")
    assert (fixed.code, fixed.err, file.read_text()) == (0, "", FIXED)


def test_the_example_is_on_without_being_selected(tmp_path: Path, installed: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    assert check(tmp_path, installed).code == 1
    assert check(tmp_path, installed, "--ignore", "ACM101").code == 0


def test_the_example_is_explained(installed: Path) -> None:
    said = spawn("rule", "ACM101", PYTHONPATH=str(installed))
    assert said.out.startswith("# load-of-any-pickle (ACM101)\n\nSeverity: warning.\n\n## What it")
    listed = spawn("rule", "ACM101", "--output-format", "json", PYTHONPATH=str(installed))
    assert '"category": "third party"' in listed.out
    assert '"url": null' in listed.out


def test_without_the_package_its_rules_are_unknown(tmp_path: Path) -> None:
    answer = check(tmp_path, tmp_path, "--select", "ACM")
    assert answer.code == 2
    assert "unknown rule selector `ACM`" in answer.err


def package(folder: Path, code: str, value: str = "bad_rules") -> Path:
    """A folder in which a package `bad-rules` is installed whose module holds this code."""
    metadata = "Metadata-Version: 2.1\nName: bad-rules\nVersion: 1.0\n"
    files = {
        "bad_rules.py": code,
        "bad_rules-1.0.dist-info/METADATA": metadata,
        "bad_rules-1.0.dist-info/entry_points.txt": f"[oomlint.rules]\nbad = {value}\n",
    }
    write(folder / "installed", files)
    return folder / "installed"


BROKEN = {
    "nothing there": ("", "nonesuch", "do not load (ModuleNotFoundError: No module named"),
    "no such name": (RULE, "bad_rules:Q", "do not load (AttributeError: "),
    "no Python": ("def f(:\n", "bad_rules", "do not load (SyntaxError: invalid syntax"),
    "an error": ("1 / 0", "bad_rules", "do not load (ZeroDivisionError: division by zero)"),
    "lines": ("raise ValueError('a\\nb')", "bad_rules", "do not load (ValueError: a b)"),
    "an exit": ("import sys; sys.exit(0)", "bad_rules", "do not load (SystemExit: 0)"),
    "no rules": ("x = 1", "bad_rules", "must name a Rule class or a module that defines some"),
    "borrowed rules": ("from oomlint.rule import Rule", "bad_rules", "must name a Rule class"),
    "a function": (RULE, "bad_rules:R.check", "must name a Rule class or a module"),
    "no code": (RULE.replace('"BAD101"', '"B1"'), "bad_rules", "`B1` is no code of the form"),
    "own code": (RULE.replace("BAD101", "OOM999"), "bad_rules", "OOM999", "code of oomlint's own"),
    "taken": (RULE.replace("BAD101", "OOM101"), "bad_rules", "OOM101 is taken by oomlint.rules."),
    "no name": (RULE.replace("name =", "nom ="), "bad_rules", "rule BAD101", "lacks `name`"),
    "bad name": (RULE.replace("some-d", "Some d"), "bad_rules", "has the name 'Some defect'"),
    "severity": (RULE.replace("Severity.WARNING", "'x'"), "bad_rules", "that is no Severity"),
    "tokens": (RULE.replace('(("x",),)', '("x",)'), "bad_rules", "no tuple of tuples of words"),
    "one token": (RULE.replace('(("x",),)', '(("xy"))'), "bad_rules", "no tuple of tuples"),
    "claims": (RULE.replace("claims = ()", "claims = ('a',)"), "bad_rules", "tuple of Claims"),
    "no check": (RULE.replace("def check", "def test"), "bad_rules", "has no `check`"),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN)
def test_a_package_that_does_not_load_is_one_sentence(tmp_path: Path, case: tuple[str]) -> None:
    code, value, *said = case
    plugin = package(tmp_path, code, value)
    answer = check(tmp_path, plugin)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.count("\n") == 1
    assert answer.err.startswith("error: ")
    assert all(part in answer.err for part in said), answer.err
    assert "package `bad-rules`" in answer.err
    assert f"`bad = {value}`" in answer.err


FAILING = {
    "raises": ("raise ValueError('no')", "BAD101 failed with ValueError: no (bad_rules.py:14)"),
    "no findings": ("return None", "BAD101 failed with TypeError: 'NoneType' object"),
    "strings": ("yield 'a'", "check() yields str instead of Finding"),
    "outside": (f"yield Finding({PLACES.format(0, 99)})", "outside of the text's 6 characters"),
    "backwards": (f"yield Finding({PLACES.format(3, 1)})", "outside of the text's 6 characters"),
}


@pytest.mark.parametrize("case", FAILING.values(), ids=FAILING)
def test_a_rule_that_fails_is_named_with_its_package(tmp_path: Path, case: tuple[str, str]) -> None:
    body, said = case
    plugin = package(tmp_path, RULE.replace("yield from ()", body))
    write(tmp_path / "code", {"a.py": "x = 1\n", "b.py": "y = 1\n"})
    answer = check(tmp_path / "code", plugin)
    assert (answer.code, answer.err) == (2, "")
    (line,) = [line for line in answer.out.splitlines() if "internal-error" in line]
    assert "a.py:1:1: internal-error: BAD101 failed with " in line
    assert said in line
    assert line.endswith("this is a bug in `bad_rules`, which is no part of oomlint")
    assert "Traceback" not in answer.out


def test_the_server_says_what_is_broken(tmp_path: Path) -> None:
    plugin = package(tmp_path, "1 / 0")
    code = (
        "from pathlib import Path\n"
        "from oomlint.lsp.worker import Request, answer\n"
        "print(answer(Request(Path('a.py').absolute(), 'x = 1')).reason)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(plugin)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert "do not load (ZeroDivisionError" in done.stdout, done.stderr


def test_rules_of_a_package_with_modules_are_found(tmp_path: Path) -> None:
    plugin = package(tmp_path, "", "bad_pack")
    imports = "from oomlint.rules.oom101_eval_without_no_grad import EvalWithoutNoGrad\n"
    files = {"bad_pack/__init__.py": f"{imports}from bad_pack.one import R\n"}
    write(plugin, {**files, "bad_pack/one.py": RULE})
    said = spawn("rule", "BAD101", PYTHONPATH=str(plugin))
    assert (said.code, said.out.splitlines()[0]) == (0, "# some-defect (BAD101)")
