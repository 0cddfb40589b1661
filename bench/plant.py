"""Plants faults in training code that was chosen by hash, and counts how many oomlint finds.

A planted fault counts as found if its rule has a finding that was not there before, in the function
where it was planted, in one of the same file that calls it, or in one that either of them calls:
an `eval()` that nothing takes back is found where it is, and not where `train()` was missed.
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from corpus import CorpusError, cache_folder
from mutations import OPERATORS, Operator, planted
from planting import Code, Edit, Package, Site, last_name
from recall import Outcome, mean_share, page, table
from repositories import trees_folder
from tools import packages_folder

from oomlint.analysis import analyse
from oomlint.analysis.explanation import explain
from oomlint.linter import check_source
from oomlint.settings import Layer, Settings
from oomlint.source import Source

RESULTS = Path(__file__).with_name("results")
SKIPPED = re.compile(r"(^|/)torch[-\d.]*/(test|torch/testing|torch/_\w+)/")
MARKERS = (".git", "pyproject.toml", "setup.py", "setup.cfg")


def training_files(folders: Sequence[Path], seed: str) -> Iterator[tuple[Path, Path, Code]]:
    """Files with a backward and a step that a loop repeats, in the order of their hashes."""

    def order(found: tuple[Path, Path]) -> str:
        path, folder = found
        return hashlib.sha256((seed + path.relative_to(folder).as_posix()).encode()).hexdigest()

    everything = [(path, folder) for folder in folders for path in folder.rglob("*.py")]
    for path, folder in sorted(everything, key=order):
        if SKIPPED.search(path.relative_to(folder).as_posix()) or not path.is_file():
            continue
        text = path.read_text("utf-8", "replace")
        if ".backward(" not in text or ".step(" not in text:
            continue
        code = read(path)
        if code is not None and any(
            last_name(call.func) == "backward" and code.repeated(call) for call in code.calls
        ):
            yield path, folder, code


def read(path: Path) -> Code | None:
    text = path.read_text("utf-8", "replace")
    try:
        return Code(path, text.replace("\r\n", "\n"))
    except (SyntaxError, ValueError, RecursionError):
        return None


def project_of(path: Path, folder: Path) -> Path:
    """The nearest folder with a mark of a project, or the tree below `folder`."""
    parts = path.relative_to(folder).parts
    tree = folder / parts[0] if len(parts) > 1 else folder
    for parent in path.parents:
        if parent == tree or any((parent / marker).exists() for marker in MARKERS):
            return parent
    return path.parent


package_of = lru_cache(maxsize=8)(Package)


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


@dataclass(frozen=True, slots=True)
class Sample:
    """Which files are taken of the order of hashes."""

    seed: str
    files: int
    # Of one package or repository, so that copies of one file do not decide.
    of_tree: int
    # Sites of each operator: where the files have less, the next ones are searched for its sites.
    least: int


Task = tuple[Path, Path, tuple[str, ...]]


def plant(
    folders: Sequence[Path], sample: Sample, operators: Sequence[Operator], jobs: int
) -> Iterator[list[Outcome]]:
    """What became of every fault that was planted in each chosen file."""
    trees: Counter[Path] = Counter()
    order = training_files(folders, sample.seed)
    names = tuple(operator.name for operator in operators)
    first: list[Task] = []
    while not sample.files or len(first) < sample.files:
        path, folder, _ = next(order, (None, None, None))
        if path is None or folder is None:
            break
        trees[tree_of(path, folder)] += 1
        if not sample.of_tree or trees[tree_of(path, folder)] <= sample.of_tree:
            first.append((path, folder, names))
    planted_at: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        for own in pool.map(outcomes_of, first):
            planted_at.update(one.operator.name for one in own)
            yield own
        yield from pool.map(
            outcomes_of, further(order, trees, sample, operators, planted_at), chunksize=1
        )


def tree_of(path: Path, folder: Path) -> Path:
    return folder / path.relative_to(folder).parts[0]


def further(
    order: Iterator[tuple[Path, Path, Code]],
    trees: Counter[Path],
    sample: Sample,
    operators: Sequence[Operator],
    planted_at: Counter[str],
) -> Iterator[Task]:
    """Later files of the order, each with the operators that still lack sites and have one here."""
    sites = Counter(planted_at)
    for path, folder, code in order:
        lacking = [one for one in operators if sites[one.name] < sample.least]
        if not lacking:
            return
        tree = tree_of(path, folder)
        if sample.of_tree and trees[tree] >= 3 * sample.of_tree:
            continue
        code.package = package_of(project_of(path, folder))
        found = {one.name: sum(1 for _ in planted(code, one)) for one in lacking}
        sites.update(found)
        chosen = tuple(name for name, count in found.items() if count)
        if chosen:
            trees[tree] += 1
            yield path, folder, chosen


def outcomes_of(task: Task) -> list[Outcome]:
    path, folder, names = task
    code = read(path)
    assert code is not None
    root = project_of(path, folder)
    code.package = package_of(root)
    operators = [one for one in OPERATORS if one.name in names]
    return [*outcomes(code, root, path.relative_to(folder).as_posix(), operators)]


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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*", help="default: the corpus")
    parser.add_argument("--files", type=int, default=60, help="how many files (0: all)")
    parser.add_argument("--seed", default="", help="another text, another choice of files")
    parser.add_argument(
        "--of-tree", type=int, default=0, help="most files of one package or repository"
    )
    parser.add_argument(
        "--least",
        type=int,
        default=0,
        help="sites wanted of each operator: later files are searched for those that lack some",
    )
    parser.add_argument("--operators", default="", help="names or codes to plant (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--keep", type=Path, help="a folder for the texts that survive")
    parser.add_argument("--blind", action="store_true", help="print no survivors, only the table")
    parser.add_argument("--write", action="store_true", help="keep the page in results/")
    return parser.parse_args()


def default_folders() -> list[Path]:
    repositories = trees_folder(cache_folder())
    return [packages_folder(), *([repositories] if repositories.is_dir() else [])]


def main() -> int:
    options = arguments()
    try:
        folders = [one.resolve() for one in options.folders or default_folders()]
    except CorpusError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    chosen = {word for word in options.operators.split(",") if word}
    operators = [one for one in OPERATORS if not chosen or {one.name, one.code} & chosen]
    sample = Sample(options.seed, options.files, options.of_tree, options.least)
    results: list[Outcome] = []
    files, began = 0, time.monotonic()
    for own in plant(folders, sample, operators, options.jobs):
        files += 1
        results += own
        for one in own:
            if not one.found and not options.blind:
                print(f"{one.operator.name}: {one.file}:{one.row} {one.where}", flush=True)
                if options.keep:
                    keep(options.keep, one)
    print("\n".join(table(results, operators)))
    print(f"mean of the operators' shares: {mean_share(results)}")
    print(f"{files} files, {time.monotonic() - began:.0f} seconds")
    if options.write:
        RESULTS.mkdir(exist_ok=True)
        day = datetime.date.today().isoformat()
        target = RESULTS / f"recall-{day}{'-' * bool(sample.seed)}{sample.seed}.md"
        how = description(sample, [one.name for one in folders], files, results)
        target.write_text(page(results, operators, how), encoding="utf-8")
        print(f"written to {target}")
    return 0


def description(
    sample: Sample, folders: Sequence[str], files: int, results: Sequence[Outcome]
) -> list[str]:
    options = f"--seed '{sample.seed}' --files {sample.files}"
    options += f" --of-tree {sample.of_tree} --least {sample.least}"
    return [
        f"`python bench/plant.py {options} --write` over {' and '.join(folders)}:",
        f"{files} files with training loops, chosen by the hash of seed and path; each fault",
        "planted alone, in place; found if its rule has a new finding in the function, its callers",
        f"or what these call. The mean of the operators' shares is {mean_share(results)}.",
    ]


def keep(folder: Path, outcome: Outcome) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    stem = outcome.file.replace("/", "+").removesuffix(".py")
    target = folder / f"{outcome.operator.name}+{outcome.row}+{stem}.py"
    target.write_text(outcome.text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
