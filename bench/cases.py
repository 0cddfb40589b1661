"""Holds oomlint against a folder of files whose comments say what must be found."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import re
import sys
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oomlint.rule import Rule

MARK = re.compile(r"#\s*(expect|also-ok):\s*([\w-]+)\s*@\s*lines?\s+(\d+)(?:\s*-\s*(\d+))?")
SILENT = re.compile(r"#\s*expect:\s*none\b")


@dataclass(frozen=True, slots=True)
class Spot:
    """A rule at a 1-based line; `last`, if set, ends a region where any line is a fair answer."""

    name: str
    line: int
    last: int = 0

    def covers(self, found: Spot) -> bool:
        return self.name == found.name and self.line <= found.line <= max(self.line, self.last)

    def __str__(self) -> str:
        return f"{self.name} @ line {self.line}" + (f"-{self.last}" if self.last else "")


@dataclass(frozen=True, slots=True)
class Case:
    """One file: what must be found in it and what may be."""

    path: Path
    expected: tuple[Spot, ...]
    allowed: tuple[Spot, ...]
    silent: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """How one tool did on one case."""

    found: tuple[Spot, ...]
    missing: tuple[Spot, ...]
    unexpected: tuple[Spot, ...]


def parse_case(path: Path, text: str) -> Case:
    expected: list[Spot] = []
    allowed: list[Spot] = []
    for match in MARK.finditer(text):
        spot = Spot(match[2], int(match[3]), int(match[4] or 0))
        (expected if match[1] == "expect" else allowed).append(spot)
    return Case(path, tuple(expected), tuple(allowed), SILENT.search(text) is not None)


def read_cases(folder: Path) -> tuple[Case, ...]:
    """Every marked file below the folder, in order."""
    cases = (parse_case(path, path.read_text("utf-8")) for path in sorted(folder.rglob("*.py")))
    return tuple(case for case in cases if case.expected or case.allowed or case.silent)


def judge(case: Case, found: Iterable[Spot], rules: Collection[str]) -> Judgement:
    """Compares findings with the marks; only expectations of the named rules can be missing.

    Two findings of one rule on one line count once.
    """
    spots = tuple(dict.fromkeys(found))
    wanted = tuple(spot for spot in case.expected if spot.name in rules)
    hit = tuple(one for one in wanted if any(one.covers(spot) for spot in spots))
    fair = (*case.expected, *case.allowed)
    return Judgement(
        found=hit,
        missing=tuple(one for one in wanted if one not in hit),
        unexpected=tuple(spot for spot in spots if not any(one.covers(spot) for one in fair)),
    )


def shipped_rules() -> list[type[Rule]]:
    """Every Rule class below oomlint.rules, by code."""
    from oomlint.rule import Rule

    for module in pkgutil.iter_modules(importlib.import_module("oomlint.rules").__path__):
        importlib.import_module(f"oomlint.rules.{module.name}")
    return [
        rule
        for _, rule in sorted(Rule.taken.items())
        if rule.__module__.startswith("oomlint.rules.")
    ]


def found_by_oomlint(path: Path, root: Path, rules: Sequence[type[Rule]]) -> list[Spot]:
    """Asks the analysis and the rules themselves: no gate, no settings, no suppressions."""
    from oomlint.analysis import analyse
    from oomlint.source import read

    model = analyse(read(path), root)
    return [Spot(found.name, found.row) for rule in rules for found in rule().check(model)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--rules", default="", help="names or codes to judge (default: all shipped)"
    )
    options = parser.parse_args()
    chosen = {word for word in options.rules.split(",") if word}
    rules = [
        rule for rule in shipped_rules() if not chosen or rule.name in chosen or rule.code in chosen
    ]
    names = {rule.name for rule in rules}
    cases = read_cases(options.folder)
    if not cases:
        print(f"error: {options.folder} holds no file with `# expect:` marks", file=sys.stderr)
        return 2
    expected = found = missing = unexpected = crashed = 0
    waiting: Counter[str] = Counter()
    for case in cases:
        waiting.update(spot.name for spot in case.expected if spot.name not in names)
        try:
            judgement = judge(case, found_by_oomlint(case.path, options.folder, rules), names)
        except Exception:
            crashed += 1
            print(f"{case.path.name}: crashed\n{traceback.format_exc()}")
            continue
        expected += sum(spot.name in names for spot in case.expected)
        found += len(judgement.found)
        missing += len(judgement.missing)
        unexpected += len(judgement.unexpected)
        for spot in judgement.missing:
            print(f"{case.path.name}:{spot.line}: missing    {spot.name}")
        for spot in judgement.unexpected:
            print(f"{case.path.name}:{spot.line}: unexpected {spot.name}")
    print(
        f"{len(cases)} files, {len(rules)} rules: {found} of {expected} expected found, "
        f"{missing} missing, {unexpected} unexpected, {crashed} crashed"
    )
    if waiting:
        listed = ", ".join(f"{name} ({count})" for name, count in sorted(waiting.items()))
        print(f"expected of rules that were not run: {listed}")
    return 1 if missing or unexpected or crashed else 0


if __name__ == "__main__":
    sys.exit(main())
