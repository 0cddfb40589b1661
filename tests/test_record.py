"""The record of a run: what it says of memory is true, and its JSON is what the schema says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema")
pytest.importorskip("torch")

import jsonschema
import torch
from record_schema import VALIDATOR, undescribed

from oomlint.settings import SettingsFinder
from oomlint.verify import Report, verify_file
from oomlint.verify.compare import Summary
from oomlint.verify.document import document, measure_document, snapshot_document
from oomlint.verify.holdings import KINDS, Holdings
from oomlint.verify.ledger import Held
from oomlint.verify.losses import Losses
from oomlint.verify.measure import Gauge
from oomlint.verify.record import Ending, Run, Step, load, span_line
from oomlint.verify.runner import Limits
from oomlint.verify.targets import Target

MIB = 1024**2
# Every parameter, activation and kept tensor has 1 MiB.
LEAK = """\
import torch

model = torch.nn.Linear(512, 512, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
kept = []
for step in range(9):
    batch = torch.ones(512, 512).cuda()
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    kept.append(model(batch).mean())
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    script = tmp_path_factory.mktemp("leak") / "leak.py"
    script.write_text(LEAK)
    settings = SettingsFinder(isolated=True).for_file(script)
    return verify_file(script, settings, limits=Limits(device="emulated"))


@pytest.fixture(scope="module")
def before(report: Report) -> Run:
    (result,) = report.results
    assert result.comparison is not None
    return result.comparison.before


def row(line: str) -> int:
    return int(line.rpartition(":")[2])


def test_spans_and_steps_agree(before: Run) -> None:
    spans = {span.step: span for span in before.spans if span.step}
    assert sorted(spans) == list(range(1, len(before.steps) + 1))
    for number, step in enumerate(before.steps, 1):
        span = spans[number]
        assert span.peak == max(span.allocated) == step.allocated_peak
        assert sum(held.bytes for held in span.at_peak) == step.allocated_peak
        assert sum(held.bytes for held in span.at_end) == step.allocated
        assert span.reserved[-1] == step.reserved
        assert 0 <= span.position < 1


def test_bytes_at_the_end_of_a_step_by_line_and_kind(before: Run) -> None:
    last = {(row(held.line), held.kind): held for held in before.spans[-1].at_end if held.line}
    assert last[3, "parameter"].bytes == MIB
    assert last[9, "gradient"].bytes == MIB
    assert last[10, "optimizer state"].bytes == MIB
    # The graph of what is kept holds the batches; the model's weight is a parameter anyway.
    assert last[7, "input"].bytes == len(before.steps) * MIB
    assert last[11, "activation"].blocks == len(before.steps) - 1
    assert {held.kind for held in last.values()} <= set(KINDS)


def test_the_record_names_the_lines_that_pile_up(report: Report) -> None:
    (result,) = document(report)["results"]
    growth = {row(item["line"]): item for item in result["before"]["memory"]["growth"]}
    assert growth[7]["bytes_per_step"] == MIB
    assert growth[7]["text"] == "batch = torch.ones(512, 512).cuda()"
    assert 7 not in {row(item["line"]) for item in result["after"]["memory"]["growth"]}
    assert result["diff"].count("\n+") == 2


def documents(report: Report, folder: Path) -> Iterator[dict[str, Any]]:
    yield document(report)
    script = folder / "train.py"
    script.write_text(LEAK.replace("range(9)", "range(2)"))
    yield measure_document(Gauge(script, (), Limits(device="emulated")).measure("it"))
    (result,) = report.results
    assert result.comparison is not None
    yield snapshot_document(script, result.comparison.after)
    broken = folder / "broken.py"
    broken.write_text("import torch\nraise ValueError(torch.inf)\n")
    yield measure_document(Gauge(broken, (), Limits(device="emulated")).measure("it"))


def test_documents_are_what_the_schema_says_and_every_field_is_described(
    report: Report, tmp_path: Path
) -> None:
    VALIDATOR.check_schema(VALIDATOR.schema)
    for found in documents(report, tmp_path):
        text = json.dumps(found, allow_nan=False)
        VALIDATOR.validate(json.loads(text))
        assert not list(undescribed(json.loads(text), VALIDATOR.schema))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("step", Step),
        ("ending", Ending),
        ("limits", Limits),
        ("target", Target),
        ("holdings", Holdings),
        ("summary", Summary),
        ("losses", Losses),
        ("alive", Held),
    ],
)
def test_the_schema_describes_what_there_is(name: str, kind: Any) -> None:
    described = set(VALIDATOR.schema["$defs"][name]["properties"])
    assert {field.name for field in fields(kind)} == described - {"equal", "text"}


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"kind": "other"},
        {"results": None},
        {"results": [{"verdict": "confirmed"}]},
    ],
)
def test_the_schema_refuses_what_is_none(report: Report, change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate({**document(report), **change})


def test_spans_survive_the_journal(before: Run, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    lines = [span_line(span, {"a.py:1": "x = 1"}) for span in before.spans]
    journal.write_text("\n".join(lines) + "\n")
    head, steps, ending = load(journal)
    assert (tuple(head["spans"]), steps, ending) == (before.spans, (), None)
    assert head["lines"] == {"a.py:1": "x = 1"}


def test_parameters_are_known_where_the_first_step_never_comes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"def main():\n    {LEAK.replace(chr(10), chr(10) + '    ')}\nmain()\n")
    limits = Limits(device="emulated", capacity=4 * MIB)
    found = Gauge(script, (), limits).measure("it")
    assert found.run.ending.error == "OutOfMemoryError"
    assert {share.name: share.size for share in found.held.kinds}["parameter"] == MIB


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_real_device_the_history_agrees_with_the_allocator(tmp_path: Path) -> None:
    script = tmp_path / "leak.py"
    script.write_text(LEAK)
    run = Gauge(script, (), Limits(device="cuda")).measure("it").run
    spans = {span.step: span for span in run.spans if span.step}
    for number, step in enumerate(run.steps, 1):
        assert abs(spans[number].peak - step.allocated_peak) <= 8 * MIB
        assert abs(sum(h.bytes for h in spans[number].at_end) - step.allocated) <= 8 * MIB
    assert {"parameter", "gradient"} <= {held.kind for held in run.spans[-1].at_end}
