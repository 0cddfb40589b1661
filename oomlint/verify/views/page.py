"""Renders what was measured as one HTML page, complete in itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import oomlint
from oomlint.verify import Comparison, Measured, Report, budget_table
from oomlint.verify import table as text_table
from oomlint.verify.budget import budget_of
from oomlint.verify.compare import summarise
from oomlint.verify.measure import Measurement
from oomlint.verify.measure_table import rows as measure_rows
from oomlint.verify.measure_table import title as measure_title
from oomlint.verify.record import Run
from oomlint.verify.snapshot_table import rows as snapshot_rows
from oomlint.verify.verdict import CONFIRMED, NO_EFFECT, NOT_MEASURED, REFUTED
from oomlint.verify.views import charts, confidence, geometry, tables
from oomlint.verify.views.charts import Subject
from oomlint.verify.views.tables import StepTable, Table

VERDICTS = {CONFIRMED: "good", NO_EFFECT: "even", REFUTED: "bad", NOT_MEASURED: "open"}
T = TypeVar("T")
BEFORE, AFTER, ALONE = "before", "after", "alone"


@dataclass(frozen=True, slots=True)
class Section:
    """All that is shown of one comparison, or of one run."""

    anchor: str
    title: str
    verdict: str = ""
    css: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()  # what was found and how it is fixed
    diff: tuple[tuple[str, str], ...] = ()  # class and text of each line
    head: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    memory: tuple[geometry.Plot, ...] = ()
    tables: tuple[Table, ...] = ()
    gradients: tuple[geometry.Plot, ...] = ()
    steps: tuple[StepTable, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    confidence: str
    statements: tuple[str, ...]


def report_page(report: Report) -> str:
    """The page of `oomlint verify`: a section for every fix that was measured."""
    sections = [
        section_of(report, measured, f"fix-{number}")
        for number, measured in enumerate(report.results, 1)
    ]
    runs = [run for one in report.results if one.comparison for run in one.comparison.runs]
    return render(
        Page(
            title=f"{report.path.name}: what its fixes change",
            subtitle=text_table.title(report),
            sections=tuple(sections),
            confidence=confidence.stated(runs),
            statements=tuple(confidence.statements(runs) if runs else ()),
        )
    )


def measure_page(found: Measurement) -> str:
    """The page of `oomlint measure SCRIPT`."""
    section = Section(
        anchor="run",
        title="The run",
        head=("", "value"),
        rows=tuple(measure_rows(found)),
        **views_of([Subject("", ALONE, found.run)], whole=True),
    )
    title = f"{found.path.name}: what it holds"
    return single_page(title, measure_title(found), section, found.run, *budget_sections(found))


def budget_sections(found: Measurement) -> Iterable[Section]:
    budget = budget_of(found)
    if budget is None:
        return
    about = (budget_table.verdict(budget), budget_table.trained_with(budget))
    formulas = tuple(f"The formula of {source}." for source in budget.sources)
    yield Section(
        anchor="budget",
        title="The textbook's formula",
        notes=(*about, *formulas, *budget.remarks),
        head=("part", *budget_table.HEADS[1:]),
        rows=tuple(budget_table.rows(budget)),
    )


def snapshot_page(path: Path, run: Run) -> str:
    """The page of `oomlint measure SNAPSHOT.pickle`."""
    section = Section(
        anchor="run",
        title="The recording",
        notes=tuple(f"{warning}." for warning in run.warnings),
        head=("", "value"),
        rows=tuple(snapshot_rows(run)),
        **views_of([Subject("", ALONE, run)], whole=True),
    )
    return single_page(f"{path.name}: a memory snapshot", f"{path} of {run.device}", section, run)


def single_page(title: str, subtitle: str, section: Section, run: Run, *more: Section) -> str:
    statements = tuple(confidence.statements([run]))
    return render(Page(title, subtitle, (section, *more), confidence.stated([run]), statements))


def section_of(report: Report, measured: Measured, anchor: str) -> Section:
    found, verdict = measured.comparison, measured.verdict
    seen: dict[str, Any] = compared(found, verdict.optimizer) if found is not None else {}
    return Section(
        anchor=anchor,
        title=text_table.subject(report, measured),
        verdict=verdict.kind,
        css=VERDICTS[verdict.kind],
        reason=f"{verdict.reason}{text_table.with_losses(measured)}.",
        notes=tuple(notes(measured)),
        **seen,
    )


def notes(measured: Measured) -> Iterable[str]:
    for finding in measured.findings:
        yield f"Line {finding.row}: {finding.message}"
        if finding.fix is not None:
            yield f"Fix: {finding.fix.title}"


def compared(found: Comparison, optimizer: int | None) -> dict[str, Any]:
    moved = tables.moved_lines(found.file, found.texts)
    subjects = [
        Subject("before", BEFORE, found.before),
        Subject("after", AFTER, found.after, moved),
    ]
    rows = list(text_table.lines(*(summarise(run, optimizer) for run in found.runs)))
    counts = tuple(text_table.steps_of(run) for run in found.runs)
    return {
        "diff": tuple(diff_lines(found.diff)),
        "head": ("", "before", "after"),
        "rows": (("run for", *counts), *rows),
        **views_of(subjects, whole=False),
    }


def views_of(subjects: Sequence[Subject], *, whole: bool) -> dict[str, Any]:
    """Charts and tables; what was not measured is left out."""
    memory = [*charts.timelines(subjects), charts.growth(subjects)]
    found = [
        tables.growth_by_line(subjects),
        tables.peak_by_kind(subjects, whole),
        tables.peak_by_line(subjects, whole),
    ]
    return {
        "memory": present(memory),
        "tables": present(found),
        "gradients": present([charts.norms(subjects)]),
        "steps": present([tables.steps(subject) for subject in subjects]),
    }


def present(values: Sequence[T | None]) -> tuple[T, ...]:
    return tuple(value for value in values if value is not None)


def diff_lines(diff: str) -> Iterable[tuple[str, str]]:
    """Every line of a unified diff without its newline, and the class that it gets."""
    classes = {"+": "added", "-": "removed", "@": "hunk"}
    for number, line in enumerate(diff.splitlines()):
        head = number < 2 and line.startswith(("---", "+++"))
        yield "hunk" if head else classes.get(line[:1], "same"), line


def picture(found: Comparison) -> str:
    """The memory over time of both runs, as one image of SVG."""
    subjects = [Subject("before", BEFORE, found.before), Subject("after", AFTER, found.after)]
    return drawn("picture.svg.jinja", plots=charts.timelines(subjects))


def render(page: Page) -> str:
    return drawn("page.html.jinja", page=page, version=oomlint.__version__)


def drawn(template: str, **values: object) -> str:
    """Everything that comes from runs and sources is escaped by the template's engine."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("oomlint.verify", "views"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    frame = {
        name: getattr(geometry, name)
        for name in ("WIDTH", "HEIGHT", "LEFT", "RIGHT", "TOP", "BOTTOM")
    }
    return environment.get_template(template).render(frame=frame, **values)
