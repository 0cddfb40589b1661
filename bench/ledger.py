"""Keeps the verdicts of readers on what oomlint finds in public code, and checks precision."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

from corpus import CorpusError, cache_folder, read_lock, tree_digest
from repositories import present, trees_folder
from tools import check_json, packages_folder

LEDGER = Path(__file__).with_name("ledger.tsv")
VERDICTS = ("right", "wrong", "debatable")
WANTED_PRECISION = 0.95
BEFORE, AFTER = 8, 4
CODE = re.compile(r"[A-Z]{3}\d{3}")

# Repositories have hundreds of findings of these, many of them copies of one line of code.
SAMPLED_RULES = frozenset({"OOM101", "OOM308", "OOM404", "OOM406"})
SAMPLE = 40


@dataclass(frozen=True, slots=True)
class Tree:
    """The code of one package or repository, and where it lies."""

    package: str
    version: str
    folder: Path


@dataclass(frozen=True, slots=True)
class Row:
    """One judged finding; `digest` is of the stripped source line, so that rows survive moves."""

    package: str
    version: str
    file: str
    line: int
    rule: str
    digest: str
    verdict: str
    reason: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.package, self.file, self.rule, self.digest


@dataclass(frozen=True, slots=True)
class Seen:
    """One finding of the present run; `trail` is its witness path, a line of text an event."""

    package: str
    version: str
    file: str
    line: int
    rule: str
    digest: str
    message: str = ""
    trail: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.package, self.file, self.rule, self.digest

    @property
    def identity(self) -> str:
        """Eight hexadecimal digits by which a reader's verdict names the finding."""
        text = "\0".join((*self.key, str(self.line)))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def judged(self, verdict: str, reason: str) -> Row:
        place = (self.package, self.version, self.file, self.line, self.rule, self.digest)
        return Row(*place, verdict, reason)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ledger against one run: what met, findings without a row, rows without a finding."""

    judged: tuple[tuple[Seen, Row], ...]
    unjudged: tuple[Seen, ...]
    gone: tuple[Row, ...]


def line_digest(line: str) -> str:
    return hashlib.sha256(line.strip().encode("utf-8", "replace")).hexdigest()[:8]


def read_ledger(text: str) -> tuple[Row, ...]:
    """Raises ValueError, which names the line, for a malformed row."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if number == 1 or not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(fields(Row)) or cells[6] not in VERDICTS or not cells[7].strip():
            raise ValueError(
                f"ledger.tsv line {number}: eight cells, a verdict and a reason needed"
            )
        package, version, file, row, *rest = cells
        rule, digest, verdict, reason = rest
        rows.append(Row(package, version, file, int(row), rule, digest, verdict, reason))
    return tuple(rows)


def format_ledger(rows: Iterable[Row]) -> str:
    ordered = sorted(rows, key=lambda row: (row.package.lower(), row.file, row.line, row.rule))
    lines = [tuple(field.name for field in fields(Row)), *map(astuple, ordered)]
    return "".join("\t".join(map(str, cells)) + "\n" for cells in lines)


def compare(findings: Iterable[Seen], rows: Iterable[Row]) -> Comparison:
    """Pairs findings with rows of the same file, rule and source line, first those of equal row."""
    open_rows: defaultdict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda one: one.line):
        open_rows[row.key].append(row)
    judged: list[tuple[Seen, Row]] = []
    moved: list[Seen] = []
    for finding in sorted(findings, key=lambda one: (*one.key, one.line)):
        same = [row for row in open_rows[finding.key] if row.line == finding.line]
        if same:
            open_rows[finding.key].remove(same[0])
            judged.append((finding, same[0]))
        else:
            moved.append(finding)
    unjudged: list[Seen] = []
    for finding in moved:
        if open_rows[finding.key]:
            judged.append((finding, open_rows[finding.key].pop(0)))
        else:
            unjudged.append(finding)
    wanted = asked_for([*(finding for finding, _ in judged), *unjudged])
    unjudged = [finding for finding in unjudged if finding in wanted]
    gone = tuple(row for left in open_rows.values() for row in left)
    return Comparison(tuple(judged), tuple(unjudged), gone)


def precision(verdicts: Counter[str]) -> float:
    """The share of `right` among all judged findings (a debatable one is not right); 1 for none."""
    total = verdicts.total()
    return verdicts["right"] / total if total else 1.0


def is_sampled(finding: Seen) -> bool:
    """The same tenth of all findings on every machine."""
    return int(hashlib.sha256(finding.identity.encode()).hexdigest(), 16) % 10 == 0


def read_verdicts(text: str) -> dict[str, tuple[str, str]]:
    """Lines `ID VERDICT REASON`; raises ValueError, which names the line, for any other."""
    verdicts = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        words = line.split(maxsplit=2)
        if len(words) != 3 or words[1] not in VERDICTS:
            raise ValueError(f"line {number}: `ID {'|'.join(VERDICTS)} REASON` expected: {line}")
        verdicts[words[0]] = (words[1], " ".join(words[2].split()))
    return verdicts


def asked_for(findings: Sequence[Seen]) -> frozenset[Seen]:
    """What a reader must judge: all, but of some rules a fixed choice among the repositories'."""
    crowds: defaultdict[str, list[Seen]] = defaultdict(list)
    for finding in findings:
        if "/" in finding.package and finding.rule in SAMPLED_RULES:
            crowds[finding.rule].append(finding)
    left_out = set()
    for crowd in crowds.values():
        crowd.sort(key=lambda one: hashlib.sha256(one.identity.encode()).digest())
        left_out.update(crowd[SAMPLE:])
    return frozenset(set(findings) - left_out)


def is_finding(row: dict[str, Any]) -> bool:
    """Not so for a file that could not be read or parsed."""
    return CODE.fullmatch(row["code"]) is not None


def to_seen(row: dict[str, Any], trees: Sequence[Tree]) -> Seen | None:
    """One object of `--output-format json`; None for a file that is no Python of ours."""
    path = Path(row["filename"])
    tree = next((one for one in trees if path.is_relative_to(one.folder)), None)
    if tree is None or not is_finding(row):
        return None
    line = row["location"]["row"]
    source = source_lines(path)
    return Seen(
        package=tree.package,
        version=tree.version,
        file=path.relative_to(tree.folder).as_posix(),
        line=line,
        rule=row["code"],
        digest=line_digest(source[line - 1]),
        message=row["message"],
        trail=tuple(trail_line(one) for one in row.get("path") or ()),
    )


def trail_line(waypoint: dict[str, Any]) -> str:
    place = f"{Path(waypoint['filename']).name}:{waypoint['location']['row']}"
    return f"{place} {waypoint['message']}"


def source_lines(path: Path) -> list[str]:
    # str.splitlines also splits at form feeds, which are no line ends in Python.
    return re.split(r"\r\n|\r|\n", path.read_bytes().decode("utf-8", "replace"))


def headers(lines: Sequence[str], row: int) -> list[int]:
    """The rows of the def, class, with and loop lines that the 1-based row stands under."""
    opened = []
    indent = len(lines[row - 1]) - len(lines[row - 1].lstrip())
    for number in range(row - 1, 0, -1):
        line = lines[number - 1]
        depth = len(line) - len(line.lstrip())
        if not line.strip() or depth >= indent or line.lstrip().startswith(("#", ")", "]", "}")):
            continue
        indent = depth
        opened.append(number)
    return opened[::-1]


def describe(finding: Seen, trees: Sequence[Tree], before: int, after: int) -> str:
    """What a reader needs to judge a finding, without any verdict."""
    tree = next(one for one in trees if one.package == finding.package)
    path = tree.folder / finding.file
    lines = source_lines(path)
    first, last = max(1, finding.line - before), min(len(lines), finding.line + after)
    shown = [row for row in headers(lines, finding.line) if row < first]
    shown += range(first, last + 1)
    text = [f"=== {finding.identity} {finding.rule} {path}:{finding.line}", finding.message]
    text += [f"    path: {step}" for step in finding.trail]
    text += [f"{'>' if row == finding.line else ' '}{row:5} {lines[row - 1]}" for row in shown]
    return "\n".join(text) + "\n"


def find_trees(repositories: Path) -> tuple[Tree, ...]:
    """The packages of the corpus, and such listed repositories as lie in the folder."""
    root = packages_folder()
    packages = [Tree(one.name, one.version, root / one.folder) for one in read_lock()]
    return (*packages, *(Tree(one.name, one.version, path) for one, path in present(repositories)))


def run_check(
    repositories: Path, trees: Sequence[Tree], reuse: bool, rules: Sequence[str]
) -> tuple[Seen, ...]:
    """The findings of one run over all trees, once for each rule and line; no file may change."""
    last = cache_folder() / "last-run.json"
    if reuse and last.is_file():
        rows = json.loads(last.read_text("utf-8"))
    else:
        roots = [packages_folder(), *([repositories] if repositories.is_dir() else [])]
        select = ("--select", ",".join(rules)) if rules else ()
        rows = [row for root in roots for row in unchanged_by_check(root, select)]
        last.write_text(json.dumps(rows), "utf-8")
        unread = Counter(row["code"] for row in rows if not is_finding(row))
        listed = "".join(f", {count} {kind}" for kind, count in sorted(unread.items()))
        print(f"no crash, no file changed{listed}", file=sys.stderr)
    seen = (to_seen(row, trees) for row in rows)
    unique = {(*one.key, one.line): one for one in seen if one is not None}
    return tuple(one for one in unique.values() if not rules or one.rule.startswith(tuple(rules)))


def unchanged_by_check(root: Path, select: Sequence[str]) -> list[dict[str, Any]]:
    before = tree_digest(root)
    rows, complaints = check_json(root, *select)
    if tree_digest(root) != before:
        raise CorpusError(f"a file below {root} changed during the run")
    print(complaints, file=sys.stderr, end="")
    return rows


def show_table(comparison: Comparison) -> bool:
    """Prints counts and precision a rule and in all; returns whether the aim is reached."""
    verdicts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, row in comparison.judged:
        verdicts[row.rule][row.verdict] += 1
    unjudged = Counter(finding.rule for finding in comparison.unjudged)
    gone = Counter(row.rule for row in comparison.gone)
    columns = ("right", "wrong", "debatable")
    print(f"{'rule':8}{''.join(f'{name:>11}' for name in columns)} precision  unjudged   gone")
    for rule in sorted({*verdicts, *unjudged, *gone}):
        counts = "".join(f"{verdicts[rule][name]:11}" for name in columns)
        share = f"{precision(verdicts[rule]):9.1%}" if verdicts[rule] else "        -"
        print(f"{rule:8}{counts} {share} {unjudged[rule]:9} {gone[rule]:6}")
    total = sum(verdicts.values(), Counter[str]())
    counts = "".join(f"{total[name]:11}" for name in columns)
    share = f"{precision(total):9.1%}" if total else "        -"
    print(f"{'all':8}{counts} {share} {unjudged.total():9} {gone.total():6}")
    return not comparison.unjudged and precision(total) >= WANTED_PRECISION


def check(comparison: Comparison) -> int:
    for finding in sorted(comparison.unjudged, key=lambda one: (one.package, one.file, one.line)):
        place = f"{finding.package} {finding.version} {finding.file}:{finding.line}"
        print(f"unjudged {finding.identity} {finding.rule} {place}")
    for row in comparison.gone:
        print(f"gone ({row.verdict}) {row.rule} {row.package}/{row.file}:{row.line}  {row.reason}")
    return 0 if show_table(comparison) else 1


def judge(comparison: Comparison, rows: Sequence[Row], text: str) -> int:
    """Enters a reader's verdicts; one for a judged finding replaces what stood there."""
    verdicts = read_verdicts(text)
    waiting = {one.identity: one for one in comparison.unjudged}
    standing = {seen.identity: (seen, row) for seen, row in comparison.judged}
    unknown = [identity for identity in verdicts if identity not in {*waiting, *standing}]
    replaced = {standing[one][1] for one in verdicts if one in standing}
    added = [
        (waiting.get(one) or standing[one][0]).judged(*verdict)
        for one, verdict in verdicts.items()
        if one not in unknown
    ]
    LEDGER.write_text(format_ledger([*(row for row in rows if row not in replaced), *added]))
    print(f"{len(added)} verdicts entered, {len(replaced)} of them in place of earlier ones")
    if unknown:
        print(f"error: no such finding: {', '.join(unknown)}", file=sys.stderr)
    return 2 if unknown else 0


def compare_readers(comparison: Comparison, text: str) -> int:
    """Holds a fresh reader's verdicts against the ledger; 1 unless they agree on all."""
    fresh = read_verdicts(text)
    standing = {seen.identity: (seen, row) for seen, row in comparison.judged}
    disputes = 0
    for identity, (verdict, reason) in fresh.items():
        if identity not in standing:
            raise ValueError(f"{identity} is no judged finding of the last run")
        seen, row = standing[identity]
        if verdict != row.verdict:
            disputes += 1
            print(f"{identity} {seen.rule} {seen.package}/{seen.file}:{seen.line}")
            print(f"    ledger {row.verdict}: {row.reason}\n    fresh  {verdict}: {reason}")
    share = Counter(verdict for verdict, _ in fresh.values())
    print(f"{len(fresh)} judged again, {disputes} differ; fresh precision {precision(share):.1%}")
    return 1 if disputes else 0


def refresh(comparison: Comparison, rows: Sequence[Row], drop_gone: bool) -> int:
    """Brings versions and line numbers of the rows up to the present corpus."""
    found = {row: seen for seen, row in comparison.judged}
    updated = [
        replace(row, version=found[row].version, line=found[row].line) if row in found else row
        for row in rows
        if not (drop_gone and row in comparison.gone)
    ]
    LEDGER.write_text(format_ledger(updated))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reuse", action="store_true", help="take the findings of the last run")
    parser.add_argument("--rules", default="", help="codes or families, with commas: OOM1,OOM301")
    parser.add_argument(
        "--repositories",
        type=Path,
        default=trees_folder(cache_folder()),
        help="a folder of owner+name folders, instead of what bench/repositories.py brought",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="compare with the ledger; 1 if unjudged or under 95 %%")
    for name, words in (
        ("todo", "print what nobody has judged, with its source"),
        ("sample", "print a fixed tenth of all findings, with no verdicts, for a fresh reader"),
        ("wrong", "print what was judged wrong or debatable, with its source"),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("--before", type=int, default=BEFORE, help="lines above")
        command.add_argument("--after", type=int, default=AFTER, help="lines below")
        command.add_argument("--package", default="", help="of this package alone")
        command.add_argument("--limit", type=int, default=None, help="at most so many")
    for name, words in (
        ("judge", "enter verdicts: lines `ID right|wrong|debatable REASON`, from a file or -"),
        ("agree", "hold a fresh reader's verdicts, in the same form, against the ledger"),
    ):
        commands.add_parser(name, help=words).add_argument("verdicts")
    command = commands.add_parser("refresh", help="update versions and lines in the ledger")
    command.add_argument("--drop-gone", action="store_true", help="forget rows without a finding")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    rules = tuple(word for word in options.rules.split(",") if word)
    rows = read_ledger(LEDGER.read_text("utf-8")) if LEDGER.is_file() else ()
    repositories = options.repositories.resolve()
    trees = find_trees(repositories)
    here = {tree.package for tree in trees}
    asked = [row for row in rows if row.package in here and row.rule.startswith(rules or "")]
    reuse = options.reuse or options.command not in ("check", "todo")
    comparison = compare(run_check(repositories, trees, reuse, rules), asked)
    if options.command == "check":
        return check(comparison)
    if options.command in ("judge", "agree"):
        given = options.verdicts
        text = sys.stdin.read() if given == "-" else Path(given).read_text("utf-8")
        if options.command == "judge":
            return judge(comparison, rows, text)
        return compare_readers(comparison, text)
    if options.command == "refresh":
        return refresh(comparison, rows, options.drop_gone)
    if options.command == "todo":
        chosen = list(comparison.unjudged)
    elif options.command == "sample":
        chosen = [seen for seen, _ in comparison.judged if is_sampled(seen)]
    else:
        chosen = [seen for seen, row in comparison.judged if row.verdict != "right"]
    chosen.sort(key=lambda one: (one.package.lower(), one.file, one.line, one.rule))
    wanted = [one for one in chosen if options.package in ("", one.package)][: options.limit]
    for finding in wanted:
        print(describe(finding, trees, options.before, options.after))
    print(f"{len(wanted)} findings", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        os._exit(0)  # the reader has seen enough, as with `| head`
    except (CorpusError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
