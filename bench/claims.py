"""Measures what articles claim of training memory, beside what a run shows.

Each program of fixtures/claims is one claim: its docstring is the claim and, after a blank line,
what running shows; it prints its figures with what was claimed of them. `--write` keeps them in
docs/claims.md.
"""

from __future__ import annotations

import ast
import os
import runpy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from figures import Figure, Page, Rows, command, emulate, paragraphs

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "fixtures" / "claims"
SHARED = "measuring"
RANKS = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """One program; `only_cuda` says why it has to be run on a GPU, or nothing."""

    name: str
    claim: str
    truth: str
    ranks: int
    only_cuda: str

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").capitalize()


def read_claim(path: Path) -> Claim:
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    said = paragraphs(ast.get_docstring(tree))
    if len(said) != 2:
        raise ValueError(f"{path}: its docstring has to be the claim and what running shows")
    reasons = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ONLY_CUDA"
    ]
    ranks = RANKS if "init_process_group" in text else 1
    return Claim(path.stem, *said, ranks, reasons[0] if reasons else "")


CLAIMS = {
    path.stem: read_claim(path) for path in sorted(PROGRAMS.glob("*.py")) if path.stem != SHARED
}


def measure(name: str, device: str) -> Rows:
    claim = CLAIMS[name]
    if claim.only_cuda and device != "cuda":
        return []
    if claim.ranks > 1:
        become_ranks(claim.ranks)
    emulate(device)
    sys.path.insert(0, str(PROGRAMS))
    runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")
    rows: Rows = __import__(SHARED).rows
    if os.environ.get("RANK", "0") != "0":
        os._exit(0)
    return rows


def become_ranks(ranks: int) -> None:
    """Makes this process the first of several; on a machine with one GPU all are on that."""
    from oomlint.verify import launch

    with launch.reserved_port() as held:
        port = held.getsockname()[1]
        for rank in range(1, ranks):
            if os.fork() == 0:
                os.environ.update(launch.environment(rank, ranks, port))
                return
        os.environ.update(launch.environment(0, ranks, port))


def verdict(figures: Iterable[Figure]) -> str:
    """Whether a claim holds, by those of its figures of which something was claimed."""
    answers = [one.holds == "yes" for one in figures if one.holds]
    if not answers:
        return "needs CUDA"
    if all(answers):
        return "holds"
    return f"holds in {sum(answers)} of {len(answers)} figures" if any(answers) else "does not hold"


def page(figures: Iterable[Figure]) -> str:
    rows = list(figures)
    by_claim = {name: [one for one in rows if one.name == name] for name in CLAIMS}
    lines = [
        "<!-- written by `python bench/claims.py --write`; change fixtures/claims instead -->",
        "",
        "# Claims",
        "",
        "What articles claim of training memory, beside what a run shows. Each claim is a program"
        " of [fixtures/claims](../fixtures/claims) that counts what was claimed: `python"
        " bench/claims.py` runs all of them again, without a GPU; with `--device cuda` on one. A"
        " figure *holds* when it lies within the bounds that stand beside it. [Myths](myths.md)"
        " are claims of which nothing holds.",
        "",
        "The emulated device computes real numbers on the CPU and counts the bytes that tensors"
        " hold as CUDA's caching allocator does. What cuDNN and NCCL take besides is not in it,"
        " and neither is time: claims about that need a GPU.",
        "",
        "| | Claim | Measured |",
        "|---|---|---|",
    ]
    lines += [
        f"| [{claim.title}](#{claim.title.lower().replace(' ', '-')}) | {claim.claim} |"
        f" {verdict(by_claim[claim.name])} |"
        for claim in CLAIMS.values()
    ]
    for claim in CLAIMS.values():
        lines += section(claim, by_claim[claim.name])
    return "\n".join([*lines, ""])


def section(claim: Claim, figures: list[Figure]) -> list[str]:
    lines = ["", f"## {claim.title}", "", f"> {claim.claim}", ""]
    if figures:
        said = verdict(figures)
        lines += [f"**{said[0].upper()}{said[1:]}.** {claim.truth}", ""]
        lines += ["| Measured | | Claimed | Holds | Device | torch |", "|---|---|---|---|---|---|"]
        lines += [
            f"| {one.what} | {one.value} | {one.claimed} | {one.holds} | {one.device} |"
            f" {one.torch} |"
            for one in figures
        ]
    else:
        lines.append(f"**Not measured: it needs CUDA,** because {claim.only_cuda}. {claim.truth}")
    program = f"[{claim.name}.py](../fixtures/claims/{claim.name}.py)"
    device = " --device cuda" if claim.only_cuda else ""
    alone = f", as {claim.ranks} ranks" if claim.ranks > 1 else ""
    lines += ["", f"{program}{alone}: `python bench/claims.py {claim.name}{device}`"]
    return lines


PAGE = Page(
    script=Path(__file__),
    kept=Path(__file__).with_name("claims.tsv"),
    page=ROOT / "docs" / "claims.md",
    statements={name: one.claim for name, one in CLAIMS.items()},
    draw=page,
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(command(PAGE, __doc__, "not measured"))
