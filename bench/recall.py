"""The page of what became of planted faults: shares of each operator, and the survivors."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mutations import Operator


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one planted fault."""

    operator: Operator
    file: str
    row: int
    where: str
    found: bool
    text: str
    # Of a survivor: what the model says of the place.
    reason: str = ""


def table(results: Sequence[Outcome], operators: Sequence[Operator]) -> list[str]:
    lines = ["| operator | rule | what | planted | found | share |", "|---|---|---|---:|---:|---:|"]
    for operator in operators:
        own = [one for one in results if one.operator.name == operator.name]
        found = sum(one.found for one in own)
        share = f"{found / len(own):.0%}" if own else "-"
        lines.append(
            f"| {operator.name} | {operator.code} | {operator.what} | {len(own)} | {found} "
            f"| {share} |"
        )
    found = sum(one.found for one in results)
    share = f"{found / len(results):.1%}" if results else "-"
    return [*lines, f"| all | | | {len(results)} | {found} | {share} |"]


def mean_share(results: Sequence[Outcome]) -> str:
    """The mean of the operators' shares, in which each operator weighs the same."""
    planted, found = Counter(), Counter()  # type: Counter[str], Counter[str]
    for one in results:
        planted[one.operator.name] += 1
        found[one.operator.name] += one.found
    shares = [found[name] / planted[name] for name in planted]
    return f"{sum(shares) / len(shares):.1%}" if shares else "-"


def survivors(results: Sequence[Outcome]) -> list[str]:
    return [
        f"| {one.operator.name} | {one.file} | {one.row} | {one.where or 'module'} "
        f"| {one.reason.replace('|', '/')} |"
        for one in results
        if not one.found
    ]


def page(results: Sequence[Outcome], operators: Sequence[Operator], how: Sequence[str]) -> str:
    today = datetime.date.today().isoformat()
    head = [
        f"# Recall by planted faults, {today}",
        "",
        *how,
        "",
        *table(results, operators),
        "",
        "## Survivors",
        "",
        "| operator | file | line | function | reason |",
        "|---|---|---:|---|---|",
        *survivors(results),
        "",
    ]
    return "\n".join(head)
