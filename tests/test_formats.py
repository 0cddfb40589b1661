"""The formats that other tools read: their exact shape, places and escapes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
from shapes import GITLAB, RDJSON, SARIF, faults, keys_of
from shell import call, write

from oomlint.keys import MACHINE_FORMATS
from oomlint.linter import FileResult
from oomlint.reports import rdjson, sarif
from oomlint.reports.report import Report, Texts
from oomlint.rule import Finding, Severity, Waypoint

# Tabs, characters of two, three and four bytes, a combining one, and the same line twice.
HARD = (
    "x = 1\nif x:\n\ts = '語😀e\u0301'; kept += é\n\tkept += b\n\tkept += b\n\ts = '😀', use_it\n"
)
AWKWARD = "src/a, b: 100%;é].py"


@pytest.fixture
def hard(project: Path) -> Path:
    """A project with awkward text, awkward names, every severity and a file that is no Python."""
    write(project, {AWKWARD: HARD, "b.py": "wrong\nhint\n", "c.py": "def f(:\n"})
    return project


def shown(style: str, *arguments: str) -> str:
    answer = call("check", "--output-format", style, "--extend-select", "FAK9", *arguments)
    assert answer.err == ""
    return answer.out


@pytest.mark.parametrize(
    ("style", "out"),
    [
        ("full", "All checks passed!\n"),
        ("concise", "All checks passed!\n"),
        ("grouped", "All checks passed!\n"),
        ("json", "[]\n"),
        ("json-lines", ""),
        ("github", ""),
        ("gitlab", "[]\n"),
        ("pylint", ""),
        ("azure", ""),
    ],
)
def test_clean_run(project: Path, style: str, out: str) -> None:
    write(project, {"a.py": "x = 1\n"})
    assert call("check", "--output-format", style).out == out


def test_grouped(hard: Path) -> None:
    write(hard, {"b.py": "wrong\nx = 1, hint\n" + "\n" * 8 + "wrong\n"})
    assert shown("grouped").split("\n\n") == [
        "b.py:\n"
        "   1:1 FAK102 wrong is flagged\n"
        "   2:8 FAK901 hint is flagged\n"
        "  11:1 FAK102 wrong is flagged",
        "c.py:\n  1:7 invalid-syntax: invalid syntax",
        f"{AWKWARD}:\n"
        "  3:14 FAK101 [*] kept is flagged\n"
        "  4:2  FAK101 [*] kept is flagged\n"
        "  5:2  FAK101 [*] kept is flagged\n"
        "  6:11 FAK104 [*] use_it is flagged",
        "Found 8 problems: 3 errors, 3 warnings, 1 advice, 1 file not checked.\n"
        "[*] 4 fixable with `--fix`; 2 more with `--fix --unsafe-fixes` (training changes).\n",
    ]


def test_github_escapes_and_notes(hard: Path) -> None:
    lines = shown("github").splitlines()
    place = f"{hard}/src/a%2C b%3A 100%25;é].py"
    name = "src/a, b: 100%25;é].py"
    assert lines[0] == (
        f"::warning title=oomlint (FAK102),file={hard}/b.py,line=1,col=1,endLine=1,endColumn=6::"
        "b.py:1:1: FAK102 wrong is flagged%0A  path: b.py:1 starts%0A  path: b.py:1 ends"
        "%0A  help: Fix wrong"
    )
    assert lines[1].startswith("::notice title=oomlint (FAK901),")
    assert lines[2] == (
        f"::error title=oomlint (invalid-syntax),file={hard}/c.py,line=1,col=7,endLine=1,"
        "endColumn=8::c.py:1:7: invalid-syntax invalid syntax"
    )
    assert lines[3].startswith(
        f"::error title=oomlint (FAK101),file={place},line=3,col=14,endLine=3,endColumn=23::"
        f"{name}:3:14: FAK101 kept is flagged%0A"
    )


def test_github_gives_no_columns_to_several_lines(project: Path) -> None:
    write(project, {"a.py": "a = call(\n    1)\n"})
    out = shown("github", "--select", "FAK111")
    assert out.startswith(
        f"::warning title=oomlint (FAK111),file={project}/a.py,line=1,endLine=2::a.py:1:5: "
    )


def test_azure(hard: Path) -> None:
    place = f"{hard}/src/a, b: 100%AZP25%3Bé%5D.py"
    assert shown("azure").splitlines()[:4] == [
        f"##vso[task.logissue type=warning;sourcepath={hard}/b.py;linenumber=1;columnnumber=1;"
        "code=FAK102;]wrong is flagged",
        f"##vso[task.logissue type=warning;sourcepath={hard}/b.py;linenumber=2;columnnumber=1;"
        "code=FAK901;]hint is flagged",
        f"##vso[task.logissue type=error;sourcepath={hard}/c.py;linenumber=1;columnnumber=7;"
        "code=invalid-syntax;]invalid syntax",
        f"##vso[task.logissue type=error;sourcepath={place};linenumber=3;columnnumber=14;"
        "code=FAK101;]kept is flagged",
    ]


def test_pylint(hard: Path) -> None:
    assert shown("pylint").splitlines()[:4] == [
        "b.py:1: [FAK102] wrong is flagged",
        "b.py:2: [FAK901] hint is flagged",
        "c.py:1: [invalid-syntax] invalid syntax",
        f"{AWKWARD}:3: [FAK101] kept is flagged",
    ]


def test_json_lines_are_the_objects_of_json(hard: Path) -> None:
    lines = shown("json-lines").splitlines()
    assert [json.loads(line) for line in lines] == json.loads(shown("json"))
    assert len(lines) == 7


def test_gitlab(hard: Path) -> None:
    found = json.loads(shown("gitlab"))
    assert list(faults(found, GITLAB)) == []
    assert [item["severity"] for item in found] == ["minor", "info", *["major"] * 4, "minor"]
    assert len({item["fingerprint"] for item in found}) == 7, "equal ones would become one"
    found[3].pop("fingerprint")
    assert found[3] == {
        "check_name": "FAK101",
        "description": "FAK101: kept is flagged",
        "severity": "major",
        "location": {
            "path": AWKWARD,
            "positions": {"begin": {"line": 3, "column": 14}, "end": {"line": 3, "column": 23}},
        },
    }


def test_names_start_at_the_checkout(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(project, {"lib/a.py": "wrong\n"})
    monkeypatch.chdir(project / "lib")

    def place() -> str:
        return str(json.loads(shown("gitlab"))[0]["location"]["path"])

    assert place() == "a.py"
    monkeypatch.setenv("CI_PROJECT_DIR", str(tmp_path / "elsewhere"))
    assert place() == "a.py", "a checkout that does not hold the working folder says nothing"
    monkeypatch.setenv("CI_PROJECT_DIR", str(tmp_path))
    assert place() == "project/lib/a.py"
    monkeypatch.delenv("CI_PROJECT_DIR")
    (project / ".git").mkdir()
    assert place() == "lib/a.py"


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ("import x\n\n\n" + HARD, 4),
        (HARD.replace("\n\t", "\n    "), 4),
        (HARD.replace("'😀'", "'other'"), 3),
        (HARD.replace("\tkept += b\n", "", 1), 3),
        (HARD.replace("\n", "\r\n"), 4),
        (HARD + "\tkept += b\n", 4),
    ],
)
def test_fingerprints_stay_when_lines_move(project: Path, after: str, same: int) -> None:
    def fingerprints() -> set[str]:
        return {item["fingerprint"] for item in json.loads(shown("gitlab"))}

    write(project, {"a.py": HARD})
    before = fingerprints()
    assert len(before) == 4
    write(project, {"a.py": after})
    assert len(before & fingerprints()) == same


def test_fingerprints_are_those_of_sarif(hard: Path) -> None:
    results = json.loads(shown("sarif"))["runs"][0]["results"]
    in_sarif = [result["partialFingerprints"]["oomlint/v1"] for result in results]
    assert in_sarif == [item["fingerprint"] for item in json.loads(shown("gitlab"))]


def spliced(text: Any, starts: list[int], edits: list[tuple[dict[str, int], Any]]) -> Any:
    """Applies (rows and columns from 1, content) to text or bytes, the last first."""
    for span, content in sorted(edits, key=lambda e: (e[0]["line"], e[0]["column"]), reverse=True):
        first = starts[span["line"] - 1] + span["column"] - 1
        last = starts[span["end_line"] - 1] + span["end_column"] - 1
        text = text[:first] + content + text[last:]
    return text


def test_rdjson_counts_bytes(hard: Path) -> None:
    document = json.loads(shown("rdjson"))
    assert list(faults(document, RDJSON)) == []
    assert [item["severity"] for item in document["diagnostics"]] == (
        ["WARNING", "INFO", *["ERROR"] * 4, "WARNING"]
    )
    found = [item for item in document["diagnostics"] if item["location"]["path"].endswith("].py")]
    data = HARD.encode()
    start = data.splitlines(keepends=True)[2].index(b"kept") + 1
    assert found[0]["location"]["range"]["start"] == {"line": 3, "column": start}
    assert found[0]["relatedLocations"][1]["location"] == found[0]["location"]
    edits = []
    for suggestion in (part for item in found for part in item["suggestions"]):
        end = {f"end_{key}": value for key, value in suggestion["range"]["end"].items()}
        edits.append(({**suggestion["range"]["start"], **end}, suggestion["text"].encode()))
    starts = [0, *(match.end() for match in re.finditer(b"\n", data))]
    assert len(edits) == 5
    fixed = spliced(data, starts, edits)
    assert call("check", "--fix").code == 1
    assert fixed == (hard / AWKWARD).read_bytes()


def test_sarif(hard: Path) -> None:
    document = json.loads(shown("sarif"))
    assert list(faults(document, SARIF)) == []
    run = document["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    results = run["results"]
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in results)
    assert [result["level"] for result in results] == (
        ["warning", "note", *["error"] * 4, "warning"]
    )
    uri = results[3]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert (uri, unquote(uri)) == ("src/a%2C%20b%3A%20100%25%3B%C3%A9%5D.py", AWKWARD)
    assert run["originalUriBaseIds"]["%SRCROOT%"]["uri"] == f"file://{hard}/"
    edits = []
    for change in (c for r in results[3:] for f in r["fixes"] for c in f["artifactChanges"]):
        assert change["artifactLocation"]["uri"] == uri
        for part in change["replacements"]:
            span = part["deletedRegion"]
            place = {"line": span["startLine"], "column": span["startColumn"]}
            place |= {"end_line": span["endLine"], "end_column": span["endColumn"]}
            edits.append((place, part["insertedContent"]["text"]))
    assert len(edits) == 5
    fixed = spliced(HARD, [0, *(match.end() for match in re.finditer("\n", HARD))], edits)
    assert call("check", "--fix").code == 1
    assert fixed == (hard / AWKWARD).read_text()


def test_sarif_of_a_clean_run_lists_the_rules_that_are_on(project: Path) -> None:
    write(project, {"a.py": "x = 1\n"})
    document = json.loads(shown("sarif", "--ignore", "FAK102,OOM2"))
    assert list(faults(document, SARIF)) == []
    run = document["runs"][0]
    assert run["results"] == []
    rules = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert {"FAK101", "FAK901", "OOM101"} <= rules.keys()
    assert not {"FAK102", "FAK201", "OOM201"} & rules.keys()
    own = rules["OOM101"]
    assert own["fullDescription"]["text"] != own["shortDescription"]["text"]
    assert "## Example" in own["help"]["markdown"]
    assert own["helpUri"].endswith("/docs/rules/oom101-eval-without-no-grad.md")
    assert own["properties"]["tags"] == ["pytorch", "graphs and tensors kept alive"]


def test_witness_path_through_another_file(project: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other lib/c.py"
    write(project, {"a.py": "call()\n", "lib/b.py": "\n\n    '😀'; loss.backward()\n"})
    write(tmp_path, {"other lib/c.py": "step()\n"})
    waypoints = (
        Waypoint("called", 1, 1, 1, 7),
        Waypoint("scaled backward", 3, 10, 3, 25, str(project / "lib/b.py")),
        Waypoint("step", 1, 1, 1, 7, str(elsewhere)),
    )
    found = Finding("OOM999", "x", "said", Severity.ERROR, 0, 6, 1, 1, 1, 7, None, waypoints)
    report = Report((FileResult(project / "a.py", (found,)),), Texts(), False)

    document = json.loads("".join(sarif.render(report)))
    assert list(faults(document, SARIF)) == []
    result = document["runs"][0]["results"][0]
    related = result["relatedLocations"]
    assert [point["id"] for point in related] == [1, 2, 3]
    assert [point["message"]["text"] for point in related] == ["called", "scaled backward", "step"]
    places = [point["physicalLocation"] for point in related]
    assert [place["artifactLocation"] for place in places] == [
        {"uri": "a.py", "uriBaseId": "%SRCROOT%"},
        {"uri": "lib/b.py", "uriBaseId": "%SRCROOT%"},
        {"uri": f"file://{tmp_path}/other%20lib/c.py"},
    ]
    assert places[1]["region"]["startColumn"] == 10
    flow = result["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["physicalLocation"] for step in flow] == places

    document = json.loads("".join(rdjson.render(report)))
    point = document["diagnostics"][0]["relatedLocations"][1]
    assert point == {
        "message": "scaled backward",
        "location": {
            "path": str(project / "lib/b.py"),
            "range": {"start": {"line": 3, "column": 13}, "end": {"line": 3, "column": 28}},
        },
    }


# What Jenkins' junit-10.xsd lets the elements have that are written here.
JUNIT: dict[str, dict[str, set[str]]] = {
    "testsuites": {"required": set(), "optional": set("name time tests failures errors".split())},
    "testsuite": {
        "required": set("name tests failures errors".split()),
        "optional": set(
            "group time skipped timestamp hostname id package file log url version".split()
        ),
    },
    "testcase": {"required": {"name"}, "optional": {"time", "classname", "group"}},
    "failure": {"required": set(), "optional": {"type", "message"}},
    "error": {"required": set(), "optional": {"type", "message"}},
}


def test_junit(hard: Path) -> None:
    top = ElementTree.fromstring(shown("junit"))
    assert top.attrib == {
        "name": "oomlint",
        "tests": "7",
        "failures": "6",
        "errors": "1",
    }
    suites = list(top)
    assert [suite.get("name") for suite in suites] == [
        str(hard / name) for name in ("b.py", "c.py", AWKWARD)
    ]
    assert [suite.get("tests") for suite in suites] == ["2", "1", "4"]
    case = suites[2][0]
    assert case.attrib == {
        "name": "org.oomlint.FAK101",
        "classname": str(hard / AWKWARD).removesuffix(".py"),
    }
    assert case[0].tag == "failure"
    assert case[0].attrib == {"type": "FAK101", "message": "kept is flagged"}
    assert (case[0].text or "").splitlines() == [
        "line 3, col 14, kept is flagged",
        f"path: {AWKWARD}:1 starts",
        f"path: {AWKWARD}:3 ends",
        "help: Fix kept",
    ]
    assert suites[1][0][0].tag == "error"
    for element in top.iter():
        known = JUNIT[element.tag]
        assert known["required"] <= set(element.attrib) <= known["required"] | known["optional"]


def test_junit_of_names_that_xml_cannot_hold(project: Path) -> None:
    write(project, {'a\x01<&".py': "wrong\n"})
    suite = ElementTree.fromstring(shown("junit"))[0]
    assert suite.get("name") == f'{project}/a\ufffd<&".py'


def test_junit_of_a_clean_run_is_one_passing_test(project: Path) -> None:
    write(project, {"a.py": "x = 1\n"})
    top = ElementTree.fromstring(shown("junit"))
    assert (top.get("tests"), top.get("failures"), top.get("errors")) == ("1", "0", "0")
    assert [case.attrib for case in top.iter("testcase")] == [
        {"name": "No errors found", "classname": "oomlint"}
    ]
    assert not list(top.iter("failure"))


@pytest.mark.parametrize("style", MACHINE_FORMATS)
def test_output_file_holds_what_stdout_would(hard: Path, style: str) -> None:
    out = shown(style, "--color", "always")
    assert "\x1b[" not in out and "Found" not in out
    assert shown(style, "-o", "report.txt") == ""
    assert (hard / "report.txt").read_text() == out


RUFF = Path(sys.executable).parent / "ruff"


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize(
    ("style", "ours_alone"),
    [
        ("json", {"path", "effect"}),
        ("gitlab", set()),
        ("rdjson", {"relatedLocations", "severity"}),
        ("sarif", {"relatedLocations", "codeFlows", "partialFingerprints", "ruleIndex"}),
    ],
)
def test_objects_have_the_keys_that_readers_of_ruff_know(
    hard: Path, style: str, ours_alone: set[str]
) -> None:
    write(hard, {"c.py": "import os\nwrong\n"})
    command = [str(RUFF), "check", "--isolated", "--no-cache", "--select", "F401"]
    ran = subprocess.run(
        [*command, "--output-format", style, "c.py"], capture_output=True, text=True, check=False
    )

    def first(document: Any) -> Any:
        if style == "rdjson":
            document = document["diagnostics"]
        if style == "sarif":
            document = document["runs"][0]["results"]
        return keys_of(document)

    theirs, ours = first(json.loads(ran.stdout)), first(json.loads(shown(style)))
    assert ours.keys() - theirs.keys() == ours_alone
    if style == "rdjson":
        # Rules of third parties have no page.
        theirs["code"].pop("url")
    for key, inner in theirs.items():
        if style == "sarif" and key in ("locations", "fixes"):
            continue  # ours are relative to the checkout, which adds a key
        assert ours[key] == inner, key


@pytest.mark.skipif(not RUFF.exists(), reason="ruff is not installed")
@pytest.mark.parametrize("style", ["github", "azure", "pylint", "grouped", "concise"])
def test_lines_have_the_form_that_readers_of_ruff_know(project: Path, style: str) -> None:
    write(project, {"a.py": "import os; wrong\n"})
    command = [str(RUFF), "check", "-q", "--isolated", "--no-cache", "--select", "F401"]
    ran = subprocess.run(
        [*command, "--output-format", style, "a.py"], capture_output=True, text=True, check=False
    )

    def form(text: str) -> list[str]:
        """What is left of a line when all that differs by tool and finding is taken out."""
        text = re.sub(r"(?<=::error )|(?<=::warning )", "", text)
        text = re.sub(r"error|warning", "LEVEL", text.splitlines()[-2 if style == "grouped" else 0])
        text = re.sub(r"(F401|FAK102)( \[\*\])?", "CODE", text).replace("oomlint", "ruff")
        text = re.sub(r"`os` imported but unused.*|wrong is flagged.*", "SAID", text)
        return re.sub(r"\d+", "0", text).split()

    assert form(ran.stdout) == form(call("check", "-q", "--output-format", style).out)


@pytest.mark.parametrize(("root", "uri"), [("/", "file:///"), ("/a b/é", "file:///a%20b/%C3%A9/")])
def test_sarif_base_is_a_folder(root: str, uri: str) -> None:
    document = json.loads("".join(sarif.render(Report((), Texts(), False, root=Path(root)))))
    assert document["runs"][0]["originalUriBaseIds"] == {"%SRCROOT%": {"uri": uri}}
