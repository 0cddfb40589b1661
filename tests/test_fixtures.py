"""Every fixture file, and what can be derived from it: marks, goldens, suppression, bytes."""

from __future__ import annotations

import ast
import codecs
import difflib
import io
import os
import re
import tokenize
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from fixture_files import CLEAN, FIXTURES, FixtureFile, all_files, alone, files_of, read_marks

from oomlint import registry
from oomlint.fixer import FixedText, fix_text
from oomlint.linter import FileResult, check_source
from oomlint.rule import Finding, Rule
from oomlint.settings import Layer, Settings, settings_for
from oomlint.source import Source, from_bytes

BLESS = os.environ.get("BLESS") == "1" and not os.environ.get("CI")

FILES = all_files()
FLAGGED = [file for file in FILES if file.hits]
RULES = [rule for rule in registry.all_rules() if rule.__module__.startswith("oomlint.rules.")]
HEADINGS = (
    "What it does",
    "Why is this bad?",
    "Known problems",
    "Example",
    "Options",
    "Fix safety",
    "Measured",
    "References",
)
OPTIONAL_HEADINGS = ("Known problems", "Options", "Fix safety")
EXAMPLES = re.compile(
    r"## Example\n```python\n(?P<bad>.*?)```\n\nUse instead:\n```python\n(?P<good>.*?)```\n",
    re.DOTALL,
)


def each(files: Iterable[FixtureFile]) -> pytest.MarkDecorator:
    """All tests of a file go to one worker, which checks and fixes it once for all of them."""
    group = pytest.mark.xdist_group
    rows = [pytest.param(file, id=file.name, marks=group(file.name)) for file in files]
    return pytest.mark.parametrize("file", rows)


each_file = each(FILES)
each_flagged = each(FLAGGED)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


def stem_of(rule: type[Rule]) -> str:
    return f"{rule.code.lower()}_{rule.name.replace('-', '_')}"


def every_rule(path: Path) -> Settings:
    """Every rule is on, also those that are off by default."""
    layers = (Layer("the test", select=("ALL",)),)
    return replace(settings_for(path), layers=layers, preview=True)


class Workshop:
    """A copy of all fixtures without their marks, each project apart from the others."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results: dict[str, FileResult] = {}
        self.fixes: dict[str, FixedText] = {}
        for file in FILES:
            copy = root / file.place
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.text, "utf-8", newline="")
            (root / file.project / "pyproject.toml").touch()

    def settings(self, file: FixtureFile) -> Settings:
        return every_rule(self.root / file.place)

    def source(self, file: FixtureFile, text: str) -> Source:
        return Source(self.root / file.place, text)

    def check(self, file: FixtureFile, text: str) -> FileResult:
        return check_source(self.source(file, text), self.settings(file))

    def fix(self, file: FixtureFile, text: str, found: FileResult | None = None) -> str:
        source = self.source(file, text)
        return fix_text(source, self.settings(file), unsafe=True, found=found).text

    def hits(self, file: FixtureFile) -> list[tuple[int, str]]:
        return hits(self.result(file))

    def result(self, file: FixtureFile) -> FileResult:
        if file.name not in self.results:
            self.results[file.name] = self.check(file, file.text)
        return self.results[file.name]

    def fixed(self, file: FixtureFile) -> FixedText:
        if file.name not in self.fixes:
            source = self.source(file, file.text)
            settings, found = self.settings(file), self.result(file)
            self.fixes[file.name] = fix_text(source, settings, unsafe=True, found=found)
        return self.fixes[file.name]


@pytest.fixture(scope="session")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("fixtures"))


def hits(result: FileResult) -> list[tuple[int, str]]:
    assert result.problem is None, result.problem
    return sorted((finding.row, finding.code) for finding in result.findings)


def changed(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "expected", "got", n=2)
    return "\n" + "\n".join(lines)


def mismatches(file: FixtureFile, findings: Iterable[Finding]) -> list[str]:
    """One line for each finding that no mark expects, and for each mark that nothing answers."""
    problems = []
    left = list(findings)
    for item in file.expected:
        match = next((f for f in left if (f.row, f.code) == (item.row, item.code)), None)
        where = f"{file.name}:{item.row}"
        if match is not None:
            left.remove(match)
        if item.known_miss:
            if match is not None:
                problems.append(f"{where}: {item.code} fires now; mark it `# expect:`")
            continue
        if match is None:
            problems.append(f"{where}: missing {item.code}")
        elif item.column not in (None, match.column):
            problems.append(f"{where}: {item.code} at column {match.column}, not {item.column}")
        elif item.message not in match.message:
            problems.append(f"{where}: {item.code} says '{match.message}', not '{item.message}'")
    problems += [f"{file.name}:{f.row}: unexpected {f.code}@{f.column} '{f.message}'" for f in left]
    return problems


@pytest.mark.parametrize(
    ("line", "clean", "expected"),
    [
        ("a = 1", "a = 1", []),
        ("a = 1  # expected: nothing", "a = 1  # expected: nothing", []),
        ("a = 1  # expect: OOM101", "a = 1", [(1, "OOM101", None, "", False)]),
        ("a = 1  # expect: OOM101@5", "a = 1", [(1, "OOM101", 5, "", False)]),
        ('a  # expect: OOM101@5 "b, c"', "a", [(1, "OOM101", 5, "b, c", False)]),
        ('a  # b  # expect: OOM101 "c"', "a  # b", [(1, "OOM101", None, "c", False)]),
        (
            "a  # expect: OOM101, OOM102@3",
            "a",
            [(1, "OOM101", None, "", False), (1, "OOM102", 3, "", False)],
        ),
        ("    # expect-next: OOM101", "", [(2, "OOM101", None, "", False)]),
        ("a  # todo-expect: OOM101", "a", [(1, "OOM101", None, "", True)]),
    ],
)
def test_marks(line: str, clean: str, expected: list[tuple[object, ...]]) -> None:
    text, found = read_marks(f"{line}\nb = 2\n")
    assert text == f"{clean}\nb = 2\n"
    assert [(e.row, e.code, e.column, e.message, e.known_miss) for e in found] == expected


@pytest.mark.parametrize(
    "line",
    [
        "a  # expect: oom101",
        "a  # expect OOM101",
        "a  # expect: OOM101 OOM102",
        "a  # expect: OOM101 and more",
        "a  # expect-next: OOM101",
        "a  #expect: OOM101",
        "a  # expect: OOM101 unquoted",
    ],
)
def test_malformed_marks(line: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        read_marks(line)


@each_file
def test_findings_are_exactly_those_marked(file: FixtureFile, workshop: Workshop) -> None:
    result = workshop.result(file)
    assert result.problem is None, result.problem
    problems = mismatches(file, result.findings)
    assert not problems, "\n".join(problems)


@each_file
def test_golden(file: FixtureFile, workshop: Workshop) -> None:
    fixed = workshop.fixed(file)
    assert not fixed.refused, fixed.refusals
    wanted = fixed.text if fixed.text != file.text else None
    if BLESS:
        if wanted is None:
            file.golden.unlink(missing_ok=True)
        else:
            file.golden.write_text(wanted, "utf-8", newline="")
    found = file.golden.read_text("utf-8") if file.golden.exists() else None
    assert (found is None) == (wanted is None), "write goldens with BLESS=1 and read the diff"
    if found is not None and wanted is not None:
        ast.parse(found)
        assert found == wanted, changed(found, wanted)


@each_flagged
def test_a_second_fix_changes_nothing(file: FixtureFile, workshop: Workshop) -> None:
    once = workshop.fixed(file).text
    twice = workshop.fix(file, once)
    assert twice == once, changed(once, twice)


@each_flagged
def test_what_had_a_fix_is_gone_and_nothing_new_is_found(
    file: FixtureFile, workshop: Workshop
) -> None:
    fixed = workshop.fixed(file)
    left = sorted((f.code, f.message) for f in fixed.result.findings)
    held = sorted((f.code, f.message) for f in workshop.result(file).findings if f.fix is None)
    assert left == held


@each_flagged
def test_noqa_silences(file: FixtureFile, workshop: Workshop) -> None:
    lines = file.text.split("\n")
    for row, code in workshop.hits(file):
        end = row - 1
        while lines[end].endswith("\\"):
            end += 1
        lines[end] += f"  # noqa: {code}"
    result = workshop.check(file, "\n".join(lines))
    assert (hits(result), result.warnings) == ([], ())


@each_flagged
def test_noqa_for_another_rule_silences_nothing(file: FixtureFile, workshop: Workshop) -> None:
    lines = file.text.split("\n")
    for row in sorted({row for row, _ in workshop.hits(file)}):
        if not lines[row - 1].endswith("\\"):
            lines[row - 1] += "  # noqa: OOM999"
    assert hits(workshop.check(file, "\n".join(lines))) == workshop.hits(file)


@each_file
def test_gate_never_hides_a_finding(file: FixtureFile, workshop: Workshop) -> None:
    source = workshop.source(file, file.text)
    ungated = check_source(source, workshop.settings(file), gate=False)
    assert ungated.findings == workshop.result(file).findings


@each_flagged
def test_gate_never_hides_a_finding_of_one_function_alone(
    file: FixtureFile, workshop: Workshop
) -> None:
    """A whole file has the words of all its functions; each finding must pass with its own."""
    for row in sorted({row for row, _ in workshop.hits(file)}):
        source = workshop.source(file, alone(file.text, row))
        ungated = check_source(source, workshop.settings(file), gate=False)
        assert check_source(source, workshop.settings(file)).findings == ungated.findings, row


@each_file
def test_windows_line_ends(file: FixtureFile, workshop: Workshop) -> None:
    text = file.text.replace("\n", "\r\n")
    result = workshop.check(file, text)
    assert hits(result) == workshop.hits(file)
    fixed = workshop.fix(file, text, result)
    assert fixed.count("\r\n") == fixed.count("\n") == fixed.count("\r")
    assert fixed.replace("\r\n", "\n") == workshop.fixed(file).text


@each_flagged
def test_byte_order_mark(file: FixtureFile, workshop: Workshop) -> None:
    data = codecs.BOM_UTF8 + file.text.encode()
    source, settings = from_bytes(workshop.root / file.place, data), workshop.settings(file)
    result = check_source(source, settings)
    assert hits(result) == workshop.hits(file)
    fixed = fix_text(source, settings, unsafe=True, found=result)
    assert source.encode(fixed.text) == codecs.BOM_UTF8 + workshop.fixed(file).text.encode()


@each_flagged
def test_indentation_by_tabs(file: FixtureFile, workshop: Workshop) -> None:
    text = tabbed(file.text)
    result = workshop.check(file, text)
    assert hits(result) == workshop.hits(file)
    fixed, wanted = workshop.fix(file, text, result), tabbed(workshop.fixed(file).text)
    assert fixed == wanted, changed(wanted, fixed)


def tabbed(text: str) -> str:
    """The text with a tab for every four leading blanks, strings that span lines left alone."""
    inside = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.STRING:
            inside.update(range(token.start[0] + 1, token.end[0] + 1))
    lines = text.split("\n")
    for index, line in enumerate(lines):
        if index + 1 not in inside:
            blanks = len(line) - len(line.lstrip(" "))
            lines[index] = "\t" * (blanks // 4) + " " * (blanks % 4) + line.lstrip(" ")
    return "\n".join(lines)


@each_flagged
def test_comments_survive_the_fix(file: FixtureFile, workshop: Workshop) -> None:
    """Only a statement that is removed for good takes its own comment along."""
    golden = workshop.fixed(file).text
    lines = file.text.split("\n")
    comments = []
    for row in sorted({row for row, _ in workshop.hits(file)}):
        if not lines[row - 1].endswith("\\"):
            comments.append(f"  # note {row} stays")
            lines[row - 1] += comments[-1]
    fixed = workshop.fix(file, "\n".join(lines))
    lost = [comment for comment in comments if comment not in fixed]
    assert len(lost) <= max(0, file.text.count("\n") - golden.count("\n")), lost
    for comment in comments:
        assert fixed.count(comment) <= 1
        fixed = fixed.replace(comment, "")
    assert fixed == golden, changed(golden, fixed)


def test_the_tree_in_place_says_the_same_as_each_project_alone(workshop: Workshop) -> None:
    found = {
        result.path.relative_to(FIXTURES).as_posix(): hits(result)
        for result in check_everything()
        if not result.path.name.endswith(".fixed.py")
    }
    assert found == {file.name: workshop.hits(file) for file in FILES}


def check_everything() -> Iterable[FileResult]:
    settings = every_rule(FIXTURES / "any.py")
    for file in FILES:
        yield check_source(Source(file.path, file.path.read_text("utf-8")), settings)


# what each folder must hold


@each_rule
def test_folder_of_a_rule(rule: type[Rule]) -> None:
    files = files_of(stem_of(rule))
    codes = {code for file in files for _, code in file.hits}
    assert codes == {rule.code}
    parts = cells if rule.of_cells else functions
    flagged = [n for file in files for n in parts(file) if is_flagged(file, n)]
    silent = [n for file in files for n in parts(file) if not is_flagged(file, n)]
    assert flagged
    assert len(silent) >= len(flagged)


@each_rule
def test_runnable_pair(rule: type[Rule], workshop: Workshop) -> None:
    script = next(file for file in files_of(stem_of(rule)) if file.path.name == "run.py")
    assert [code for _, code in script.hits] == [rule.code]
    repaired = script.golden if has_fixes(rule) else script.path.with_name("run.repaired.py")
    assert hits(workshop.check(script, repaired.read_text("utf-8"))) == []


def functions(file: FixtureFile) -> list[ast.stmt]:
    """Functions and methods that do something, those inside others not counted."""
    found: list[ast.stmt] = []
    waiting: list[ast.stmt] = list(ast.parse(file.text).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.ClassDef):
            waiting += node.body
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and size(node) > 2:
            found.append(node)
    return found


def cells(file: FixtureFile) -> list[ast.stmt]:
    """The last statement of each cell of a script."""
    starts = [row for row, line in enumerate(file.text.split("\n"), 1) if line.startswith("# %%")]
    last: dict[int, ast.stmt] = {}
    for node in ast.parse(file.text).body:
        last[sum(row <= node.lineno for row in starts)] = node
    return [node for cell, node in last.items() if cell]


def size(node: ast.stmt) -> int:
    return sum(isinstance(part, ast.stmt) for part in ast.walk(node))


def is_flagged(file: FixtureFile, node: ast.stmt) -> bool:
    return any(node.lineno <= row <= (node.end_lineno or 0) for row in file.flagged_rows)


def test_every_folder_belongs_to_a_rule() -> None:
    folders = {path.name for path in FIXTURES.iterdir() if path.is_dir()}
    # `claims` holds the programs of docs/claims.md, which tests of its own run.
    assert folders == {stem_of(rule) for rule in RULES} | {CLEAN, "claims"}


def test_clean_scripts_expect_nothing() -> None:
    assert len(files_of(CLEAN)) >= 3
    assert not [file.name for file in files_of(CLEAN) if file.expected]


def test_every_golden_has_its_fixture() -> None:
    goldens = set(FIXTURES.glob("*/**/*.fixed.py"))
    assert goldens <= {file.golden for file in FILES}


# what each rule's documentation must hold


@cache
def examples(rule: type[Rule]) -> tuple[str, str]:
    found = EXAMPLES.findall(rule.explanation())
    assert len(found) == 1, f"{rule.code}: one bad and one good example are needed"
    return found[0]


def has_fixes(rule: type[Rule]) -> bool:
    """As documented; that the documentation is right has a test of its own."""
    return "## Fix safety" in rule.explanation()


def check_example(rule: type[Rule], text: str, folder: Path) -> FileResult:
    (folder / "pyproject.toml").touch()
    return check_source(Source(folder / "example.py", text), every_rule(folder / "example.py"))


@each_rule
def test_name_and_file(rule: type[Rule]) -> None:
    assert re.fullmatch(r"[a-z]+(-[a-z0-9]+)+|[a-z]+[0-9]*(-[a-z]+)+", rule.name)
    assert rule.__module__ == f"oomlint.rules.{stem_of(rule)}"
    # A comment changes nothing that could be measured.
    assert rule.claims or rule.of_comments
    assert rule.tokens or (rule.of_comments and rule.texts)


@each_rule
def test_headings(rule: type[Rule]) -> None:
    found = re.findall(r"^## (.*)$", rule.explanation(), re.MULTILINE)
    assert found == [heading for heading in HEADINGS if heading in found]
    assert {*HEADINGS} - {*found} <= {*OPTIONAL_HEADINGS}


@each_rule
def test_bad_example_fires_and_the_good_one_does_not(rule: type[Rule], tmp_path: Path) -> None:
    bad, good = examples(rule)
    assert [code for _, code in hits(check_example(rule, bad, tmp_path))] == [rule.code]
    assert hits(check_example(rule, good, tmp_path)) == []


@each_rule
def test_the_fix_of_the_bad_example_is_the_good_one(rule: type[Rule], tmp_path: Path) -> None:
    bad, good = examples(rule)
    (tmp_path / "pyproject.toml").touch()
    source = Source(tmp_path / "example.py", bad)
    fixed = fix_text(source, every_rule(source.path), unsafe=True)
    wanted = good if has_fixes(rule) else bad
    assert fixed.text == wanted, changed(wanted, fixed.text)


@each_rule
def test_fix_safety_is_documented_where_there_are_fixes(
    rule: type[Rule], workshop: Workshop
) -> None:
    results = [workshop.result(file) for file in files_of(stem_of(rule))]
    fixes = [f.fix for result in results for f in result.findings if f.fix]
    text = rule.explanation()
    assert bool(fixes) == ("## Fix safety" in text)
    if fixes:
        section = " ".join(text.split("## Fix safety", 1)[1].split("\n## ", 1)[0].split())
        words = re.findall(r"(?:^|[.;] )(safe|unsafe)\b", section, re.IGNORECASE)
        assert {fix.safety.value for fix in fixes} == {word.lower() for word in words}
