"""The last lines of a report, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oomlint.keys import FAIL_ON
from oomlint.linter import FileResult
from oomlint.reports.report import Report
from oomlint.reports.style import paint
from oomlint.rule import Finding, Safety, Severity
from oomlint.settings import Settings

if TYPE_CHECKING:
    from oomlint.cli.options import Options


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found and did; `results` is what remains after fixing."""

    results: tuple[FileResult, ...] = ()
    # Fixed findings by file.
    fixed: tuple[tuple[Path, tuple[Finding, ...]], ...] = ()
    # Whether `--diff` had anything to show.
    differs: bool = False
    # Findings that a baseline holds, which are not among the results.
    known: int = 0

    @property
    def remaining(self) -> list[Finding]:
        return [finding for result in self.results for finding in result.findings]

    @property
    def problems(self) -> int:
        return sum(result.problem is not None for result in self.results)

    @property
    def fixed_count(self) -> int:
        return sum(len(findings) for _, findings in self.fixed)


def exit_code(outcome: Outcome, options: Options, settings: Settings) -> int:
    """0 clean, 1 findings at or above `fail-on` or files that could not be checked, 2 own error."""
    kinds = {result.problem.kind for result in outcome.results if result.problem}
    if "internal-error" in kinds:
        return 2
    if options.exit_zero:
        return 0
    if options.diff:
        return int(outcome.differs)
    if options.exit_non_zero_on_fix and outcome.fixed_count:
        return 1
    if options.fix_only:
        return 0
    failing = FAIL_ON[: FAIL_ON.index(settings.fail_on) + 1]
    return int(bool(kinds) or any(f.severity.value in failing for f in outcome.remaining))


def summary_lines(outcome: Outcome, options: Options, report: Report) -> Iterator[str]:
    if options.show_fixes and outcome.fixed:
        yield from fixed_lines(outcome, report)
    if options.fix_only:
        return
    if options.statistics:
        return
    if outcome.known:
        yield f"{counted(outcome.known, 'known finding')} not shown."
    remaining = len(outcome.remaining) + outcome.problems
    if not remaining:
        fixed = outcome.fixed_count
        yield (
            f"Found {counted(fixed, 'problem')} ({fixed} fixed, 0 remaining)."
            if fixed
            else ("All checks passed!")
        )
        return
    yield found_line(outcome, remaining)
    if options.fix:
        yield from held_back_lines(outcome, report)
    else:
        yield from fixable_lines(outcome, report)


def found_line(outcome: Outcome, remaining: int) -> str:
    fixed = outcome.fixed_count
    if fixed:
        total = counted(fixed + remaining, "problem")
        return f"Found {total} ({fixed} fixed, {remaining} remaining)."
    counts = Counter(finding.severity for finding in outcome.remaining)
    parts = [counted(counts[s], s.value) for s in Severity if counts[s]]
    if outcome.problems:
        parts.append(f"{counted(outcome.problems, 'file')} not checked")
    return f"Found {counted(remaining, 'problem')}: {', '.join(parts)}."


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 or noun == "advice" else f"{number} {noun}s"


def fixable_lines(outcome: Outcome, report: Report) -> Iterator[str]:
    fixes = [finding.fix for finding in outcome.remaining if finding.fix is not None]
    now = sum(report.applies(fix) for fix in fixes)
    later = len(fixes) - now
    option = "--fix --unsafe-fixes" if report.unsafe else "--fix"
    more = "`--fix --unsafe-fixes`"
    mark = paint("[*]", report.color, fg="cyan")
    if now and later:
        yield f"{mark} {now} fixable with `{option}`; {later} more with {more} (training changes)."
    elif now:
        yield f"{mark} {now} fixable with `{option}`."
    elif later:
        yield f"{later} fixable with {more} (training changes)."


def held_back_lines(outcome: Outcome, report: Report) -> Iterator[str]:
    """The corrections that `--fix` alone does not make, each by place and title."""
    held = [
        (result, finding)
        for result in outcome.results
        for finding in result.findings
        if finding.fix is not None
        and finding.fix.safety is Safety.UNSAFE
        and not report.applies(finding.fix)
    ]
    if not held:
        return
    yield (
        f"Held back {counted(len(held), 'correction')} that"
        f" {'changes' if len(held) == 1 else 'change'} what the training computes;"
        " apply with `--fix --unsafe-fixes`:"
    )
    for result, finding in held:
        place = f"{report.show(result.path)}:{report.place(result.path, finding.row)}"
        title = finding.fix.title if finding.fix else ""
        yield f"  {place}: {finding.code} {title}"


def fixed_lines(outcome: Outcome, report: Report) -> Iterator[str]:
    yield f"Fixed {counted(outcome.fixed_count, 'problem')}:"
    for path, findings in outcome.fixed:
        yield f"- {report.show(path)}:"
        counts = Counter((finding.code, finding.name) for finding in findings)
        for (code, name), count in sorted(counts.items()):
            yield f"    {count} x {code} ({name})"
    yield ""
