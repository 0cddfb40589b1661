"""The claims of docs/claims.md: each is measured again, and the page holds the figures kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import claims
from figures import Figure, Outcome, measured

KEPT = claims.PAGE.figures()
HERE = [name for name, claim in claims.CLAIMS.items() if not claim.only_cuda]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    pytest.importorskip("torch")
    return {one.name: one for one in measured(claims.__file__, HERE, "emulated")}


@pytest.mark.xdist_group("claims")
@pytest.mark.parametrize("name", HERE)
def test_a_fresh_run_gives_the_figures_that_are_kept(
    name: str, outcomes: dict[str, Outcome]
) -> None:
    assert not outcomes[name].error
    kept = [figure for figure in KEPT if (figure.name, figure.device) == (name, "emulated")]
    if {figure.torch for figure in kept} != {figure.torch for figure in outcomes[name].figures}:
        pytest.skip("the figures that are kept come from another torch")
    assert list(outcomes[name].figures) == kept


def test_what_needs_a_gpu_says_so_instead_of_giving_figures() -> None:
    pytest.importorskip("torch")
    others = [name for name in claims.CLAIMS if name not in HERE]
    assert others
    found = list(measured(claims.__file__, others, "emulated"))
    assert [(one.name, one.figures, one.error) for one in found] == [(n, (), "") for n in others]
    for name in others:
        text = "\n".join(claims.section(claims.CLAIMS[name], []))
        assert f"needs CUDA,** because {claims.CLAIMS[name].only_cuda}." in text


def test_the_page_is_made_of_the_figures() -> None:
    outdated = "run `python bench/claims.py --write`"
    assert claims.PAGE.page.read_text("utf-8") == claims.page(KEPT), outdated


def test_every_figure_has_a_program() -> None:
    assert {figure.name for figure in KEPT} <= set(claims.CLAIMS)
    assert set(HERE) <= {figure.name for figure in KEPT}


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (("yes", "", "yes"), "holds"),
        (("no", ""), "does not hold"),
        (("yes", "no", "", "no"), "holds in 1 of 3 figures"),
        ((), "needs CUDA"),
    ],
)
def test_a_verdict_counts_what_was_claimed(answers: tuple[str, ...], said: str) -> None:
    rows = [Figure("one", "cuda", "2.0", "bytes", "1", "2", answer) for answer in answers]
    assert claims.verdict(rows) == said


def test_a_program_says_what_is_claimed_and_what_running_shows(tmp_path: Path) -> None:
    program = tmp_path / "mute.py"
    program.write_text('"""Only the claim."""\n')
    with pytest.raises(ValueError, match=r"mute\.py: its docstring has to be the claim"):
        claims.read_claim(program)
