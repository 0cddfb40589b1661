"""The page that compares the emulated device with CUDA: errors, what misses, differences."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import accuracy
from accuracy import PAGE, Row
from accuracy_programs import PROGRAMS, Program
from accuracy_scripts import SCRIPTS

MEASURES = ("requested", "allocated", "reserved")


def row(name: str, real: int, emulated: int, than: str | None = None) -> Row:
    program = Program(name, "mlp", than=than)
    return Row(program, dict.fromkeys(MEASURES, real), dict.fromkeys(MEASURES, emulated))


@pytest.mark.parametrize(
    ("error", "limit", "text"),
    [(0.004, 0.005, "+0.40%"), (-0.006, 0.005, "**-0.60%**"), (0.0, 0.01, "+0.00%")],
)
def test_what_misses_its_limit_is_bold(error: float, limit: float, text: str) -> None:
    assert accuracy.marked(error, limit) == text


def test_the_error_of_a_difference_is_a_share_of_the_true_one() -> None:
    rows = [row("before", 1000, 1000), row("after", 500, 510, than="before")]
    ((before, after, error),) = accuracy.pairs(rows)
    assert (before.program.name, after.program.name) == ("before", "after")
    assert error == pytest.approx(-0.02)
    assert "| before → after | -0.00 | -0.00 | **-2.00%** |" in accuracy.page(rows)


def test_a_program_without_its_counterpart_makes_no_pair() -> None:
    assert accuracy.pairs([row("after", 500, 510, than="before")]) == []


def test_the_kept_page_has_every_program() -> None:
    text = PAGE.read_text("utf-8")
    assert text.startswith(accuracy.INTRODUCTION)
    table = [line.split(" | ")[0].removeprefix("| ") for line in text.splitlines() if "|" in line]
    known = [program.name for program in (*PROGRAMS, *SCRIPTS)]
    assert [name for name in table if name in known] == known


def test_scripts_are_python_that_defines_a_step() -> None:
    for script in SCRIPTS:
        tree = ast.parse(script.source())
        assert "step" in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_pairs_name_programs_that_exist() -> None:
    programs = (*PROGRAMS, *SCRIPTS)
    names = {program.name for program in programs}
    assert len(names) == len(programs)
    assert {program.than for program in programs} - {None} <= names
