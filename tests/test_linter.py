"""One file's check: the gate is sound, results are ordered, and every way of asking agrees."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from shell import write

from oomlint import registry
from oomlint.files import find_files
from oomlint.gate import Gate
from oomlint.linter import FileResult, check_bytes, check_source
from oomlint.rule import Rule
from oomlint.settings import Settings, SettingsFinder, settings_for
from oomlint.source import Source
from oomlint.tree import Group, TreeResult, check_paths, chunks, fix_safe

TEXTS = (
    "",
    "x = 1\n",
    "kept += a\nb = wrong\n",
    "b = wrong; kept += a\nkept += c\n",
    "kept += a  # noqa\nwrong\n",
    "use_it\n",
    "def f(:\n",
)


def check(folder: Path, text: str, **options: bool) -> FileResult:
    path = folder / "a.py"
    return check_source(Source(path, text), settings_for(path), **options)


def tree(folder: Path, **options: object) -> TreeResult:
    finder = SettingsFinder()
    return check_paths(find_files([str(folder)], finder).files, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", TEXTS)
def test_gate_changes_no_answer(project: Path, text: str) -> None:
    with_gate, without = check(project, text, gate=True), check(project, text, gate=False)
    assert with_gate.findings == without.findings
    assert with_gate.problem == without.problem


@pytest.mark.parametrize("text", TEXTS)
def test_text_bytes_and_tree_agree(project: Path, text: str) -> None:
    write(project, {"a.py": text})
    settings = settings_for(project / "a.py")
    one = check(project, text)
    assert check_bytes(project / "a.py", text.encode(), settings) == one
    several = tree(project, use_cache=False).results
    assert several == ((one,) if one.findings or one.problem else ())


def test_findings_are_in_order(project: Path) -> None:
    found = check(project, "b = wrong; kept += a\nkept += c\n").findings
    assert [(f.row, f.column, f.code) for f in found] == [
        (1, 5, "FAK102"),
        (1, 12, "FAK101"),
        (2, 1, "FAK101"),
    ]


def test_inserted_lines_end_as_the_file_does(project: Path) -> None:
    (finding,) = check(project, "use_it\r\n").findings
    assert finding.fix is not None
    assert finding.fix.edits[0].content == "import tool\r\n"


@pytest.fixture
def any_rule() -> Iterator[type[Rule]]:
    class AnyRule(Rule):
        """Needs one word of each of two groups."""

        code, name, claims = "ZZZ999", "any-rule", ()
        tokens = (("alpha", "beta"), ("gamma",))

    yield AnyRule
    Rule.taken.pop("ZZZ999")


@pytest.mark.parametrize(
    ("data", "is_open"),
    [
        (b"", False),
        (b"alpha", False),
        (b"gamma", False),
        (b"alpha gamma", True),
        (b"gammabeta", True),
        (b"alpha  # gamma", False),
        (b"alpha; 'gamma'", False),
        (b"alpha; s = '''\n'''; gamma", True),
        (b"alpha; s = '#'; gamma", True),
        (b"alpha; s = r'\\\\'; gamma", True),
        (b"# coding: utf-8\nalpha", False),
        (b"# coding: latin-1\nalpha", False),
        (b"# -*- coding: utf-7 -*-\nalpha", True),
        (b"# coding: utf_16\nalpha", True),
    ],
)
def test_gate(any_rule: type[Rule], data: bytes, is_open: bool) -> None:
    assert Gate((any_rule,)).open_rules(data) == ((any_rule,) if is_open else ())


@pytest.mark.parametrize(
    ("data", "is_open"),
    [
        (b"alpha(gamma)", True),
        (b"alpha gamma", False),
        (b"alpha gamma  # alpha(gamma)", False),
        (b"alpha(beta, gamma)", False),
        (b"# coding: utf-16\nalpha", True),
    ],
)
def test_a_pattern_narrows_the_gate(any_rule: type[Rule], data: bytes, is_open: bool) -> None:
    any_rule.token_pattern = re.compile(rb"alpha\(gamma")
    assert Gate((any_rule,)).open_rules(data) == ((any_rule,) if is_open else ())


def test_rules_are_found_sorted_and_once(project: Path) -> None:
    codes = [rule.code for rule in registry.all_rules()]
    assert codes == sorted(set(codes))
    assert {"FAK101", "FAK901"} <= set(codes)
    assert registry.find_rule("kept-value") is registry.find_rule("FAK101")


def test_big_trees_are_parsed_only_where_a_rule_can_fire(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project, {"a.py": "def f(:\n", "b.py": "kept += (\n", "c.py": "kept += a\n"})

    def broken(limit: int) -> list[str]:
        monkeypatch.setattr("oomlint.tree.SYNTAX_FILES", limit)
        return [result.path.name for result in tree(project).results if result.problem]

    assert broken(2) == ["b.py"]
    assert broken(3) == ["a.py", "b.py"], "what was taken on trust is not taken from the cache"
    assert broken(2) == ["a.py", "b.py"], "what is known of it stays known"


@pytest.mark.parametrize(("sizes", "first", "last"), [((300, 5, 700), 24, 1), ((30, 20), 24, 20)])
def test_the_last_chunks_of_a_large_tree_are_small(
    sizes: tuple[int, ...], first: int, last: int
) -> None:
    settings = Settings(Path(), Path())
    groups = [
        Group(settings, [], missing=tuple(f"{size}-{at}" for at in range(size))) for size in sizes
    ]
    found = [chunk.paths for chunk in chunks(groups, fix_safe)]
    assert sum(found, ()) == sum((group.missing for group in groups), ())
    assert (len(found[0]), len(found[-1])) == (first, last)
