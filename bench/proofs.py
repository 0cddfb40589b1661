"""Runs every rule's runnable fixture before and after its repair and keeps what was measured."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from oomlint.errors import OomlintError
from oomlint.registry import all_rules
from oomlint.rule import Rule
from oomlint.verify import compare_texts
from oomlint.verify.runner import Limits
from oomlint.verify.verdict import CONFIRMED, NOT_MEASURED

ROOT = Path(__file__).parent.parent
PROOFS = Path(__file__).with_name("proofs.tsv")
RESULTS = Path(__file__).with_name("results")
# By the rule's own fix, or by hand where it has none.
REPAIRED = ("run.fixed.py", "run.repaired.py")


@dataclass(frozen=True, slots=True)
class Proof:
    """What one pair of scripts showed on one device; the page of the rule is made from it."""

    rule: str
    repaired: str
    device: str
    torch: str
    verdict: str
    claim: str
    measured: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.rule, self.repaired, self.device


def read_proofs(text: str) -> tuple[Proof, ...]:
    return tuple(Proof(*line.split("\t")) for line in text.splitlines()[1:] if line.strip())


def format_proofs(proofs: Iterable[Proof]) -> str:
    lines = [tuple(field.name for field in fields(Proof)), *map(astuple, sorted(proofs, key=key))]
    return "".join("\t".join(cells) + "\n" for cells in lines)


def key(proof: Proof) -> tuple[str, str, str]:
    return proof.key


def merged(old: Iterable[Proof], new: Iterable[Proof], codes: set[str]) -> list[Proof]:
    """The newest proof of each pair and device; those of rules that are gone go, too."""
    newest = {proof.key: proof for proof in (*old, *new) if proof.rule in codes}
    return list(newest.values())


def pairs(rule: type[Rule]) -> Iterator[tuple[Path, Path]]:
    folder = ROOT / "fixtures" / f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
    for name in REPAIRED:
        if (folder / name).is_file():
            yield folder / "run.py", folder / name


def finding_row(rule: type[Rule], script: Path) -> int | None:
    lines = script.read_text("utf-8").splitlines()
    rows = [i for i, line in enumerate(lines, 1) if f"# expect: {rule.code}" in line]
    return rows[0] if rows else None


def prove(rule: type[Rule], script: Path, repaired: Path, device: str) -> Proof:
    distributed = "init_process_group" in script.read_text("utf-8")
    limits = Limits(device=device, timeout=300.0, ranks=2 if distributed else 1)
    row = finding_row(rule, script)
    try:
        found = compare_texts(script, repaired, rule.claims, row=row, limits=limits)
    except OomlintError as error:
        reason = " ".join(str(error).split())
        return Proof(rule.code, repaired.name, device, "", NOT_MEASURED, "", reason)
    verdict, run = found.verdict, found.before
    claim = verdict.claim.name if verdict.claim else ""
    reason = " ".join(verdict.reason.split())
    return Proof(rule.code, repaired.name, run.device, run.torch, verdict.kind, claim, reason)


def page(proofs: Iterable[Proof], device: str, today: str) -> str:
    head = [
        f"# Proofs of the fixtures, {today}, {device} device",
        "",
        "`python bench/proofs.py --write`: each rule's runnable fixture before and after repair.",
        "",
        "| rule | repair | verdict | measured |",
        "|---|---|---|---|",
    ]
    rows = [
        f"| {proof.rule} | {proof.repaired} | {proof.verdict} | {proof.measured} |"
        for proof in sorted(proofs, key=key)
        if proof.device == device
    ]
    return "\n".join([*head, *rows, ""])


def write(proofs: Iterable[Proof], codes: set[str]) -> None:
    new = list(proofs)
    old = read_proofs(PROOFS.read_text("utf-8")) if PROOFS.exists() else ()
    kept = merged(old, new, codes)
    PROOFS.write_text(format_proofs(kept), encoding="utf-8")
    today = datetime.date.today().isoformat()
    RESULTS.mkdir(exist_ok=True)
    for device in sorted({proof.device for proof in new}):
        target = RESULTS / f"proofs-{device}-{today}.md"
        target.write_text(page(kept, device, today), encoding="utf-8")
        print(f"written to {PROOFS.relative_to(ROOT)} and {target.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", choices=["auto", "cuda", "emulated"])
    parser.add_argument("--rules", default="", metavar="OOM1,OOM301", help="only these")
    parser.add_argument("--write", action="store_true", help="keep them in proofs.tsv and results/")
    options = parser.parse_args()
    wanted = tuple(part for part in options.rules.split(",") if part) or ("OOM",)
    own = [rule for rule in all_rules() if rule.__module__.startswith("oomlint.rules.")]
    proofs = []
    for rule in own:
        for script, repaired in pairs(rule) if rule.code.startswith(wanted) else ():
            proof = prove(rule, script, repaired, options.device)
            print(f"{proof.rule} {proof.verdict}: {proof.measured}", flush=True)
            proofs.append(proof)
    if options.write:
        write(proofs, {rule.code for rule in own})
    return 1 if any(proof.verdict != CONFIRMED for proof in proofs) else 0


if __name__ == "__main__":
    sys.exit(main())
