"""The generated documentation: up to date, and made of what was measured."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest

from oomlint import docs
from oomlint.rule import REPOSITORY, Claim, Rule, Severity

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import pictures
import proofs

ROOT = Path(__file__).resolve().parents[1]
RULES = docs.own_rules()
PAGES = docs.documents(ROOT)


class Example(Rule):
    """
    ## What it does
    Checks for `a|b`. More is said of it here.

    ## Fix safety
    Unsafe: it changes.

    ## Measured
    Something.

    ## References
    - none
    """

    code = "TSD101"
    name = "some-defect"
    severity = Severity.WARNING
    tokens: ClassVar = (("no-file-holds-this",),)
    claims = (Claim.WAITS_FALL,)


def proof(device: str, verdict: str = "confirmed") -> docs.Proof:
    return docs.Proof("TSD101", "run.fixed.py", device, "2.0", verdict, "WAITS_FALL", "less|more")


def evidence(*of: docs.Proof, **verdicts: int) -> docs.Evidence:
    counts = {"TSD101": Counter(verdicts)} if verdicts else {}
    return docs.Evidence({"TSD101": of} if of else {}, counts, 7, 8)


def test_the_generated_pages_are_up_to_date() -> None:
    outdated = [str(path.relative_to(ROOT)) for path in docs.outdated(PAGES, ROOT)]
    assert not outdated, f"run `python -m oomlint.docs`, which changes {', '.join(outdated)}"


def test_the_picture_shows_what_the_command_prints() -> None:
    drawn = pictures.drawn(pictures.printed(ROOT / "examples"))
    outdated = "run `python bench/pictures.py --write`"
    assert pictures.PICTURE.read_text(encoding="utf-8") == drawn, outdated
    assert "OOM301" in drawn and "font-face" not in drawn


def test_a_page_of_a_rule_that_is_gone_is_outdated(tmp_path: Path) -> None:
    folder = tmp_path / "docs" / "rules"
    folder.mkdir(parents=True)
    kept, changed, gone = (folder / name for name in ("a.md", "b.md", "c.md"))
    for path in (kept, changed, gone):
        path.write_text("old")
    wanted = {kept: "old", changed: "new", folder / "d.md": "new"}
    assert docs.outdated(wanted, tmp_path) == [changed, gone, folder / "d.md"]


def test_a_rule_leads_to_its_page() -> None:
    pages = {f"{REPOSITORY}/blob/main/{path.relative_to(ROOT).as_posix()}" for path in PAGES}
    assert [rule.code for rule in RULES if rule.url() not in pages] == []
    assert Example.url() is None, "oomlint has no page of a third party's rule"


def test_links_of_the_pages_lead_to_files() -> None:
    missing = [
        f"{path.name}: {link}"
        for path, text in PAGES.items()
        for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
        if (path.parent / link).resolve() not in PAGES and not (path.parent / link).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.claims], ids=lambda r: r.code)
def test_the_proof_on_the_page_is_a_confirmation(rule: type[Rule]) -> None:
    found = docs.read_evidence(ROOT).proofs.get(rule.code, ())
    verdicts = {proof.device: proof.verdict for proof in found}
    assert verdicts.get("emulated") == "confirmed", "run `python bench/proofs.py --write`"
    assert set(verdicts.values()) == {"confirmed"}
    assert {proof.claim for proof in found} <= {claim.name for claim in rule.claims}


@pytest.mark.parametrize(
    ("given", "said", "unsaid"),
    [
        (evidence(), "Not measured yet", "| Device |"),
        (evidence(), "7 public packages and 8 public repositories: no finding", "judged"),
        (evidence(right=1), "1 finding, judged 1 right, 0 debatable, 0 wrong", "no finding"),
        (evidence(right=3, wrong=1), "4 findings, judged 3 right, 0 debatable, 1 wrong", "no find"),
        (evidence(proof("emulated")), "Only CUDA can show how long the waiting", "Not measured"),
        (evidence(proof("emulated")), "| confirmed | less\\|more |", "less|more |\n|"),
        (evidence(proof("cuda"), proof("emulated")), "| cuda | 2.0 |", "Only CUDA can show"),
        (evidence(proof("emulated", "no effect")), "| no effect |", "| confirmed |"),
    ],
)
def test_evidence_of_a_page(given: docs.Evidence, said: str, unsaid: str) -> None:
    text = docs.page(Example, given)
    assert said in text
    assert unsaid not in text
    order = ["# TSD101: some-defect", "## Measured", "## Evidence", "## References"]
    assert sorted(order, key=text.index) == order


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("Checks for a.", "Checks for a."),
        ("Checks for a. And b.", "Checks for a."),
        ("Checks for `x.y` and e.g. that. `z` too.", "Checks for `x.y` and e.g. that."),
        ("Checks for `torch.load` calls", "Checks for `torch.load` calls"),
    ],
)
def test_first_sentence(text: str, first: str) -> None:
    assert docs.first_sentence(text) == first


def test_index_row() -> None:
    row = docs.index_row(Example, evidence(right=2, debatable=1))
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    assert cells == [
        "[TSD101](rules/tsd101-some-defect.md)",
        "`some-defect`",
        "`a\\|b`.",
        "warning",
        "on",
        "unsafe",
        "the host waits for the device less often",
        "2 / 1 / 0",
    ]


def test_newer_proofs_replace_older_ones_of_the_same_device() -> None:
    def of(rule: str, device: str, measured: str) -> proofs.Proof:
        return proofs.Proof(rule, "run.fixed.py", device, "2.0", "confirmed", "X", measured)

    old = [of("OOM1", "cuda", "a"), of("OOM1", "emulated", "b"), of("OOM2", "emulated", "c")]
    kept = proofs.merged(old, [of("OOM1", "emulated", "d")], {"OOM1"})
    assert [proof.measured for proof in kept] == ["a", "d"]
    assert proofs.read_proofs(proofs.format_proofs(reversed(kept))) == tuple(kept)
