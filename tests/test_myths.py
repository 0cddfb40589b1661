"""The myths of docs/myths.md: each is refuted again, and the page is made of the figures kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import figures
import myths
from figures import Figure, Outcome, measured

KEPT = myths.PAGE.figures()


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    pytest.importorskip("torch")
    return {one.name: one for one in measured(myths.__file__, myths.MYTHS, "emulated")}


@pytest.mark.xdist_group("myths")
@pytest.mark.parametrize("name", myths.MYTHS)
def test_the_claim_is_refuted_when_it_is_run(name: str, outcomes: dict[str, Outcome]) -> None:
    assert not outcomes[name].error
    said = [figure.what for figure in KEPT if (figure.name, figure.device) == (name, "emulated")]
    assert [figure.what for figure in outcomes[name].figures] == said


def test_the_page_is_made_of_the_figures() -> None:
    outdated = "run `python bench/myths.py --write`"
    assert myths.PAGE.page.read_text("utf-8") == myths.page(KEPT), outdated


@pytest.mark.parametrize("chosen", myths.MYTHS.values(), ids=myths.MYTHS)
def test_a_myth_has_a_claim_and_a_truth(chosen: myths.Myth) -> None:
    assert len(figures.paragraphs(chosen.measure.__doc__)) == 2
    assert chosen.claim.endswith(".")
    assert chosen.truth.endswith(".")


def test_a_claim_that_holds_is_no_myth(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = Path(myths.__file__).read_text("utf-8")
    held = tmp_path / "myths.py"
    held.write_text(script.replace("assert growth(ends) == 0", "assert growth(ends) > 0"))
    (tmp_path / "figures.py").write_text(Path(figures.__file__).read_text("utf-8"))
    (outcome,) = measured(held, ["missing_zero_grad"], "emulated")
    assert (outcome.name, outcome.figures) == ("missing_zero_grad", ())
    assert outcome.error.rstrip().splitlines()[-1].startswith("AssertionError")


def test_a_process_that_dies_is_no_refutation(tmp_path: Path) -> None:
    silent = tmp_path / "silent.py"
    silent.write_text("raise SystemExit(1)\n")
    assert list(measured(silent, ["a"], "cuda")) == [
        Outcome("a", (), "its process ended without a word")
    ]


def test_newer_figures_replace_older_ones_of_the_same_device() -> None:
    def of(name: str, device: str, value: str) -> Figure:
        return Figure(name, device, "2.0", "bytes", value)

    old = [
        of("lambda_lr_leaks", "cuda", "a"),
        of("lambda_lr_leaks", "emulated", "b"),
        of("no_longer_told", "emulated", "c"),
    ]
    kept = figures.merged(old, [of("lambda_lr_leaks", "emulated", "d")], myths.MYTHS)
    assert [figure.value for figure in kept] == ["a", "d"]
    in_order = figures.read_figures(figures.format_figures(kept, myths.MYTHS))
    assert [figure.value for figure in in_order] == ["d", "a"]


def test_a_figure_survives_its_table() -> None:
    kept = [
        Figure("b", "cuda", "2.0", "bytes", "1", "about 2", "no"),
        Figure("a", "emulated", "2.0", "bytes", "1"),
    ]
    assert figures.read_figures(figures.format_figures(kept, "ba")) == kept
