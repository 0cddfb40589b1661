"""Plants faults in training code that was chosen by hash, and counts how many oomlint finds.

A planted fault counts as found if its rule has a finding that was not there before, in the function
where it was planted or in one that calls it or is called by it in the same file.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import hashlib
import re
import sys
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from corpus import CorpusError
from mutations import OPERATORS, Operator, planted
from planting import Code, Edit, Package, Site, last_name
from tools import packages_folder

from oomlint.analysis import analyse
from oomlint.analysis.explanation import explain
from oomlint.linter import check_source
from oomlint.settings import Layer, Settings
from oomlint.source import Source

RESULTS = Path(__file__).with_name("results")
SKIPPED = re.compile(r"(^|/)torch[-\d.]*/(test|torch/testing|torch/_\w+)/")
MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


@dataclass(frozen=True, slots=True)
class Outcome:
    operator: Operator
    file: str
    row: int
    where: str
    found: bool
    text: str
    # Of a survivor: what the model says of the place.
    reason: str = ""


def training_files(folder: Path) -> Iterator[tuple[Path, Code]]:
    """Files with a backward and a step that a loop repeats, in the order of their hashes."""

    def order(path: Path) -> str:
        return hashlib.sha256(path.relative_to(folder).as_posix().encode()).hexdigest()

    for path in sorted(folder.rglob("*.py"), key=order):
        if SKIPPED.search(path.relative_to(folder).as_posix()):
            continue
        text = path.read_text("utf-8", "replace")
        if ".backward(" not in text or ".step(" not in text:
            continue
        try:
            code = Code(path, text.replace("\r\n", "\n"))
        except (SyntaxError, ValueError, RecursionError):
            continue
        if any(last_name(call.func) == "backward" and code.repeated(call) for call in code.calls):
            yield path, code


def project_of(path: Path, folder: Path) -> Path:
    """The nearest folder with a mark of a project, or the tree itself."""
    for parent in path.parents:
        if parent == folder or any((parent / marker).exists() for marker in MARKERS):
            return parent
    return path.parent


def findings(path: Path, text: str, root: Path, code: str) -> list[int]:
    """The offsets at which one rule finds something in a text at a path."""
    layers = (Layer("bench/plant.py", select=(code,)),)
    settings = Settings(root, root, layers=layers, preview=True)
    result = check_source(Source(path, text), settings)
    if result.problem is not None:
        raise ValueError(f"{path}: {result.problem.message}")
    return [finding.start for finding in result.findings if finding.code == code]


def moved_to(offset: int, edits: Sequence[Edit]) -> int:
    """Where an offset of the original text lies in the edited one."""
    shift = 0
    for edit in edits:
        if edit.end <= offset and (edit.start, edit.end) != (offset, offset):
            shift += len(edit.text) - (edit.end - edit.start)
    return offset + shift


def judge(code: Code, site: Site, text: str, before: list[int], after: list[int]) -> bool:
    """Whether a new finding lies where the fault was planted."""
    changed = Code(code.path, text)
    old = Counter(changed_row(changed, moved_to(offset, site.edits)) for offset in before)
    new = Counter(changed_row(changed, offset) for offset in after) - old
    near = {name_of(code, scope) for scope in code.related(code.scope(site.node))}
    if isinstance(site.node, ast.FunctionDef | ast.AsyncFunctionDef):
        near |= {name_of(code, scope) for scope in code.related(site.node)}
    return any(scope_at(changed, row) & near for row in new)


def changed_row(code: Code, offset: int) -> int:
    return bisect_right(code.starts, offset)


def scope_at(code: Code, row: int) -> set[str]:
    """The names of the functions around a row, from the outermost; "" for the module."""
    around = [
        name_of(code, function)
        for function in code.functions
        if function.lineno - len(function.decorator_list) <= row <= (function.end_lineno or 0)
    ]
    return set(around) or {""}


def name_of(code: Code, scope: ast.AST) -> str:
    if isinstance(scope, ast.Module):
        return ""
    around = [outer.name for outer in code.above(scope) if isinstance(outer, ast.ClassDef)]
    return ".".join([*reversed(around), scope.name])  # type: ignore[attr-defined]


def plant(
    folder: Path, limit: int, operators: Sequence[Operator]
) -> Iterator[tuple[str, list[Outcome]]]:
    """Each chosen file with what became of every fault that was planted in it."""
    packages: dict[Path, Package] = {}
    for count, (path, code) in enumerate(training_files(folder)):
        if limit and count == limit:
            return
        root = project_of(path, folder)
        code.package = packages.setdefault(root, Package(root))
        name = path.relative_to(folder).as_posix()
        yield name, [*outcomes(code, root, name, operators)]


def outcomes(code: Code, root: Path, name: str, operators: Sequence[Operator]) -> Iterator[Outcome]:
    known: dict[str, list[int]] = {}
    for operator in operators:
        for site, text in planted(code, operator):
            if operator.code not in known:
                known[operator.code] = findings(code.path, code.text, root, operator.code)
            before = known[operator.code]
            scope = code.scope(site.node)
            faulty = {name_of(code, scope)} & {
                one
                for offset in before
                for one in scope_at(code, bisect_right(code.starts, offset))
            }
            if faulty:
                # The function has this fault already.
                continue
            after = findings(code.path, text, root, operator.code)
            found = judge(code, site, text, before, after)
            row = getattr(site.node, "lineno", 1)
            why = "" if found else reason(code, site, text, root)
            yield Outcome(operator, name, row, name_of(code, scope), found, text, why)


def reason(code: Code, site: Site, text: str, root: Path) -> str:
    """Why a fault was not seen, as `oomlint explain` has it of its function's rows."""
    changed = Code(code.path, text)
    scope = code.scope(site.node)
    name = name_of(code, scope)
    here = next((one for one in changed.functions if name_of(changed, one) == name), changed.tree)
    events = [*(call for call, _ in changed.backwards(here)), *(c for c, _ in changed.steps(here))]
    rows = [call.lineno for call in events] or [call.lineno for call in changed.calls_in(here)[:1]]
    for row in dict.fromkeys(rows):
        said = explain(analyse(Source(code.path, text), root), row)
        if said is None:
            continue
        notes = (part.note for part in said.parts if not part.events)
        missing = next((note for note in notes if note.startswith("no ")), "")
        if said.silence or missing:
            line = text.splitlines()[row - 1].strip()
            return f"`{line}`: {said.silence[0] if said.silence else missing}"
    return "followed; the rule is not certain"


def table(results: Sequence[Outcome], operators: Sequence[Operator]) -> list[str]:
    lines = ["| operator | rule | what | planted | found | share |", "|---|---|---|---:|---:|---:|"]
    for operator in operators:
        own = [one for one in results if one.operator is operator]
        found = sum(one.found for one in own)
        share = f"{found / len(own):.0%}" if own else "-"
        lines.append(
            f"| {operator.name} | {operator.code} | {operator.what} | {len(own)} | {found} "
            f"| {share} |"
        )
    found = sum(one.found for one in results)
    share = f"{found / len(results):.1%}" if results else "-"
    return [*lines, f"| all | | | {len(results)} | {found} | {share} |"]


def survivors(results: Sequence[Outcome]) -> list[str]:
    return [
        f"| {one.operator.name} | {one.file} | {one.row} | {one.where or 'module'} "
        f"| {one.reason.replace('|', '/')} |"
        for one in results
        if not one.found
    ]


def page(results: Sequence[Outcome], files: int, command: str) -> str:
    today = datetime.date.today().isoformat()
    head = [
        f"# Recall by planted faults, {today}",
        "",
        f"`{command}`: {files} files with training loops, chosen by the hash of their paths; each",
        "fault planted alone, in place; found if its rule has a new finding in the function, its",
        "callers or its callees.",
        "",
        *table(results, OPERATORS),
        "",
        "## Survivors",
        "",
        "| operator | file | line | function | reason |",
        "|---|---|---:|---|---|",
        *survivors(results),
        "",
    ]
    return "\n".join(head)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="default: the corpus")
    parser.add_argument("--files", type=int, default=60, help="how many files (0: all)")
    parser.add_argument("--operators", default="", help="names or codes to plant (default: all)")
    parser.add_argument("--keep", type=Path, help="a folder for the texts that survive")
    parser.add_argument("--write", action="store_true", help="keep the page in results/")
    options = parser.parse_args()
    try:
        folder = (options.folder or packages_folder()).resolve()
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = {word for word in options.operators.split(",") if word}
    operators = [one for one in OPERATORS if not chosen or {one.name, one.code} & chosen]
    results: list[Outcome] = []
    files, began = 0, time.process_time()
    for name, own in plant(folder, options.files, operators):
        files += 1
        results += own
        for one in own:
            if not one.found:
                print(f"{one.operator.name}: {name}:{one.row} {one.where}", flush=True)
                if options.keep:
                    keep(options.keep, one)
    print("\n".join(table(results, operators)))
    print(f"{files} files, {time.process_time() - began:.0f} CPU seconds")
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        target = RESULTS / f"recall-{datetime.date.today().isoformat()}.md"
        command = f"python bench/plant.py --files {options.files} --write"
        target.write_text(page(results, files, command), encoding="utf-8")
        print(f"written to {target}")
    return 0


def keep(folder: Path, outcome: Outcome) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = outcome.file.replace("/", "+").removesuffix(".py")
    target = folder / f"{outcome.operator.name}+{outcome.row}+{stem}.py"
    target.write_text(outcome.text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
