"""The page of a measurement: complete in itself, escaped, readable on a phone and in the dark."""

from __future__ import annotations

import html
import json
import math
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")
pytest.importorskip("jinja2")

from oomlint.rule import Finding, Fix, Safety, Severity
from oomlint.verify import Comparison, Measured, Report
from oomlint.verify.holdings import ACTIVATION, PARAMETER, Holdings
from oomlint.verify.ledger import Held, Span
from oomlint.verify.measure import Measurement
from oomlint.verify.record import OPTIMIZER, STOPPED, Ending, Run, Step
from oomlint.verify.runner import Limits
from oomlint.verify.targets import Target
from oomlint.verify.verdict import CONFIRMED, NOT_MEASURED, Verdict
from oomlint.verify.views import charts, geometry, tables
from oomlint.verify.views.charts import Subject
from oomlint.verify.views.page import measure_page, picture, report_page

MIB = 1024**2
ATTACK = "<script>alert('x')</script>"
VOID = {"meta", "br", "hr", "img", "input", "link"}
BEFORE = "import torch\n\nfor step in range(9):\n    kept.append(loss)\n"
AFTER = "import torch\n\nlimit = 9\nfor step in range(9):\n    kept.append(loss.detach())\n"
STYLE = (Path(tables.__file__).parent / "style.css").read_text("utf-8")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


def step(number: int, allocated: int, norm: float | None) -> Step:
    return Step(
        unit=OPTIMIZER,
        extent=0,
        optimizer=0,
        requested=allocated,
        requested_peak=2 * allocated,
        allocated=allocated,
        allocated_peak=2 * allocated,
        reserved=64 * MIB,
        live_tensors=3,
        nodes=number,
        host=0,
        seconds=0.1,
        gradient_norm=norm,
        loss=1 / number,
    )


def run_of(growth: int, norms: tuple[float | None, ...], file: str, row: int) -> Run:
    """Steps that hold 8 MiB of parameters and `growth` bytes more each, made at `file:row`."""
    spans, steps = [], []
    for number, norm in enumerate(norms, 1):
        kept = Held(f"{file}:{row}", ACTIVATION, growth * number, number)
        weight = Held(f"{file}:1", PARAMETER, 8 * MIB, 1)
        held = (weight, kept) if growth else (weight,)
        total = sum(one.bytes for one in held)
        steps.append(step(number, total, norm))
        curve = (8 * MIB, 2 * total, total)
        spans.append(Span(number, 30, curve, (64 * MIB,) * 3, 2 * total, 0.5, held, held))
    setup = Span(0, 4, (0, 8 * MIB), (20 * MIB,) * 2, 8 * MIB, 0.9, (), ())
    return Run(
        "emulated",
        "2.13",
        OPTIMIZER,
        tuple(steps),
        Ending(STOPPED),
        holdings=Holdings(1, 2, 3, 4, 5, doubts=(f"what {ATTACK} takes is not modelled",)),
        spans=(setup, *spans),
        lines={f"{file}:{row}": f"kept.append({ATTACK})", f"{file}:1": "import torch"},
    )


def finding(row: int, message: str) -> Finding:
    fix = Fix(f"Keep `{ATTACK}`", (), Safety.SAFE)
    return Finding(
        "OOM103", "retained-output", message, Severity.WARNING, 0, 1, row, 5, row, 6, fix
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    file = str(tmp_path_factory.mktemp("views") / "train.py")
    before = run_of(MIB, (0.5, 1.0, 0.25, None, 0.5, 2.0), file, 4)
    after = run_of(0, (0.5, 1.0, 0.25, None, 0.5, 2.0), file, 5)
    comparison = Comparison(before, after, Verdict(CONFIRMED, ATTACK), file, (BEFORE, AFTER))
    results = (
        Measured((finding(4, ATTACK),), comparison.verdict, comparison),
        Measured((finding(1, "other"),), Verdict(NOT_MEASURED, "there is no fix to measure")),
    )
    return Report(Path(file), Target(file, file), Limits(), results)


@pytest.fixture(scope="module")
def page(report: Report) -> str:
    return report_page(report)


class Outline(HTMLParser):
    """Elements with their attributes and paths; raises where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def words(self, tag: str) -> list[str]:
        return [text for around, text in self.texts if around == tag]


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing(page: str) -> None:
    outline = Outline(page)
    tags = {tag for tag, _ in outline.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "image", "use", "foreignobject"}
    for tag, attributes in outline.elements:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert attributes.get("href", "#").startswith("#")
        assert "src" not in attributes
    assert "url(" not in page
    assert "@import" not in page
    (policy,) = (a["content"] for _, a in outline.elements if "http-equiv" in a)
    assert "default-src 'none'" in policy


def test_what_comes_from_code_is_escaped_everywhere(page: str) -> None:
    assert ATTACK not in page
    assert page.count(html.escape(ATTACK).replace("&#x27;", "&#39;")) >= 5


def test_every_chart_has_a_title_words_and_axes_with_units(page: str) -> None:
    outline = Outline(page)
    images = [a for tag, a in outline.elements if tag == "svg" and a.get("role") == "img"]
    assert len(images) == 4
    ids = [a["id"] for _, a in outline.elements if "id" in a]
    assert len(ids) == len(set(ids))
    for image in images:
        assert set(image["aria-labelledby"].split()) <= set(ids)
    assert outline.words("figcaption") == [
        "Memory over time, before",
        "Memory over time, after",
        "Growth from step to step",
        "Gradient norm at each step",
    ]
    labels = outline.words("text")
    assert labels.count("optimizer steps") == 4
    assert labels.count("bytes on the device") == 2
    assert "bytes more than after step 1" in labels
    assert "L2 norm, as the optimizer uses it" in labels
    assert {"0 MiB", "20 MiB", "60 MiB"} <= set(labels)
    assert "Allocated bytes peak at 28.00 MiB in step 6; up to 64.00 MiB are reserved." in page


def test_tables_say_who_they_are_and_the_verdict_is_in_words(page: str) -> None:
    outline = Outline(page)
    assert all("scope" in a for tag, a in outline.elements if tag == "th")
    assert outline.words("caption") == [
        "Summary",
        "What piles up from step to step, by line",
        "Alive at the peak of the steps, by kind",
        "Alive at the peak of the steps, by line",
    ]
    assert ("span", "confirmed") in outline.texts
    assert ("span", "not measured") in outline.texts
    assert "Confidence in the sizes:" in page
    assert "nor is what NCCL takes" in page


def test_lines_of_both_texts_meet_in_one_row(report: Report) -> None:
    moved = tables.moved_lines("/x/train.py", (BEFORE, AFTER))
    assert moved == {
        "/x/train.py:1": "/x/train.py:1",
        "/x/train.py:2": "/x/train.py:2",
        "/x/train.py:3": "/x/train.py:3 after the fix",
        "/x/train.py:4": "/x/train.py:3",
        "/x/train.py:5": "/x/train.py:4",
    }
    run = run_of(MIB, (1.0,) * 6, "/x/train.py", 4)
    later = run_of(MIB, (1.0,) * 6, "/x/train.py", 5)
    subjects = [Subject("before", "before", run), Subject("after", "after", later, moved)]
    found = tables.peak_by_line(subjects, whole=False)
    assert found is not None
    assert [(row.line, *(cell.text for cell in row.cells)) for row in found.rows] == [
        ("/x/train.py:1", "8.00 MiB", "8.00 MiB"),
        ("/x/train.py:4", "6.00 MiB", "6.00 MiB"),
    ]


def test_a_run_without_memory_or_norms_has_a_page_without_charts(report: Report) -> None:
    bare = replace(run_of(0, (1.0,), "a.py", 1), spans=(), steps=(), lines={})
    (first, _) = report.results
    assert first.comparison is not None
    comparison = replace(first.comparison, before=bare, after=bare)
    text = report_page(replace(report, results=(replace(first, comparison=comparison),)))
    assert "<figure" not in text
    Outline(text)
    assert "No findings, so there is nothing to measure." in report_page(
        replace(report, results=())
    )


def test_a_single_run_is_shown_whole() -> None:
    run = run_of(MIB, (1.0, math.inf, math.nan, 1e-6, 10.0), "a.py", 4)
    limits = Limits(device="emulated")
    text = measure_page(Measurement(Path("a.py"), ("--fast",), limits, run))
    outline = Outline(text)
    assert "Memory over time" in outline.words("figcaption")
    assert "L2 norm, as the optimizer uses it (logarithmic)" in outline.words("text")
    assert "1e-06" in outline.words("text")
    assert "before" not in {a.get("class") for _, a in outline.elements}


def test_the_picture_of_a_comparison_is_an_image_by_itself(report: Report) -> None:
    (first, _) = report.results
    assert first.comparison is not None
    drawing = picture(first.comparison)
    root = ElementTree.fromstring(drawing)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "g", "text", "path", "circle"}
    shown = (Path(__file__).parent.parent / "docs" / "report.svg").read_text("utf-8")
    assert ElementTree.fromstring(shown).attrib["viewBox"] == root.attrib["viewBox"]


def numbers(path: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]


@pytest.mark.parametrize("count", [1, 2, 7, 300])
def test_charts_stay_inside_their_frame(count: int) -> None:
    run = run_of(MIB, tuple(1.0 + n % 3 for n in range(count)), "a.py", 4)
    subjects = [Subject("", "alone", run)]
    plots = [*charts.timelines(subjects), charts.growth(subjects), charts.norms(subjects)]
    for plot in filter(None, plots):
        for line in plot.lines:
            xs, ys = numbers(line.path)[::2], numbers(line.path)[1::2]
            assert geometry.LEFT <= min(xs) <= max(xs) <= geometry.WIDTH - geometry.RIGHT
            assert geometry.TOP <= min(ys) <= max(ys) <= geometry.HEIGHT - geometry.BOTTOM
            assert xs == sorted(xs)
        assert len(plot.x_ticks) <= 2 * charts.LABELS
        assert len(plot.y_ticks) <= 7


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 88 * MIB, ["0 MiB", "20 MiB", "40 MiB", "60 MiB", "80 MiB"]),
        (0, 1000, ["0 B", "200 B", "400 B", "600 B", "800 B", "1000 B"]),
        (-3 * MIB, 2 * MIB, ["-3 MiB", "-2 MiB", "-1 MiB", "0 MiB", "1 MiB", "2 MiB"]),
        (0, 1.5 * 1024**3, ["0 GiB", "0.5 GiB", "1 GiB", "1.5 GiB"]),
    ],
)
def test_ticks_of_bytes_are_round_in_their_unit(low: float, high: float, texts: list[str]) -> None:
    found = geometry.byte_ticks(low, high, geometry.vertical(low, high))
    assert [tick.text for tick in found] == texts


def colours(scheme: str) -> dict[str, str]:
    light, _, dark = STYLE.partition("prefers-color-scheme: dark")
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light if scheme == "light" else dark))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(scheme: str) -> None:
    found = colours(scheme)
    for ink in ("ink", "soft", "link", "good", "even", "bad", "open"):
        assert contrast(found[ink], found["page"]) >= 4.5, ink
    for ground in ("panel", "added", "removed"):
        assert contrast(found["ink"], found[ground]) >= 4.5, ground
    assert contrast(found["soft"], found["panel"]) >= 4.5
    for curve in ("before", "after", "alone", "reserved"):
        assert contrast(found[curve], found["page"]) >= 3, curve


# Looks at the page in a frame of a phone's width, with scripts off inside of it.
PROBE = """
<!DOCTYPE html><meta charset="utf-8"><body>
<iframe id="f" sandbox="allow-same-origin" width="WIDTH" height="900" style="border:0"></iframe>
<script>
const frame = document.getElementById("f");
frame.onload = () => {
  const inner = frame.contentDocument, root = inner.documentElement;
  const boxes = [...inner.querySelectorAll("svg.chart text")].map(t => t.getBoundingClientRect());
  document.title = "seen:" + JSON.stringify({
    over: root.scrollWidth - root.clientWidth,
    background: getComputedStyle(inner.body).backgroundColor,
    smallest: Math.min(...boxes.map(b => b.height)),
    left: Math.min(...boxes.map(b => b.left)),
    right: Math.max(...boxes.map(b => b.right)),
    charts: inner.querySelectorAll("svg.chart").length,
  });
};
frame.srcdoc = PAGE;
</script>
"""


def seen(page: str, width: int, folder: Path) -> dict[str, Any]:
    assert CHROMIUM is not None
    probe = folder / "probe.html"
    inlined = json.dumps(page).replace("</", "<\\/")
    probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", inlined), "utf-8")
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-background-networking --dump-dom"
        " --virtual-time-budget=5000 --blink-settings=preferredColorScheme=0"
    )
    done = subprocess.run(
        [CHROMIUM, *flags.split(), f"--user-data-dir={folder / 'profile'}", probe.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r"<title>seen:(.*?)</title>", done.stdout)
    assert found is not None, done.stderr[-500:]
    return dict(json.loads(html.unescape(found[1])))


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_phone_in_the_dark_shows_it_without_scripts(page: str, tmp_path: Path) -> None:
    width = 360
    found = seen(page, width, tmp_path)
    assert found["charts"] == 4
    assert found["over"] == 0  # nothing is wider than the screen
    assert found["smallest"] >= 9  # pixels, of a line of text
    assert 0 <= found["left"] <= found["right"] <= width
    ground = colours("dark")["page"]
    parts = ", ".join(str(int(ground[place : place + 2], 16)) for place in (1, 3, 5))
    assert found["background"] == f"rgb({parts})"
