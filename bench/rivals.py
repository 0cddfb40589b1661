"""Counts what oomlint and its rivals find in the same marked cases, and their false alarms."""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cases import Case, Spot, read_cases
from corpus import CorpusError
from tools import RIVALS, beside_python, check_json, rival

RESULTS = Path(__file__).resolve().parent / "results"

# What each rival's rule claims, in the names of our catalogue; a rule that claims any of several
# counts as right for each of them. Rules about other subjects claim nothing and are not counted.
CLAIMS: Mapping[str, tuple[str, ...]] = {
    "TG001": ("retained-loss", "retained-output"),
    "TG002": ("eval-without-no-grad",),
    "TG003": ("missing-zero-grad", "misplaced-zero-grad"),
    "TG004": ("starved-loader",),
    "TG005": ("softmax-before-loss",),
    "TG006": ("bce-activation-mismatch",),
    "TG007": ("sync-in-hot-loop",),
    "TG008": ("unseeded-run",),
    "TG011": ("eval-mode-not-restored",),
    "TG012": ("missing-distributed-sampler",),
    "TG013": ("host-copy-every-iteration",),
    "TG014": ("unscaled-accumulation",),
    "TOR003": ("reentrant-checkpoint",),
    "TOR401": ("starved-loader",),
}
# Advice, off by default in oomlint: never a false alarm of a rival either.
ADVICE = frozenset({"starved-loader", "unseeded-run"})
TORCHFIX_LINE = re.compile(r"^(?P<path>.+?):(?P<line>\d+):\d+: (?P<code>TOR\d+) ")


@dataclass(frozen=True, slots=True)
class Claimed:
    """One report of a tool: any of `names`, at a 1-based line."""

    names: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Score:
    """One tool over all cases."""

    tool: str
    expected: int
    on_the_line: int
    in_the_file: int
    false_alarms: tuple[tuple[str, Claimed], ...]


Reports = Mapping[str, Sequence[Claimed]]


def matches(spot: Spot, report: Claimed, by_line: bool) -> bool:
    """Whether a report answers a mark; `by_line` asks for the right place as well."""
    if spot.name not in report.names:
        return False
    return not by_line or spot.covers(Spot(spot.name, report.line))


def score(tool: str, cases: Iterable[Case], reports: Reports, names: frozenset[str]) -> Score:
    """Counts the marks of the named rules that were found, and reports that no mark allows.

    A report that names the right rule anywhere in a file is no false alarm: generous to all alike.
    """
    expected = on_the_line = in_the_file = 0
    alarms: list[tuple[str, Claimed]] = []
    for case in cases:
        given = reports.get(case.path.name, ())
        wanted = [spot for spot in case.expected if spot.name in names]
        expected += len(wanted)
        on_the_line += sum(any(matches(spot, one, True) for one in given) for spot in wanted)
        in_the_file += sum(any(matches(spot, one, False) for one in given) for spot in wanted)
        fair = (*case.expected, *case.allowed)
        alarms += [
            (case.path.name, report)
            for report in given
            if not ADVICE.issuperset(report.names)
            and not any(matches(spot, report, False) for spot in fair)
        ]
    return Score(tool, expected, on_the_line, in_the_file, tuple(alarms))


def grouped(rows: Iterable[tuple[str, str, int]]) -> Reports:
    """Rows of path, rule and line by file name; rules that claim nothing of ours are left out."""
    reports: dict[str, list[Claimed]] = {}
    for path, code, line in rows:
        if code in CLAIMS:
            reports.setdefault(Path(path).name, []).append(Claimed(CLAIMS[code], line))
    return reports


def ask_torch_preflight(folder: Path) -> Reports:
    command = [rival("torch-preflight"), "check", "-f", "json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    rows = json.loads(done.stdout)["diagnostics"]
    return grouped((row["path"], row["code"], row["line"]) for row in rows)


def ask_torchfix(folder: Path) -> Reports:
    command = [rival("torchfix"), "--select", "ALL", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    found = (TORCHFIX_LINE.match(line) for line in done.stdout.splitlines())
    return grouped((one["path"], one["code"], int(one["line"])) for one in found if one)


def ask_oomlint(folder: Path) -> Reports:
    reports: dict[str, list[Claimed]] = {}
    for row in check_json(folder)[0]:
        claim = Claimed((row["name"],), row["location"]["row"])
        reports.setdefault(Path(row["filename"]).name, []).append(claim)
    return reports


def page(cases: Sequence[Case], scores: Sequence[Score], shared: Sequence[Score]) -> str:
    """The table that is kept in results/, of which README.md tells."""
    silent = sum(case.silent for case in cases)
    lines = [
        f"# oomlint and its rivals, {datetime.date.today().isoformat()}",
        f"{', '.join(RIVALS)}; {len(cases)} marked files after public reports of such faults, which"
        f" are no part of this repository; {silent} of them are right and must stay silent.",
        "A finding on the marked line counts as found there, one of the right kind anywhere in the"
        " file as found in the file. *Shared* counts faults for which a rival has a rule, too."
        " oomlint was developed with these files at hand, its rivals were not.",
        "\n".join(
            [
                "| tool | faults | found on the line | in the file | shared, in the file"
                " | false alarms |",
                "|---|--:|--:|--:|--:|--:|",
                *(
                    f"| {whole.tool} | {whole.expected} | {whole.on_the_line}"
                    f" | {whole.in_the_file} | {part.in_the_file} of {part.expected}"
                    f" | {len(whole.false_alarms)} |"
                    for whole, part in zip(scores, shared, strict=True)
                ),
            ]
        ),
        f"`python bench/rivals.py FOLDER --write` on Python {platform.python_version()}.",
    ]
    return "\n\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-oomlint", action="store_true")
    parser.add_argument("--write", action="store_true", help="keep the table in results/")
    options = parser.parse_args()
    cases = read_cases(options.folder)
    names = frozenset(spot.name for case in cases for spot in case.expected)
    own = frozenset(name for claimed in CLAIMS.values() for name in claimed)
    asked = [("torch-preflight", ask_torch_preflight), ("torchfix", ask_torchfix)]
    if not options.without_oomlint:
        beside_python("oomlint")
        asked.insert(0, ("oomlint", ask_oomlint))
    print(f"{len(cases)} files; 'theirs' counts the marks of rules that a rival has too")
    print(f"{'tool':16} {'expected':>8} {'on line':>8} {'in file':>8} {'theirs':>12} {'false':>6}")
    scores, parts = [], []
    for tool, ask in asked:
        reports = ask(options.folder)
        total, shared = (score(tool, cases, reports, of) for of in (names, names & own))
        scores.append(total)
        parts.append(shared)
        theirs = f"{shared.in_the_file}/{shared.expected}"
        print(
            f"{tool:16} {total.expected:8} {total.on_the_line:8} {total.in_the_file:8} "
            f"{theirs:>12} {len(total.false_alarms):6}"
        )
        for name, report in total.false_alarms:
            print(f"    false alarm  {name}:{report.line}  {' or '.join(report.names)}")
    if options.write:
        name = f"rivals-{datetime.date.today().isoformat()}.md"
        (RESULTS / name).write_text(page(cases, scores, parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
