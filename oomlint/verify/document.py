"""The record of what was measured as one JSON document; docs/record.md describes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import oomlint
from oomlint.verify import Measured, Report, budget_table
from oomlint.verify.attribution import Growth, growing, peak_span
from oomlint.verify.budget import budget_of
from oomlint.verify.compare import summarise
from oomlint.verify.holdings import OTHER, confidence
from oomlint.verify.ledger import Held, Span
from oomlint.verify.measure import TO_THE_END, Measurement
from oomlint.verify.record import Run, plain

# It rises when a field goes away or comes to mean something else; new fields may come at any time.
FORMAT_VERSION = 1
SCHEMA = Path(__file__).with_name("record.schema.json")
MOST_ROWS = 40
REST = "(other lines)"


def document(report: Report) -> dict[str, Any]:
    """What `oomlint verify` measured: verdicts, and the runs before and after each fix."""
    return {
        **head("verify", report.path),
        "target": asdict(report.target),
        "limits": asdict(report.limits),
        "results": [result_document(measured) for measured in report.results],
    }


def measure_document(found: Measurement) -> dict[str, Any]:
    """What `oomlint measure` measured: one run of a script."""
    limits, budget = asdict(found.limits), budget_of(found)
    if limits["steps"] == TO_THE_END:
        limits["steps"] = None
    return {
        **head("measure", found.path),
        "arguments": list(found.argv),
        "limits": limits,
        "confidence": confidence(found.held),
        "budget": budget_table.document(budget) if budget is not None else None,
        "run": run_document(found.run, whole=True),
    }


def snapshot_document(path: Path, run: Run) -> dict[str, Any]:
    """What a recording of torch.cuda.memory holds."""
    return {**head("snapshot", path), "run": run_document(run, whole=True)}


def head(kind: str, path: Path) -> dict[str, Any]:
    return {
        "version": FORMAT_VERSION,
        "kind": kind,
        "oomlint": oomlint.__version__,
        "filename": str(path),
    }


def result_document(measured: Measured) -> dict[str, Any]:
    found, verdict = measured.comparison, measured.verdict
    losses = found.losses if found else None
    return {
        "findings": [
            {
                "code": item.code,
                "name": item.name,
                "message": item.message,
                "location": {"row": item.row, "column": item.column},
                "fix": item.fix.title if item.fix else None,
            }
            for item in measured.findings
        ],
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "claim": verdict.claim.value if verdict.claim else None,
        "optimizer": verdict.optimizer,
        "losses": {"equal": losses.equal, **asdict(losses)} if losses else None,
        "diff": found.diff if found else None,
        "before": run_document(found.before, verdict.optimizer) if found else None,
        "after": run_document(found.after, verdict.optimizer) if found else None,
    }


def run_document(run: Run, optimizer: int | None = None, *, whole: bool = False) -> dict[str, Any]:
    """`optimizer` is the ordinal of the one that the summary is about, the main one if None.

    With `whole`, the peak is that of the whole run, else that of the steps after the warm-up.
    """
    values = asdict(run)
    del values["spans"], values["lines"]
    values["memory"] = memory_document(run, whole) if run.spans else None
    values["summary"] = asdict(summarise(run, optimizer))
    values = plain(values)
    assert isinstance(values, dict)
    return values


def memory_document(run: Run, whole: bool) -> dict[str, Any]:
    peak = peak_span(run, whole=whole)
    return {
        "timeline": [timeline_document(span) for span in run.spans],
        "peak": peak_document(peak, run) if peak else None,
        "growth": [growth_document(growth, run) for growth in growing(run)[:MOST_ROWS]],
    }


def timeline_document(span: Span) -> dict[str, Any]:
    return {
        "step": span.step,
        "events": span.events,
        "allocated": span.allocated,
        "reserved": span.reserved,
    }


def peak_document(span: Span, run: Run) -> dict[str, Any]:
    return {
        "step": span.step,
        "position": round(span.position, 4),
        "bytes": span.peak,
        "alive": [
            {
                "line": held.line,
                "text": run.lines.get(held.line, ""),
                "kind": held.kind,
                "bytes": held.bytes,
                "blocks": held.blocks,
            }
            for held in shortened(span.at_peak)
        ],
    }


def growth_document(growth: Growth, run: Run) -> dict[str, Any]:
    return {
        "line": growth.line,
        "text": run.lines.get(growth.line, ""),
        "kind": growth.kind,
        "bytes_per_step": growth.bytes_per_step,
        "held": growth.held,
    }


def shortened(rows: Iterable[Held]) -> list[Held]:
    """The largest rows and the sum of all others."""
    first, rest = list(rows)[:MOST_ROWS], list(rows)[MOST_ROWS:]
    if not rest:
        return first
    total = sum(one.bytes for one in rest)
    return [*first, Held(REST, OTHER, total, sum(one.blocks for one in rest))]
