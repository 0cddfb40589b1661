"""Writes what is generated of the documentation: `python -m oomlint.docs`; `--check` compares.

README.md's table, docs/rules.md and the page of each rule in docs/rules/ are made from the rules'
docstrings and from what was measured: bench/proofs.tsv and bench/ledger.tsv. So is
oomlint/measured.tsv, which is installed. docs/settings.md holds the text of `oomlint config`,
and docs/record.md that of the record's JSON schema.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oomlint import registry
from oomlint.key_help import HELP
from oomlint.record_docs import record_page
from oomlint.rule import FAMILIES, Claim, Rule, page_name

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- rules:begin -->", "<!-- rules:end -->"
NOTE = "<!-- written by `python -m oomlint.docs`; change {} instead -->"
REPAIRS = {
    "run.fixed.py": "the same script after the rule's own fix",
    "run.repaired.py": "the same script repaired by hand",
}
# What of a claim the emulated device cannot tell, because it computes on the CPU.
ONLY_CUDA = {
    Claim.DEVICE_ALLOCATIONS_FALL: "how long a request to the driver takes",
    Claim.WAITS_FALL: "how long the waiting takes",
    Claim.COPIES_FALL: "how long the copies take",
    Claim.STEP_FASTER: "how much faster a step is on a GPU: the seconds above are the CPU's",
    Claim.REDUCTIONS_FALL: "how long an average over several GPUs takes",
}


@dataclass(frozen=True, slots=True)
class Proof:
    """A row of bench/proofs.tsv: a pair of scripts, run on a device."""

    rule: str
    repaired: str
    device: str
    torch: str
    verdict: str
    claim: str
    measured: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that was measured, for all rules: proofs by code, verdicts of readers by code."""

    proofs: dict[str, tuple[Proof, ...]]
    verdicts: dict[str, Counter[str]]
    packages: int
    repositories: int

    @property
    def corpus(self) -> str:
        return f"{self.packages} public packages and {self.repositories} public repositories"

    def ledger(self, code: str) -> str:
        """Right, debatable and wrong findings, or a dash where there is none."""
        counts = self.verdicts.get(code)
        return " / ".join(str(counts[v]) for v in VERDICTS) if counts else "-"


VERDICTS = ("right", "debatable", "wrong")


def read_evidence(root: Path = ROOT) -> Evidence:
    proofs: dict[str, tuple[Proof, ...]] = {}
    for cells in rows_of(root / "bench" / "proofs.tsv"):
        proof = Proof(*cells)
        proofs[proof.rule] = (*proofs.get(proof.rule, ()), proof)
    verdicts: dict[str, Counter[str]] = {}
    for cells in rows_of(root / "bench" / "ledger.tsv"):
        verdicts.setdefault(cells[4], Counter())[cells[6]] += 1
    packages = (root / "bench" / "corpus.toml").read_text(encoding="utf-8").count("[[package]]")
    repositories = len(rows_of(root / "bench" / "repositories.tsv"))
    return Evidence(proofs, verdicts, packages, repositories)


def rows_of(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines[1:] if line.strip()]


def own_rules() -> list[type[Rule]]:
    return [rule for rule in registry.all_rules() if rule.__module__.startswith("oomlint.rules.")]


def by_family(rules: Iterable[type[Rule]]) -> dict[str, list[type[Rule]]]:
    families: dict[str, list[type[Rule]]] = {}
    for rule in rules:
        families.setdefault(rule.code[3], []).append(rule)
    return families


def family_title(digit: str) -> str:
    return f"{digit}xx: {FAMILIES[digit]}"


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s+(?=[A-Z`])", text, maxsplit=1)[0]


def fix_safety(rule: type[Rule]) -> str:
    """What "Fix safety" says first, and of both where it tells two kinds apart."""
    section = rule.explanation().partition("## Fix safety\n")[2].partition("\n## ")[0]
    kinds = dict.fromkeys(re.findall(r"(?:^|\. |; )(safe|unsafe)\b", section.strip(), re.I))
    return " or ".join(dict.fromkeys(kind.lower() for kind in kinds)) or "none"


def switched(rule: type[Rule]) -> str:
    if rule.preview:
        return "preview"
    return "on" if rule.default else "off"


def claims_of(rule: type[Rule]) -> str:
    return ", or ".join(claim.value for claim in rule.claims)


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def table(rules: Iterable[type[Rule]]) -> str:
    """The README's table: the rules of each family, each with a link to its page."""
    lines = ["| Family | Rules |", "|---|---|"]
    for digit, members in by_family(rules).items():
        links = [
            f"{rule.code} [{rule.name}](docs/rules/{page_name(rule.code, rule.name)})"
            + remark(rule)
            for rule in members
        ]
        lines.append(f"| {family_title(digit)} | {'<br>'.join(links)} |")
    return "\n".join(lines)


def remark(rule: type[Rule]) -> str:
    """In the README a whole family may be off, which its title says."""
    if rule.preview:
        return " (preview)"
    return "" if rule.default or "(off" in FAMILIES[rule.code[3]] else " (off)"


def with_table(text: str, rules: Iterable[type[Rule]]) -> str:
    """The text with the table between its markers. Raises ValueError when a marker is missing."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the markers {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n{table(rules)}\n{END}{after}"


def index(rules: Iterable[type[Rule]], evidence: Evidence) -> str:
    """docs/rules.md: one line for each rule."""
    lines = [
        NOTE.format("the rules' docstrings"),
        "",
        "# Rules",
        "",
        "- *On*: whether a rule runs without being selected; *preview* needs `--preview` as well.",
        "- *Fix*: a safe one leaves the numbers that the code computes as they are, an unsafe one",
        "  changes them.",
        "- *Confirmed when*: what `oomlint verify` must measure of a repair.",
        f"- *Public code*: the findings in {evidence.corpus}",
        "  that readers judged right / debatable / wrong ([ledger](../bench/ledger.tsv)).",
    ]
    for digit, members in by_family(rules).items():
        lines += [
            "",
            f"## {family_title(digit)}",
            "",
            "| Code | Name | Checks for | Severity | On | Fix | Confirmed when | Public code |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [index_row(rule, evidence) for rule in members]
    return "\n".join([*lines, ""])


def index_row(rule: type[Rule], evidence: Evidence) -> str:
    cells = (
        f"[{rule.code}](rules/{page_name(rule.code, rule.name)})",
        f"`{rule.name}`",
        cell(first_sentence(rule.summary()).removeprefix("Checks for ")),
        rule.severity.value,
        switched(rule),
        fix_safety(rule),
        cell(claims_of(rule)),
        evidence.ledger(rule.code),
    )
    return f"| {' | '.join(cells)} |"


def page(rule: type[Rule], evidence: Evidence) -> str:
    """A rule's page: its docstring, with the evidence before the references."""
    stem = f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
    source = f"rules/{stem}.py"
    text, heading, references = rule.explanation().partition("## References\n")
    fix = fix_safety(rule)
    facts = [
        f"Severity: {rule.severity.value}",
        {"on": "on by default", "off": "off unless selected", "preview": "needs `--preview`"}[
            switched(rule)
        ],
        "no automatic fix" if fix == "none" else f"{fix} fix",
        f"source: [{source}](../../{source})",
    ]
    parts = [
        NOTE.format(source),
        f"# {rule.code}: {rule.name}",
        f"[Rules](../rules.md), {family_title(rule.code[3])}. {', '.join(facts)}.",
        text.strip(),
        "## Evidence",
        *proof_lines(rule, stem, evidence.proofs.get(rule.code, ())),
        ledger_line(rule, evidence),
        f"{heading}{references}".strip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def proof_lines(rule: type[Rule], stem: str, proofs: tuple[Proof, ...]) -> list[str]:
    if not rule.claims:
        return ["There is nothing to measure: the finding is about the text alone."]
    confirmed = f"A repair is confirmed when {claims_of(rule)}."
    if not proofs:
        return [f"{confirmed} Not measured yet."]
    folder = f"../../fixtures/{stem}"
    rows = [
        f"| {proof.device} | {proof.torch} | [{proof.repaired}]({folder}/{proof.repaired}) |"
        f" {proof.verdict} | {cell(proof.measured)} |"
        for proof in proofs
    ]
    repairs = " and ".join(
        f"[{proof}]({folder}/{proof}), {REPAIRS[proof]}"
        for proof in dict.fromkeys(proof.repaired for proof in proofs)
    )
    lines = [
        f"{confirmed} Measured with [run.py]({folder}/run.py) and {repairs}:",
        "\n".join(
            ["| Device | torch | After | Verdict | Measured |", "|---|---|---|---|---|", *rows]
        ),
    ]
    unseen = [ONLY_CUDA[claim] for claim in rule.claims if claim in ONLY_CUDA]
    if all(proof.device != "cuda" for proof in proofs):
        lines.append(
            "The emulated device computes real numbers on the CPU and counts memory as CUDA's"
            " allocator does; no run on a GPU is recorded yet."
        )
        if unseen:
            lines.append(f"Only CUDA can show {'; and '.join(unseen)}.")
    return lines


def ledger_line(rule: type[Rule], evidence: Evidence) -> str:
    where = f"In the code of {evidence.corpus}"
    counts = evidence.verdicts.get(rule.code)
    if not counts:
        return f"{where}: no finding ([ledger](../../bench/ledger.tsv))."
    total = counts.total()
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    noun = "finding" if total == 1 else "findings"
    return f"{where}: {total} {noun}, judged {verdicts} ([ledger](../../bench/ledger.tsv))."


def documents(root: Path = ROOT) -> dict[Path, str]:
    """Every generated file with the text that it should have."""
    rules, evidence = own_rules(), read_evidence(root)
    readme = root / "README.md"
    folder = root / "docs" / "rules"
    wanted = {
        readme: with_table(readme.read_text(encoding="utf-8"), rules),
        root / "docs" / "rules.md": index(rules, evidence),
        root / "docs" / "settings.md": settings_page(),
        root / "docs" / "record.md": noted(record_page(), "oomlint/verify/record.schema.json"),
    }
    for rule in rules:
        wanted[folder / page_name(rule.code, rule.name)] = page(rule, evidence)
    wanted[root / "oomlint" / "measured.tsv"] = measured(evidence)
    return wanted


def settings_page() -> str:
    """Every key of settings files, from the text of `oomlint config`."""
    lines = [
        NOTE.format("oomlint/key_help.py"),
        "# Settings",
        "Settings stand under `[tool.oomlint]` in `pyproject.toml`, or at the top of an"
        " `oomlint.toml` or `.oomlint.toml`. For each file the closest of these counts, alone:"
        " nothing is merged but what `extend` names. Options of the command line count on top of"
        " it, `--config 'KEY = VALUE'` sets any key for one run, and `--isolated` uses no file."
        " `oomlint check --show-settings FILE` prints what holds for a file, `oomlint config KEY`"
        " what stands here.",
        "An unknown key, or a value that cannot be, ends the run with 2 and a sentence that names"
        " the file and the line.",
    ]
    for key, entry in HELP.items():
        lines += [
            f"## `{key}`",
            entry.text,
            f"Value: {entry.kind}. Default: {entry.default}.",
            f"```toml\n[tool.oomlint]\n{entry.example}\n```",
        ]
    return "\n\n".join(lines) + "\n"


def noted(text: str, source: str) -> str:
    return f"{NOTE.format(source)}\n\n{text}"


def measured(evidence: Evidence) -> str:
    """What an installed oomlint knows of the proofs, to show it in editors."""
    rows = [
        "\t".join((proof.rule, proof.device, proof.torch, proof.measured))
        for code in sorted(evidence.proofs)
        for proof in evidence.proofs[code]
        if proof.verdict == "confirmed"
    ]
    return "\n".join(["rule\tdevice\ttorch\tmeasured", *rows, ""])


def outdated(wanted: dict[Path, str], root: Path = ROOT) -> list[Path]:
    """The files that differ, are missing, or document a rule that is gone."""
    differ = [
        path
        for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    gone = [path for path in (root / "docs" / "rules").glob("*.md") if path not in wanted]
    return sorted(differ + gone)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oomlint.docs", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 if outdated")
    asked = parser.parse_args()
    wanted = documents()
    differ = outdated(wanted)
    if asked.check and differ:
        names = ", ".join(str(path.relative_to(ROOT)) for path in differ)
        print(f"outdated: {names}; run `python -m oomlint.docs`", file=sys.stderr)
        return 1
    for path in differ:
        if path not in wanted:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
