"""The parts of the benchmarks that decide: marks, the ledger, scores and targets."""

from __future__ import annotations

import io
import re
import sys
import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import cases
import corpus
import ledger
import repositories
import rivals
import speed

FIND = "retained-loss"


def spots(*lines: int) -> list[cases.Spot]:
    return [cases.Spot(FIND, line) for line in lines]


@pytest.mark.parametrize(
    ("text", "expected", "allowed", "silent"),
    [
        ("# expect: retained-loss @ line 7\n", [cases.Spot(FIND, 7)], [], False),
        ("#expect: retained-loss @ lines 7-9\n", [cases.Spot(FIND, 7, 9)], [], False),
        ("x = 1  # also-ok: retained-loss @ line 3\n", [], [cases.Spot(FIND, 3)], False),
        ("# expect: none\n", [], [], True),
        ("# expected: retained-loss @ line 7\n", [], [], False),
        ("# expect: nonesuch @ line 2\n", [cases.Spot("nonesuch", 2)], [], False),
    ],
)
def test_marks(
    text: str, expected: list[cases.Spot], allowed: list[cases.Spot], silent: bool
) -> None:
    case = cases.parse_case(Path("a.py"), text)
    assert (list(case.expected), list(case.allowed), case.silent) == (expected, allowed, silent)


@pytest.mark.parametrize(
    ("marks", "found", "missing", "unexpected"),
    [
        ("# expect: retained-loss @ line 7", spots(7), [], []),
        ("# expect: retained-loss @ line 7", spots(7, 7), [], []),
        ("# expect: retained-loss @ line 7", spots(8), spots(7), spots(8)),
        ("# expect: retained-loss @ line 7", [], spots(7), []),
        ("# expect: retained-loss @ lines 7-9", spots(9), [], []),
        ("# expect: retained-loss @ lines 7-9", spots(10), [cases.Spot(FIND, 7, 9)], spots(10)),
        ("# also-ok: retained-loss @ line 7", spots(7), [], []),
        ("# also-ok: retained-loss @ line 7", [], [], []),
        ("# expect: none", spots(7), [], spots(7)),
        ("# expect: rule-not-run @ line 7", [], [], []),
    ],
)
def test_judgement(
    marks: str,
    found: list[cases.Spot],
    missing: list[cases.Spot],
    unexpected: list[cases.Spot],
) -> None:
    judgement = cases.judge(cases.parse_case(Path("a.py"), marks), found, {FIND})
    assert (list(judgement.missing), list(judgement.unexpected)) == (missing, unexpected)


def seen(line: int, text: str = "total += loss", file: str = "a.py") -> ledger.Seen:
    return ledger.Seen("pkg", "1.0", file, line, "OOM102", ledger.line_digest(text))


def row(line: int, verdict: str = "right", text: str = "total += loss") -> ledger.Row:
    return seen(line, text).judged(verdict, "reason")


@pytest.mark.parametrize(
    ("findings", "rows", "pairs", "unjudged", "gone"),
    [
        ([seen(5)], [row(5)], [(5, 5)], [], []),
        ([seen(9)], [row(5)], [(9, 5)], [], []),
        ([seen(5, "  total += loss ")], [row(5)], [(5, 5)], [], []),
        ([seen(5, "total += other")], [row(5)], [], [5], [5]),
        ([seen(5, file="b.py")], [row(5)], [], [5], [5]),
        ([seen(5), seen(8)], [row(8)], [(8, 8)], [5], []),
        ([seen(6), seen(9)], [row(5), row(8)], [(6, 5), (9, 8)], [], []),
        ([seen(3), seen(5)], [row(5), row(8)], [(5, 5), (3, 8)], [], []),
        ([], [row(5), row(8)], [], [], [5, 8]),
    ],
)
def test_comparison(
    findings: list[ledger.Seen],
    rows: list[ledger.Row],
    pairs: list[tuple[int, int]],
    unjudged: list[int],
    gone: list[int],
) -> None:
    found = ledger.compare(findings, rows)
    assert [(one.line, two.line) for one, two in found.judged] == pairs
    assert [one.line for one in found.unjudged] == unjudged
    assert [one.line for one in found.gone] == gone


def test_another_version_keeps_its_verdicts() -> None:
    newer = ledger.Seen("pkg", "2.0", "a.py", 50, "OOM102", ledger.line_digest("total += loss"))
    assert not ledger.compare([newer], [row(5)]).unjudged


@pytest.mark.parametrize(
    ("verdicts", "share", "passes"),
    [
        ("right " * 19 + "wrong", 0.95, True),
        ("right " * 18 + "wrong", 18 / 19, False),
        ("right " * 18 + "debatable", 18 / 19, False),
        ("", 1.0, True),
    ],
)
def test_precision(verdicts: str, share: float, passes: bool) -> None:
    given = verdicts.split()
    assert ledger.precision(Counter(given)) == pytest.approx(share)
    rows = [row(line, verdict) for line, verdict in enumerate(given, 1)]
    found = ledger.compare([seen(one.line) for one in rows], rows)
    assert (ledger.check(found) == 0) is passes


def test_an_unjudged_finding_fails_the_check() -> None:
    assert ledger.check(ledger.compare([seen(1)], [])) == 1


def test_ledger_round_trip() -> None:
    rows = (row(5), row(8, "wrong"))
    assert ledger.read_ledger(ledger.format_ledger(reversed(rows))) == rows


@pytest.mark.parametrize(
    "line",
    [
        "pkg\t1.0\ta.py\t5\tOOM102\tabcd\tright",
        "pkg\t1.0\ta.py\t5\tOOM102\tabcd\tmaybe\treason",
        "pkg\t1.0\ta.py\t5\tOOM102\tabcd\tright\t ",
    ],
)
def test_malformed_ledger_rows_are_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2"):
        ledger.read_ledger(f"package\n{line}\n")


def test_verdicts_of_a_reader() -> None:
    text = "# a comment\n\nabcd1234 wrong the caller   holds no_grad\n"
    assert ledger.read_verdicts(text) == {"abcd1234": ("wrong", "the caller holds no_grad")}
    with pytest.raises(ValueError, match="line 1"):
        ledger.read_verdicts("abcd1234 wrong")


def test_the_sample_is_a_tenth_and_always_the_same() -> None:
    assert [line for line in range(60) if ledger.is_sampled(seen(line))] == [4, 12, 15, 50]
    assert 150 < sum(ledger.is_sampled(seen(line)) for line in range(2000)) < 250


@pytest.mark.parametrize(
    ("package", "rule", "asked"),
    [("pkg", "OOM308", 100), ("owner/name", "OOM308", 40), ("owner/name", "OOM102", 100)],
)
def test_crowds_of_findings_are_sampled(package: str, rule: str, asked: int) -> None:
    crowd = [replace(seen(line), package=package, rule=rule) for line in range(100)]
    chosen = ledger.asked_for(crowd)
    assert len(chosen) == asked and chosen == ledger.asked_for(crowd[::-1])
    assert set(ledger.compare(crowd, []).unjudged) == chosen


def test_headers_lead_from_the_finding_to_the_module() -> None:
    lines = ["class A:", "    x = 1", "    def f(self):", "        if x:", "            y()"]
    assert ledger.headers(lines, 5) == [1, 3, 4]


def test_findings_are_read_from_the_json_report(tmp_path: Path) -> None:
    code = tmp_path / "pkg-1.0" / "a" / "b.py"
    code.parent.mkdir(parents=True)
    code.write_text("x = 1\fy\ntotal += loss\n")
    place = {"row": 2, "column": 1}
    step = {"message": "backward", "filename": str(code), "location": place}
    report = {"code": "OOM102", "filename": str(code), "message": "m", "location": place}
    tree = ledger.Tree("pkg", "1.0", tmp_path / "pkg-1.0")
    found = ledger.to_seen({**report, "path": [step]}, [tree])
    assert found == replace(seen(2, file="a/b.py"), message="m", trail=("b.py:2 backward",))
    broken = {**report, "code": "invalid-syntax", "path": []}
    assert ledger.to_seen(broken, [tree]) is None
    assert ledger.to_seen({**report, "path": []}, [replace(tree, folder=tmp_path / "b")]) is None


def test_rival_scores() -> None:
    marked = cases.parse_case(
        Path("a.py"), "# expect: missing-zero-grad @ line 4\n# expect: retained-loss @ line 9"
    )
    reports = rivals.grouped(
        [
            ("/x/a.py", "TG003", 3),  # right rule, another line
            ("/x/a.py", "TG001", 9),  # right
            ("/x/a.py", "TG002", 5),  # false alarm
            ("/x/a.py", "TG008", 5),  # advice
            ("/x/a.py", "TOR102", 5),  # another subject
        ]
    )
    found = rivals.score("t", [marked], reports, frozenset({"missing-zero-grad", FIND}))
    assert (found.expected, found.on_the_line, found.in_the_file) == (2, 1, 2)
    assert [report.names for _, report in found.false_alarms] == [("eval-without-no-grad",)]


@pytest.mark.parametrize(
    ("value", "limit", "floor", "reached"),
    [(4.9, 5, False, True), (5.1, 5, False, False), (31, 30, True, True), (29, 30, True, False)],
)
def test_targets(value: float, limit: float, floor: bool, reached: bool) -> None:
    assert speed.Target("x", value, limit, "x", floor).reached is reached


def test_memory_of_children_is_summed() -> None:
    holder = "b = b'x' * 10**8; import time; time.sleep(0.5)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {holder!r}])"
    found = speed.run([sys.executable, "-c", parent], Path.cwd(), (0,), watch=True)
    assert 10**8 < found.resident < 3 * 10**8


def test_a_failing_command_is_no_measurement() -> None:
    with pytest.raises(corpus.CorpusError, match="ended with 3"):
        speed.run([sys.executable, "-c", "raise SystemExit(3)"], Path.cwd(), (0, 1))


def archive_with(path: Path, names: list[str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 6
            tar.addfile(info, io.BytesIO(b"x = 1\n"))
        link = tarfile.TarInfo("pkg-1.0/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)


def test_unpacking_keeps_code_and_licences_and_never_leaves_its_folder(tmp_path: Path) -> None:
    names = ["a.py", "b/c.pyi", "setup.cfg", "LICENSE", "data.bin", "../../out.py", "../out.py"]
    (tmp_path / "archives").mkdir()
    archive = tmp_path / "archives" / "pkg-1.0.tar.gz"
    archive_with(archive, [f"pkg-1.0/{name}" for name in names] + ["/tmp/oomlint-out.py"])
    package = corpus.Package("pkg", "sdist", "1.0", archive.name, corpus.digest(archive))
    folder = corpus.unpack(package, tmp_path)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"a.py", "b/c.pyi", "setup.cfg", "LICENSE"}
    assert not list(tmp_path.rglob("out.py"))
    assert corpus.contents(folder) == corpus.Contents(1, 1, False, False)


def test_the_lock_pins_everything_and_names_no_host() -> None:
    packages = corpus.read_lock()
    assert len(packages) >= 18
    assert all(one.version and len(one.sha256) == 64 and one.archive for one in packages)
    assert "://" not in corpus.LOCK.read_text("utf-8")


def test_listed_repositories_are_pinned_and_sorted() -> None:
    listed = repositories.read_list()
    assert len(listed) >= 40
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", one.name) for one in listed)
    assert all(re.fullmatch(r"[0-9a-f]{40}", one.commit) for one in listed)
    assert [one.name for one in listed] == sorted({one.name for one in listed}, key=str.lower)


def test_a_repository_is_unpacked_from_the_archive_of_its_commit(tmp_path: Path) -> None:
    one = replace(repositories.read_list()[0], commit="0" * 40)
    (tmp_path / "archives").mkdir()
    archive_with(tmp_path / "archives" / one.archive, ["name-0/a.py", "name-0/b.bin"])
    folder = repositories.unpack(one, tmp_path)
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["a.py"]
    assert list(repositories.present(repositories.trees_folder(tmp_path))) == [
        (repositories.read_list()[0], folder)
    ]


def test_a_changed_archive_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "pkg-1.0.tar.gz"
    archive_with(archive, ["pkg-1.0/a.py"])
    package = corpus.Package("pkg", "sdist", "1.0", archive.name, "0" * 64)
    with pytest.raises(corpus.CorpusError, match="not the archive"):
        corpus.checked(package, archive)


def test_a_tree_digest_sees_names_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    first = corpus.tree_digest(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")
    second = corpus.tree_digest(tmp_path)
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({first, second, corpus.tree_digest(tmp_path)}) == 3
