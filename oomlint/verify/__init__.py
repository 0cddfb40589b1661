"""Measures what a fix changes: runs code before and after it on the same seeds and compares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from oomlint.rule import Claim, Finding, Fix
    from oomlint.settings import Settings
    from oomlint.source import Source
    from oomlint.verify.instrument import Region
    from oomlint.verify.losses import Losses
    from oomlint.verify.record import Run
    from oomlint.verify.runner import Limits, StandIns
    from oomlint.verify.targets import Target
    from oomlint.verify.verdict import Verdict

__all__ = ["Comparison", "Measured", "Report", "compare_texts", "verify_file"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs of one script and the verdict on what the fix claims."""

    before: Run
    after: Run
    verdict: Verdict
    file: str = ""  # that was fixed
    texts: tuple[str, str] = ("", "")  # of it, as they ran

    @property
    def diff(self) -> str:
        """What the fix changes, as a unified diff."""
        from oomlint.reports.diff import unified

        return "".join(unified(Path(self.file).name, *self.texts))

    @property
    def losses(self) -> Losses | None:
        """Whether losses, or else outputs, stay the same; None where neither was seen twice."""
        from oomlint.verify.losses import compare_losses

        return compare_losses(self.before, self.after)

    @property
    def runs(self) -> tuple[Run, Run]:
        return self.before, self.after


@dataclass(frozen=True, slots=True)
class Measured:
    """Findings of which the same texts were run: one, or all of a file with --together.

    `comparison` is None where nothing could be run; `verdict` then says why.
    """

    findings: tuple[Finding, ...]
    verdict: Verdict
    comparison: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """All that was measured of one file, and what was run for it."""

    path: Path
    target: Target
    limits: Limits
    results: tuple[Measured, ...]


@dataclass(slots=True)
class Bench:
    """Runs texts of one target's file; the same text in the same region runs once."""

    target: Target
    limits: Limits
    quiet_stdout: bool = False
    watch: Callable[[str], None] | None = None
    find: Callable[[], StandIns] | None = None
    stand_ins: StandIns | None = None
    done: dict[tuple[str, Region | None, bool, int], Run] = field(default_factory=dict)

    def run(
        self, text: str, region: Region | None, iterations: bool, what: str, later: int = 0
    ) -> Run:
        """Runs a text from the seed that is asked for, or from a later one."""
        key = (text, region, iterations, later)
        if key not in self.done:
            run = self.run_once(text, region, iterations, what, later)
            if run.ending.error == LACKING and self.find is not None and self.stand_ins is None:
                self.stand_ins = self.find()
                run = self.run_once(text, region, iterations, what, later)
            self.done[key] = run
        return self.done[key]

    def run_once(
        self, text: str, region: Region | None, iterations: bool, what: str, later: int
    ) -> Run:
        from oomlint.verify.runner import run_target

        if self.watch is not None:
            self.watch(what)
        with TemporaryDirectory(prefix="oomlint-") as folder:
            return run_target(
                self.target,
                text,
                region,
                replace(self.limits, seed=self.limits.seed + later),
                Path(folder),
                iterations=iterations,
                quiet_stdout=self.quiet_stdout,
                stand_ins=self.stand_ins,
            )

    def compare(
        self, before: str, after: str, claims: tuple[Claim, ...], region: Region | None, what: str
    ) -> Comparison:
        """Runs two texts and judges; a claim about time is denied only by a second measurement."""
        from oomlint.rule import Claim
        from oomlint.verify.verdict import NO_EFFECT

        found = self.compare_once(before, after, claims, region, what)
        if Claim.STEP_FASTER in claims and found.verdict.kind == NO_EFFECT:
            # A machine that was busy in one of the runs may have hidden the difference.
            for key in [key for key in self.done if key[0] in (before, after)]:
                del self.done[key]
            return self.compare_once(before, after, claims, region, f"{what} once more")
        return found

    def compare_once(
        self, before: str, after: str, claims: tuple[Claim, ...], region: Region | None, what: str
    ) -> Comparison:
        from oomlint.errors import OomlintError
        from oomlint.rule import Claim
        from oomlint.verify.claims import ANY_LOOP, ANYWHERE
        from oomlint.verify.compare import compare
        from oomlint.verify.record import UNUSABLE

        if {Claim.WORKER_BYTES_FALL, Claim.RUNS_AGREE}.intersection(claims):
            region = None  # the finding is in a dataset or a setup, whatever the steps are
        # An error ends steps and iterations alike: what else is claimed decides.
        others = [claim for claim in claims if claim is not Claim.ERROR_GONE] or claims
        iterations = bool(ANY_LOOP.intersection(others))
        runs = []
        for text, when in ((before, "before"), (after, "after")):
            run = self.run(text, region, iterations, f"{what} {when} the fix")
            if run.ending.kind == UNUSABLE:
                raise OomlintError(run.ending.message)
            if Claim.RUNS_AGREE in claims:
                again = self.run(text, region, iterations, f"{what} {when} the fix, again", 1)
                run = replace(run, other=again.steps)
            runs.append(run)
        if region is not None and ANYWHERE.issuperset(claims) and not any(r.steps for r in runs):
            return self.compare_once(
                before, after, claims, None, what
            )  # only workers run the region
        verdict = compare(runs[0], runs[1], claims)
        return Comparison(runs[0], runs[1], verdict, str(self.target.file), (before, after))


def compare_texts(
    before: Path,
    after: Path,
    claims: tuple[Claim, ...],
    *,
    row: int | None = None,
    argv: tuple[str, ...] = (),
    limits: Limits | None = None,
) -> Comparison:
    """Runs two files as the same script and judges the claims.

    `row` is the 1-based row of the finding in `before`; it decides which loop's iterations are
    steps where no optimizer steps. Both texts run under the name and in the folder of `before`.
    Raises OSError when a file cannot be read, OomlintError when nothing can be run at all.
    """
    from oomlint.verify.instrument import region_at
    from oomlint.verify.runner import Limits
    from oomlint.verify.targets import script

    texts = [path.read_text("utf-8") for path in (before, after)]
    region = region_at(texts[0], row) if row is not None else None
    bench = Bench(script(before, argv), limits or Limits())
    return bench.compare(texts[0], texts[1], claims, region, before.name)


def verify_file(
    path: Path,
    settings: Settings,
    *,
    target: Target | None = None,
    argv: tuple[str, ...] = (),
    limits: Limits | None = None,
    only: tuple[str, ...] = (),
    lines: tuple[int, ...] = (),
    together: bool = False,
    quiet_stdout: bool = False,
    watch: Callable[[str], None] | None = None,
) -> Report:
    """Measures the fix of every finding in a file, or all of them at once.

    What runs is the file as a script with `argv`, or the `target` that uses the file; of a
    function only the findings in what it reaches are measured. `only` holds codes, `lines` 1-based
    rows; empty, they exclude nothing. `watch` is told what is being run. With `quiet_stdout` what
    the script prints goes to standard error. Raises OomlintError.
    """
    from oomlint.verify.runner import Limits
    from oomlint.verify.targets import rows_reached, script

    limits, target = limits or Limits(), target or script(path, argv)
    source, findings = findings_of(path, settings)
    findings = tuple(item for item in findings if not only or item.code in only)
    if target.function:
        rows = rows_reached(source.text, target.function)
        findings = tuple(item for item in findings if item.row in rows)
    chosen = tuple(item for item in findings if not lines or item.row in lines)
    bench = Bench(target, limits, quiet_stdout, watch)
    if target.function and chosen:
        bench.find = lambda: stood_in_for(bench, source, chosen, settings.root)
    if together and chosen:
        return Report(path, target, limits, (measure_together(bench, source.text, chosen),))
    results = tuple(measure_one(bench, source.text, item, findings) for item in chosen)
    return Report(path, target, limits, results)


# The ending of a run whose function is given too little.
LACKING = "Lacking"


def stood_in_for(
    bench: Bench, source: Source, findings: tuple[Finding, ...], root: Path
) -> StandIns:
    """What the function runs with, before the fixes or else after them. Raises OomlintError."""
    from oomlint.errors import OomlintError
    from oomlint.fixer import apply_edits
    from oomlint.verify import plan
    from oomlint.verify.record import UNUSABLE
    from oomlint.verify.runner import StandIns, find_guess

    if bench.watch is not None:
        bench.watch(f"{bench.target.name} with stand-ins")
    path, name = Path(bench.target.file), bench.target.function
    rows = tuple(item.row for item in findings)
    planned = plan.as_entry(plan.plan_for(path, source.text, name, root, rows))
    with TemporaryDirectory(prefix="oomlint-") as folder:
        guess, ending = find_guess(bench.target, source.text, planned, bench.limits, Path(folder))
    if guess is None and ending.kind == UNUSABLE:
        after, _ = apply_edits(source.text, fixes_of(findings))
        with TemporaryDirectory(prefix="oomlint-") as folder:
            guess, _ = find_guess(bench.target, after, planned, bench.limits, Path(folder))
    if guess is None:
        said = ending.message
        if ending.kind != UNUSABLE:
            said = f"{bench.target.name} cannot be called: with stand-ins it {said}"
        raise OomlintError(said)
    return StandIns(planned, guess)


def findings_of(path: Path, settings: Settings) -> tuple[Source, tuple[Finding, ...]]:
    from oomlint.errors import OomlintError
    from oomlint.linter import check_source
    from oomlint.source import Unreadable, read

    try:
        source = read(path)
    except Unreadable as error:
        raise OomlintError(f"{path}: {error}") from None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise OomlintError(f"{path}: cannot be read: {reason}") from None
    result = check_source(replace(source, path=path.absolute()), settings)
    if result.problem is not None:
        row = f":{result.problem.row}" if result.problem.row else ""
        raise OomlintError(f"{path}{row}: {result.problem.message}")
    return source, result.findings


def claims_of(findings: tuple[Finding, ...]) -> tuple[Claim, ...]:
    from oomlint.registry import find_rule

    claims = [claim for item in findings for claim in find_rule(item.code).claims]
    return tuple(dict.fromkeys(claims))


def measure_one(
    bench: Bench, text: str, finding: Finding, findings: tuple[Finding, ...]
) -> Measured:
    """One fix by itself; on top of the other fixes where these hide what it does.

    They do where the script raises without them, and where another finding keeps the same graph.
    """
    from oomlint.fixer import apply_edits
    from oomlint.verify.instrument import region_at
    from oomlint.verify.record import RAISED
    from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, Verdict

    if finding.fix is None:
        return Measured((finding,), Verdict(NOT_MEASURED, "there is no fix to measure"))
    region = region_at(text, finding.row)
    claims = claims_of((finding,))
    after, _ = apply_edits(text, [finding.fix])
    found = bench.compare(text, after, claims, region, finding.code)
    others = fixes_of(item for item in findings if item.fix != finding.fix)
    broken = RAISED in (found.before.ending.kind, found.after.ending.kind)
    hidden = found.verdict.kind == NO_EFFECT
    if others and (hidden or (found.verdict.kind == NOT_MEASURED and broken)):
        base, _ = apply_edits(text, others)
        whole, _ = apply_edits(text, [*others, finding.fix])
        again = bench.compare(base, whole, claims, region, f"{finding.code}, the others fixed,")
        if again.verdict.kind == CONFIRMED or (broken and again.verdict.kind != NOT_MEASURED):
            why = "it raises without" if broken else "another finding hides it without"
            reason = f"{again.verdict.reason} (with the other fixes made, for {why})"
            found = replace(again, verdict=replace(again.verdict, reason=reason))
    return measured((finding,), found)


def measured(findings: tuple[Finding, ...], found: Comparison) -> Measured:
    """A fix that is called safe must leave the losses as they are, whatever else it does."""
    from oomlint.rule import Safety
    from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, REFUTED

    verdict, losses = found.verdict, found.losses
    safe = all(item.fix is None or item.fix.safety is Safety.SAFE for item in findings)
    if losses is None or losses.equal or not safe:
        return Measured(findings, verdict, found)
    if verdict.kind in (CONFIRMED, NO_EFFECT):
        reason = f"the {losses.what} {losses}, and the fix is called safe ({verdict.reason})"
        verdict = replace(verdict, kind=REFUTED, reason=reason)
    return Measured(findings, verdict, found)


def measure_together(bench: Bench, text: str, findings: tuple[Finding, ...]) -> Measured:
    from oomlint.fixer import apply_edits
    from oomlint.verify.instrument import region_at
    from oomlint.verify.verdict import NOT_MEASURED, Verdict

    fixes = fixes_of(findings)
    if not fixes:
        return Measured(findings, Verdict(NOT_MEASURED, "there is no fix to measure"))
    after, _ = apply_edits(text, fixes)
    regions = [region_at(text, item.row) for item in findings if item.fix is not None]
    region = regions[0] if len(set(regions)) == 1 else None
    found = bench.compare(text, after, claims_of(findings), region, "all findings")
    return measured(findings, found)


def fixes_of(findings: Iterable[Finding]) -> list[Fix]:
    return [item.fix for item in findings if item.fix is not None]
