"""The myths of docs/myths.md: each is refuted again, and the page is made of the figures kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import myths

KEPT = myths.read_figures(myths.FIGURES.read_text("utf-8"))


@pytest.mark.parametrize("name", myths.MYTHS)
def test_the_claim_is_refuted_when_it_is_run(name: str) -> None:
    pytest.importorskip("torch")
    said = [figure.what for figure in KEPT if (figure.myth, figure.device) == (name, "emulated")]
    assert [figure.what for figure in myths.measured(name, "emulated")] == said


def test_the_page_is_made_of_the_figures() -> None:
    outdated = "run `python bench/myths.py --write`"
    assert myths.PAGE.read_text("utf-8") == myths.page(KEPT), outdated


@pytest.mark.parametrize("chosen", myths.MYTHS.values(), ids=myths.MYTHS)
def test_a_myth_has_a_claim_and_a_truth(chosen: myths.Myth) -> None:
    assert len(myths.paragraphs(chosen.measure)) == 2
    assert chosen.claim.endswith(".")
    assert chosen.truth.endswith(".")


def test_a_claim_that_holds_is_no_myth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    script = Path(myths.__file__).read_text("utf-8")
    held = tmp_path / "myths.py"
    held.write_text(script.replace("assert growth(ends) == 0", "assert growth(ends) > 0"))
    monkeypatch.setattr(myths, "__file__", str(held))
    with pytest.raises(ValueError, match=r"missing_zero_grad: (?s:.*)AssertionError"):
        myths.measured("missing_zero_grad", "emulated")


def test_newer_figures_replace_older_ones_of_the_same_device() -> None:
    def of(myth: str, device: str, value: str) -> myths.Figure:
        return myths.Figure(myth, device, "2.0", "bytes", value)

    old = [
        of("lambda_lr_leaks", "cuda", "a"),
        of("lambda_lr_leaks", "emulated", "b"),
        of("no_longer_told", "emulated", "c"),
    ]
    kept = myths.merged(old, [of("lambda_lr_leaks", "emulated", "d")])
    assert [figure.value for figure in kept] == ["a", "d"]
    in_order = myths.read_figures(myths.format_figures(kept))
    assert [figure.value for figure in in_order] == ["d", "a"]
