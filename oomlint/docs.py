"""Keeps the table of rules in README.md: `python -m oomlint.docs` writes, `--check` compares."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from oomlint import registry
from oomlint.rule import Rule

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- rules:begin -->", "<!-- rules:end -->"


def table(rules: Iterable[type[Rule]]) -> str:
    """The rules as a Markdown table; each code leads to the file that documents it."""
    lines = ["| Code | Name | Severity | What it does |", "|---|---|---|---|"]
    for rule in rules:
        link = f"[{rule.code}](rules/{rule.__module__.rpartition('.')[2]}.py)"
        remarks = (" (preview)" if rule.preview else "") + ("" if rule.default else " (off)")
        summary = rule.summary().replace("|", "\\|")
        lines.append(f"| {link} | `{rule.name}`{remarks} | {rule.severity.value} | {summary} |")
    return "\n".join(lines)


def with_table(text: str, rules: Iterable[type[Rule]]) -> str:
    """The text with the table between its markers. Raises ValueError when a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n{table(rules)}\n{END}{after}"


def own_rules() -> list[type[Rule]]:
    return [rule for rule in registry.all_rules() if rule.__module__.startswith("oomlint.rules.")]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oomlint.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if outdated")
    wanted = parser.parse_args()
    text = README.read_text(encoding="utf-8")
    fresh = with_table(text, own_rules())
    if fresh == text:
        return 0
    if wanted.check:
        print(
            "README.md: the table of rules is outdated; run `python -m oomlint.docs`",
            file=sys.stderr,
        )
        return 1
    README.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
