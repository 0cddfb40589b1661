"""Notebooks: which text is checked, how places are named, and that only changed lines change."""

from __future__ import annotations

import ast
import json
import random
import re
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fixture_files import FixtureFile, all_files
from shell import call, write

from oomlint.fixer import fix_text
from oomlint.linter import check_source
from oomlint.magics import python_of
from oomlint.notebook import read_notebook
from oomlint.settings import Layer, settings_for
from oomlint.source import Place, from_bytes

KEPT = "kept += loss\n"
OUTPUT = {
    "data": {"text/plain": ["kept += loss  wrong"], "image/png": "iVBORw0KGgo=\n"},
    "metadata": {},
    "output_type": "display_data",
}


def code(source: str | list[str], **more: Any) -> dict[str, Any]:
    lines = source.splitlines(keepends=True) if isinstance(source, str) else source
    return {
        "cell_type": "code",
        "execution_count": 3,
        "metadata": {"tags": ["wrong"], "é": "\u2028"},
        "outputs": [OUTPUT],
        "source": lines,
        **more,
    }


def markdown(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": source}


def notebook(*cells: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    named = metadata or {"language_info": {"name": "python", "version": "3.12"}}
    return {"cells": list(cells), "metadata": named, "nbformat": 4, "nbformat_minor": 5}


def dumped(*cells: dict[str, Any], **metadata: Any) -> str:
    """As nbformat writes it."""
    whole = notebook(*cells, **metadata)
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def concise(*arguments: str, stdin: bytes = b"") -> str:
    return call("check", "-q", "--output-format", "concise", *arguments, stdin=stdin).out


@pytest.mark.parametrize(
    ("cell", "python"),
    [
        ("x = 1", "x = 1"),
        ("%matplotlib inline\nx", "pass\nx"),
        ("!ls", "0"),
        ("%x", "0"),
        ("%%time\nf()\n", "\nf()\n"),
        ("\n%%capture out\n%%time\nf()", "\n\n\nf()"),
        ("%%time", ""),
        ("%%bash\nls", None),
        ("\n  \n%%html\n<p>", None),
        ("%%writefile a.py\nimport a", None),
        ("%%python\nimport a", None),
        ("%md # x\nsome words", None),
        ("\n%sh\nls", None),
        ("%sql select x\ny", "pass\ny"),
        ("%mdx\ny", "pass\ny"),
        ("# first\n%%time\nf()", "# first\npass\nf()"),
        ("files = !ls *.py\n", "files = ...\n"),
        ("a, b = %sql x\n", "a, b = ...\n"),
        ("d['a'] = !l", "d['a'] = 0"),
        ("y = %time f(1)", "y =       f(1)"),
        ("%time f(1)", "0    ;f(1)"),
        ("if a:\n    %time f(1)\n", "if a:\n    0    ;f(1)\n"),
        ("%time for a in b: c", "pass"),
        ("%time -n f", "pass"),
        ("%timeit f(1)", "pass"),
        ("if a:\n    !rm b\n", "if a:\n    pass\n"),
        ("!pip install \\\n  a \\\n  b\nc", "pass\n\n\nc"),
        ("pip install a==1", "pass"),
        ("cd ..", "pass"),
        ("ls -l", "ls -l"),
        ("cat in x", "cat in x"),
        ("x?", "0"),
        ("torch.nn.Linear??", "pass"),
        ("?x", "0"),
        ("# x?", "# x?"),
        ("x = '?'", "x = '?'"),
        ("/f a", "pass"),
        (",f a", "pass"),
        ("x = (a\n% b)", "x = (a\n% b)"),
        ("x = [\n  # (\n  '(',\n]\n!ls", "x = [\n  # (\n  '(',\n]\n0"),
        ("s = '''\n!ls\n%x\n'''", "s = '''\n!ls\n%x\n'''"),
        ('s = """a\\"""\n!ls\n"""\n!ls', 's = """a\\"""\n!ls\n"""\n0'),
        ("s = 'a\\\n!b'\n!c", "s = 'a\\\n!b'\n0"),
        ("x = a \\\n% b", "x = a \\\n% b"),
        ("f'{x!r} {y=!r}'\nx != y\nx == y", "f'{x!r} {y=!r}'\nx != y\nx == y"),
        ("x %= 3\n\r\n", "x %= 3\n\r\n"),
        ("!é\r\nx", "0\r\nx"),
    ],
)
def test_what_is_no_python_is_blanked_in_place(cell: str, python: str | None) -> None:
    found = python_of(cell)
    # What is blanked is spaces to its end.
    assert (found and re.sub(r" +(?=\r?\n|\Z)", "", found.text)) == python
    if found is not None:
        assert len(found.text) == len(cell)
        kept = [
            (a, b)
            for place, (a, b) in enumerate(zip(cell, found.text, strict=True))
            if not any(start <= place < end for start, end in found.blanked)
        ]
        assert all(a == b for a, b in kept)


BITS = (" ", "\r\n", "x[", "[ ", "'", '"\\', "% \\\n", " -a", "a?", "'''\n", "# %%\n", "\\\n", "=!")


@pytest.mark.parametrize("bit", BITS)
def test_reading_a_cell_takes_linear_time(bit: str) -> None:
    for start in ("x", "pip", "%%time\n", "x ="):
        began = time.process_time()
        python_of(start + bit * 20_000)
        assert time.process_time() - began < 1


def test_what_ipython_allows_at_the_top_of_a_module(project: Path) -> None:
    cells = [code("await a\nasync with b as c:\n    kept += c"), code("[x async for x in d]")]
    write(project, {"n.ipynb": dumped(*cells)})
    assert concise() == "n.ipynb:cell 1:3:5: FAK101 [*] kept is flagged\n"


def test_cells_in_their_order_are_the_module() -> None:
    cells = [markdown("# x"), code("a = 1\nb"), code("%%bash\nls"), code(""), code("%%time\nc\n")]
    source = from_bytes(Path("n.ipynb"), dumped(*cells).encode())
    assert source.text == "a = 1\nb\n\n\n      \nc\n\n"
    assert source.written == "a = 1\nb\n\n\n%%time\nc\n\n"
    places = [source.place(row) for row in (1, 2, 4, 5, 6)]
    assert places == [Place(2, 1), Place(2, 2), Place(4, 1), Place(5, 1), Place(5, 2)]
    assert [str(place) for place in places[:2]] == ["cell 2:1", "cell 2:2"]


def test_findings_name_cell_and_row(project: Path) -> None:
    cells = [markdown("kept += loss"), code("x = 1\n\nkept += loss"), code("%x\nwrong")]
    write(project, {"n.ipynb": dumped(*cells)})
    answer = call("check", "--output-format", "concise", "-q")
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "n.ipynb:cell 2:3:1: FAK101 [*] kept is flagged",
        "n.ipynb:cell 3:2:1: FAK102 wrong is flagged",
    ]


def test_the_full_report_shows_one_cell_as_it_is_written(project: Path) -> None:
    cells = [code("first = 1"), code("%x = y\nkept += loss\n!ls"), code("last")]
    write(project, {"n.ipynb": dumped(*cells)})
    assert call("check").out.splitlines() == [
        "FAK101 error [*] kept is flagged",
        " --> n.ipynb:cell 2:2:1",
        "  |",
        "1 | %x = y",
        "2 | kept += loss",
        "  | ^^^^^^^^^^^^",
        "3 | !ls",
        "  |",
        "  = path: n.ipynb:cell 1:1  starts  first = 1",
        "      ->  n.ipynb:cell 2:2  ends    kept += loss",
        "help: Fix kept",
        "  |",
        "1 | %x = y",
        "  - kept += loss",
        "2 + kept += loss.detach()",
        "3 | !ls",
        "  |",
        "",
        "Found 1 problem: 1 error.",
        "[*] 1 fixable with `--fix`.",
    ]


def test_a_fix_in_another_cell_says_so(project: Path) -> None:
    write(project, {"n.ipynb": dumped(code("first = 1"), code("a = use_it"))})
    shown = call("check").out.split("help: ")[1].splitlines()
    assert shown == [
        "Fix use_it",
        "  |",
        "  ::: cell 1",
        "1 + import tool",
        "2 | first = 1",
        "  ::: cell 2",
        "  - a = use_it",
        "1 + a = tool.it",
        "  |",
        "",
        "Found 1 problem: 1 warning.",
        "[*] 1 fixable with `--fix`.",
    ]


def test_json_counts_rows_in_the_cell(project: Path) -> None:
    write(project, {"n.ipynb": dumped(code("a\n"), code("b\nkept += loss"))})
    (found,) = json.loads(call("check", "--output-format", "json").out)
    assert (found["cell"], found["noqa_row"]) == (2, 2)
    assert found["location"] == {"cell": 2, "row": 2, "column": 1}
    assert found["end_location"] == {"cell": 2, "row": 2, "column": 13}
    (edit,) = found["fix"]["edits"]
    assert edit["location"] == found["location"]
    assert [point["location"]["cell"] for point in found["path"]] == [1, 2]


# Their fix joins two statements of the module.
TOUCHES_TWO_CELLS = ("oom112_ineffective_no_grad",)
# Rules that ask about a module's import, or whether a statement's value is shown.
NOT_IN_NOTEBOOKS = ("oom412", "oom414")
FLAGGED = [
    file
    for file in all_files()
    if file.path.name == "flagged.py" and not file.folder.startswith(NOT_IN_NOTEBOOKS)
]


def statements(text: str) -> list[str]:
    """A text in pieces, one for each statement of the module with the comments above it."""
    lines = text.splitlines(keepends=True)
    starts = [0]
    for node in ast.parse(text).body[1:]:
        rows = [node.lineno, *(part.lineno for part in getattr(node, "decorator_list", []))]
        if min(rows) - 1 > starts[-1]:
            starts.append(min(rows) - 1)
    return ["".join(lines[a:b]) for a, b in pairwise([*starts, len(lines)])]


@pytest.mark.parametrize("file", FLAGGED, ids=lambda file: file.folder[:6])
def test_fixtures_cut_into_cells_are_judged_as_files(file: FixtureFile, tmp_path: Path) -> None:
    pieces = statements(file.text)
    body = dumped(*[code(f"%%time\n{piece}") for piece in pieces])
    source = from_bytes(tmp_path / "train.ipynb", body.encode())
    settings = replace(
        settings_for(source.path), layers=(Layer("the test", select=("ALL",)),), preview=True
    )
    found = []
    result = check_source(source, settings)
    for finding in result.findings:
        place = source.place(finding.row)
        assert place.cell is not None
        before = sum(piece.count("\n") for piece in pieces[: place.cell - 1])
        found.append((before + place.row - 1, finding.code))
    assert (sorted(set(found)), result.problem) == (sorted(set(file.hits)), None)
    fixed = fix_text(source, settings, unsafe=True, found=result)
    assert fixed.source.notebook is not None
    cells = json.loads(fixed.source.notebook.document)["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    assert all(text.startswith("%%time\n") for text in texts)
    wanted = file.golden.read_text() if file.golden.exists() else file.text
    if file.folder not in TOUCHES_TWO_CELLS:
        assert "".join(text.removeprefix("%%time\n") for text in texts) == wanted


# Formats of tools that look into the file itself.
IN_FILE = ("github", "gitlab", "pylint", "junit", "azure", "rdjson", "sarif")


@pytest.mark.parametrize("style", IN_FILE)
def test_tools_are_told_the_line_of_the_file_and_the_cell(project: Path, style: str) -> None:
    body = dumped(code("x"), code('é = "\u2028"\nif é: kept += loss  # "'))
    write(project, {"n.ipynb": body, "bad.ipynb": dumped(code("x\ny z")), "none.ipynb": "{}"})
    row = next(row for row, line in enumerate(body.split("\n"), 1) if line.endswith('# \\""'))
    column = body.split("\n")[row - 1].index("kept") + 1
    out = call("check", "--output-format", style).out
    places = {
        "github": f"line={row},col={column},endLine={row},endColumn={column + 12}::",
        "pylint": f"n.ipynb:{row}: [FAK101] cell 2:2: kept is flagged",
        "azure": f"linenumber={row};columnnumber={column};",
        "junit": f"line {row}, col {column}, cell 2:2: kept is flagged",
        "gitlab": f'{{"line": {row}, "column": {column}}}',
        "rdjson": f'{{"line": {row}, "column": {column}}}',
        "sarif": f'"startLine": {row}, "startColumn": {column},',
    }
    flat = re.sub(r"\n *", " ", out).replace("{ ", "{").replace(" }", "}")
    assert places[style] in flat
    assert "cell 2:2: kept is flagged" in out
    assert "cell 1:2: " in out
    # An edit of the Python is none of the JSON.
    assert '"fixes"' not in out and '"suggestions"' not in out


def test_grouped_names_cells(project: Path) -> None:
    write(project, {"n.ipynb": dumped(code("x"), code(KEPT))})
    out = call("check", "--output-format", "grouped").out
    assert out.startswith("n.ipynb:\n  cell 2:1:1 FAK101 [*] kept is flagged\n")


@pytest.mark.parametrize("form", ["list", "string", "one item"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_every_character_is_found_in_the_json(form: str, ascii_only: bool) -> None:
    texts = ["a\n", 'é😀"\\\t\u2028\r\n\u0001z\n\nend', "%x\n/"]
    cells = [code(text) for text in texts]
    if form != "list":
        cells = [
            {**c, "source": t if form == "string" else [t]}
            for c, t in zip(cells, texts, strict=True)
        ]
    document = json.dumps(notebook(*cells), indent=1, ensure_ascii=ascii_only)
    read = read_notebook(document)
    lines = document.split("\n")
    for cell, text in zip(read.cells, texts, strict=True):
        for index, char in enumerate(text):
            row, column = read.in_document(cell.start + index)
            spelled = json.dumps(char, ensure_ascii=ascii_only)[1:-1]
            assert lines[row - 1][column - 1 :].startswith(spelled)
        row, column = read.in_document(cell.end)
        assert lines[row - 1][column - 1] == '"'


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    pairs = zip(before.splitlines(True), after.splitlines(True), strict=True)
    return [(old.strip(), new.strip()) for old, new in pairs if old != new]


def test_a_fix_changes_only_the_lines_of_the_source(project: Path) -> None:
    cells = [code("%x\n" + KEPT + "é = '\\u00e9'"), markdown("kept += loss"), code(KEPT * 2)]
    before = dumped(*cells)
    write(project, {"n.ipynb": before})
    assert call("check", "--fix", "-q").code == 0
    after = (project / "n.ipynb").read_text()
    assert changed_lines(before, after) == [
        ('"kept += loss\\n",', '"kept += loss.detach()\\n",'),
        ('"kept += loss\\n",', '"kept += loss.detach()\\n",'),
        ('"kept += loss\\n"', '"kept += loss.detach()\\n"'),
    ]


# Spellings that a reader and writer of JSON would not keep.
ODD = [
    '{"nbformat":4,"cells":[{"source":"a\\u0062\\nkept += loss\\n#\\/","cell_type":"code"}]}',
    '\ufeff{ "cells" : [ {"cell_type":"code" , "outputs": [1e5, 1.50, "\\u00e9\\/"],\r\n'
    ' "source" : [ "\\u0061\\n" , "kept += loss\\n",\t"x\\u003d1 #\\ud83d\\ude00" ] } ],'
    ' "x":NaN}\r\n',
    '{"cells":[{"cell_type":"code","source":["# é 😀\\n","kept += loss"],"metadata":{}}],'
    '"metadata":{"b":1,"a":2,"b":3},"nbformat":4}',
    '{"\\u0063ells":[{"cell_type":"code","source":["kept += loss\\n","\\u0023 \\u2028\\n"]},'
    '{"cell_type":"raw","source":"kept += loss"}], "nbformat":4,"nbformat_minor":2}\n\n',
]


@pytest.mark.parametrize("before", ODD)
@pytest.mark.parametrize("through", ["file", "stdin"])
def test_odd_spellings_survive(project: Path, before: str, through: str) -> None:
    data = before.encode()
    wanted = before.replace("kept += loss", "kept += loss.detach()", 1).encode()
    if through == "stdin":
        answer = call("check", "--fix", "-", "--stdin-filename", "n.ipynb", stdin=data)
        assert answer.out.encode() == wanted
    else:
        write(project, {"n.ipynb": data})
        assert call("check", "--fix", "-q").code == 0
        assert (project / "n.ipynb").read_bytes() == wanted
    assert json.loads(wanted.decode("utf-8-sig"))


@pytest.mark.parametrize(
    ("cells", "wanted"),
    [
        # A line more, in front; the last line keeps having no newline.
        (["a = use_it"], ["import tool\na = tool.it"]),
        (["first", "a = use_it\n"], ["import tool\nfirst", "a = tool.it\n"]),
        # A cell magic stays the first line of its cell.
        (["%%time\na = use_it"], ["%%time\nimport tool\na = tool.it"]),
        (["%%time", "a = use_it"], ["%%time\nimport tool", "a = tool.it"]),
        (["%%bash\nls", "%x\na = use_it"], ["%%bash\nls", "import tool\n%x\na = tool.it"]),
        (["", "a = use_it"], ["import tool\n", "a = tool.it"]),
        (["%time a = use_it"], ["import tool\n%time a = tool.it"]),
    ],
)
@pytest.mark.parametrize("form", ["list", "string"])
def test_lines_that_a_fix_adds(
    project: Path, cells: list[str], wanted: list[str], form: str
) -> None:
    def as_json(texts: list[str]) -> str:
        made = [code(text) for text in texts]
        if form == "string":
            made = [{**cell, "source": text} for cell, text in zip(made, texts, strict=True)]
        return dumped(*made)

    write(project, {"n.ipynb": as_json(cells)})
    assert call("check", "--fix", "-q").code == 0
    after = json.loads((project / "n.ipynb").read_text())
    assert ["".join(cell["source"]) for cell in after["cells"]] == wanted
    if cells[0] or form == "string":  # how a list is spelled, an empty one does not say
        assert (project / "n.ipynb").read_text() == as_json(wanted)


@pytest.mark.parametrize("seed", range(20))
def test_random_edits_change_nothing_but_the_sources(seed: int) -> None:
    """Whatever is inserted or deleted inside the code: the rest stays, and so do the magics."""
    rng = random.Random(seed)
    bits = ["a = 1\n", "%x y\n", "é\n", "'''\n!ls\n'''\n", "!z\\\n z\n", "\n", "tail", "\r\n"]
    cells = [code("".join(rng.choices(bits, k=rng.randint(0, 5)))) for _ in range(4)]
    before = json.dumps(notebook(*cells), indent=rng.choice([None, 1]), ensure_ascii=seed % 2 == 0)
    read = read_notebook(before)
    start, end = sorted(rng.choices(range(len(read.text) + 1), k=2))
    inserted = rng.choice(["", "b\n", "ü", "\n"])
    after = read.edited([(start, end, inserted)])
    blanked = any(start < last and first < end for first, last in read.blanked)
    owners = [cell for cell in read.cells if cell.start <= start and end <= cell.end]
    assert (after is None) == (blanked or not owners) or any(
        first < start < last for first, last in read.blanked
    )
    if after is None:
        return
    old, new = json.loads(before), json.loads(after.document)
    (owner,) = owners
    text = read.written[owner.start : start] + inserted + read.written[end : owner.end]
    old["cells"][owner.number - 1]["source"] = new["cells"][owner.number - 1]["source"]
    assert new == old
    stored = "".join(new["cells"][owner.number - 1]["source"])
    assert stored == (text.removesuffix("\n") if owner.padded else text)


def test_a_fix_that_would_break_a_cell_is_refused(project: Path) -> None:
    before = dumped(code("x = 1"), code("broken\n"))
    write(project, {"n.ipynb": before})
    answer = call("check", "--fix", "-q", "--output-format", "concise")
    assert "warning: n.ipynb: the fix of FAK103 at cell 2:1 was refused" in answer.err
    assert (project / "n.ipynb").read_text() == before


def test_the_other_cells_of_a_notebook_with_a_broken_one_are_checked(project: Path) -> None:
    # Whether the comment is needed is not known.
    needed = KEPT + "x = 1  # oomlint: ignore[FAK101]\n"
    cells = [code(KEPT), code("x = # to do\n"), code("%x\n" + needed), code("y = (\n")]
    before = dumped(*cells)
    write(project, {"n.ipynb": before})
    problem = "n.ipynb:cell 2:1:5: invalid-syntax: invalid syntax"
    assert concise().splitlines() == [
        "n.ipynb:cell 1:1:1: FAK101 [*] kept is flagged",
        "n.ipynb:cell 3:2:1: FAK101 [*] kept is flagged",
        problem,
    ]
    fixed = call("check", "--fix", "-q", "--output-format", "concise")
    assert (fixed.code, fixed.out, fixed.err) == (1, f"{problem}\n", "")
    after = (project / "n.ipynb").read_text()
    assert changed_lines(before, after) == [
        ('"kept += loss\\n"', '"kept += loss.detach()\\n"'),
        ('"kept += loss\\n",', '"kept += loss.detach()\\n",'),
    ]


def test_unused_comments_are_removed_from_cells(project: Path) -> None:
    before = dumped(code("%x\nx = 1  # oomlint: ignore[FAK101]\n"))
    write(project, {"n.ipynb": before})
    assert call("check", "--fix", "-q").code == 0
    after = (project / "n.ipynb").read_text()
    assert changed_lines(before, after) == [('"x = 1  # oomlint: ignore[FAK101]\\n"', '"x = 1\\n"')]


def test_diff_is_by_cell(project: Path) -> None:
    before = dumped(code("x"), code("%x\nkept += loss"))
    write(project, {"n.ipynb": before})
    answer = call("check", "--diff")
    assert answer.code == 1
    assert answer.out.splitlines() == [
        "--- n.ipynb:cell 2",
        "+++ n.ipynb:cell 2",
        "@@ -1,2 +1,2 @@",
        " %x",
        "-kept += loss",
        "\\ No newline at end of file",
        "+kept += loss.detach()",
        "\\ No newline at end of file",
    ]
    assert (project / "n.ipynb").read_text() == before


@pytest.mark.parametrize(
    ("comment", "codes"),
    [
        ("kept += a  # noqa: FAK101", ["cell 2:1"]),
        ("kept += a  # oomlint: ignore[FAK101]", ["cell 2:1"]),
        ("# oomlint: noqa: FAK101\nkept += a", []),
        ("kept += a", ["cell 1:1", "cell 2:1"]),
    ],
)
def test_comments_silence_in_cells(project: Path, comment: str, codes: list[str]) -> None:
    write(project, {"n.ipynb": dumped(code(comment), code("kept += a"))})
    places = [line.split(":", 1)[1].rpartition(":1: ")[0] for line in concise().splitlines()]
    assert places == codes


def test_comments_are_added_to_the_lines_of_cells(project: Path) -> None:
    before = dumped(code("x\nkept += a"), code("%%time\nkept += b\n"))
    write(project, {"n.ipynb": before})
    assert call("check", "--add-noqa").err == "Added 2 comments.\n"
    comment = "  # oomlint: ignore[FAK101]"
    after = (project / "n.ipynb").read_text()
    assert changed_lines(before, after) == [
        ('"kept += a"', f'"kept += a{comment}"'),
        ('"kept += b\\n"', f'"kept += b{comment}\\n"'),
    ]
    assert call("check").out == "All checks passed!\n"


def test_a_baseline_knows_findings_in_cells_that_moved(project: Path) -> None:
    write(project, {"n.ipynb": dumped(code(KEPT))})
    assert call("check", "--write-baseline", "known.json").code == 0
    write(project, {"n.ipynb": dumped(markdown("new"), code("%x\n" + KEPT), code("kept += new"))})
    out = call("check", "--baseline", "known.json", "-q", "--output-format", "concise").out
    assert out == "n.ipynb:cell 3:1:1: FAK101 [*] kept is flagged\n"


def test_a_comment_that_means_nothing_is_placed_in_its_cell(project: Path) -> None:
    write(project, {"n.ipynb": dumped(code("x"), code("\nkept += a  # noqa: fak101"))})
    answer = call("check", "-q", "--output-format", "concise")
    assert answer.err.startswith("warning: n.ipynb:cell 2:2: invalid `# noqa`")


def test_folders_hold_notebooks_and_excludes_hold(project: Path) -> None:
    body = dumped(code(KEPT))
    names = ("a.ipynb", ".ipynb_checkpoints/a.ipynb", "sub/b.ipynb")
    write(project, dict.fromkeys(names, body))
    assert [line.split(":")[0] for line in concise().splitlines()] == ["a.ipynb", "sub/b.ipynb"]
    assert [line.split(":")[0] for line in concise("--extend-exclude", "*.ipynb").splitlines()] == (
        []
    )
    assert concise("--force-exclude", "--extend-exclude", "*.ipynb", "a.ipynb") == ""
    assert concise("--per-file-ignores", "*.ipynb:FAK101") == ""


def test_the_cache_knows_notebooks(project: Path) -> None:
    write(project, {"n.ipynb": dumped(code(KEPT)), "r.ipynb": dumped(language_info={"name": "R"})})
    arguments = ("check", "--output-format", "concise", "-v")
    first, second = call(*arguments), call(*arguments)
    assert "2 files, 0 unchanged" in first.err
    assert "2 files, 2 unchanged" in second.err
    assert first.out == second.out
    assert "r.ipynb: is a notebook in R" in second.err


SURROGATE = '{"cells": [{"cell_type": "code", "source": "kept = \'\\ud800\'"}]}'


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "1:1: unreadable: is no notebook: it is empty"),
        ('{"cells": [', "1:1: unreadable: is no notebook: invalid JSON in line 1, column 12: "),
        ("[]", "1:1: unreadable: is no notebook: its JSON is no object"),
        ("{}", "1:1: unreadable: is no notebook: it has no list of cells"),
        ('{"nbformat": 4}', "1:1: unreadable: is no notebook: it has no list of cells"),
        ('{"nbformat": 3, "worksheets": []}', "1:1: unreadable: has the old notebook format 3;"),
        ('{"cells": [1]}', "1:1: unreadable: is no notebook: cell 1 is no object"),
        ('{"cells": [{"cell_type": "code"}]}', "1:1: unreadable: is no notebook: cell 1 has no"),
        (b'{"cells": ["\xff"]}', "1:1: unreadable: is no notebook: it is not valid utf-8"),
        ("[" * 100_000, "1:1: unreadable: is no notebook: its JSON nests too deeply"),
        (dumped(code("x"), code("ok\nx = = 1")), "cell 2:2:5: invalid-syntax: invalid syntax"),
        (dumped(code("x = ["), code("y")), "cell 1:1:5: invalid-syntax: '[' was never closed"),
        (SURROGATE, "cell 1:1:1: invalid-syntax: 'utf-8' codec can't encode"),
        (dumped(code("kept = '\0'")), "cell 1:1:1: invalid-syntax: source code string cannot"),
        (dumped(code("kept = '\ud800'")).encode("utf-8", "surrogatepass"), "1:1: unreadable: is"),
    ],
)
def test_bad_notebooks_are_reported_in_one_line(
    project: Path, content: str | bytes, line: str
) -> None:
    write(project, {"bad.ipynb": content, "good.py": KEPT})
    before = (project / "bad.ipynb").read_bytes()
    answer = call("check", "-q", "--output-format", "concise")
    first, second = answer.out.splitlines()
    assert first.startswith(f"bad.ipynb:{line}")
    assert second == "good.py:1:1: FAK101 [*] kept is flagged"
    assert (answer.code, answer.err) == (1, "")
    assert call("check", "--fix", "-q", "--output-format", "concise").out == f"{first}\n"
    assert (project / "bad.ipynb").read_bytes() == before


@pytest.mark.parametrize(
    ("metadata", "warning"),
    [
        ({"language_info": {"name": "R"}}, "is a notebook in R and was not checked"),
        ({"kernelspec": {"language": "julia"}}, "is a notebook in julia and was not checked"),
        ({"kernelspec": {"language": "python"}}, ""),
        ({"kernelspec": {"name": "conda-env"}}, ""),
    ],
)
def test_other_languages_are_no_fault(
    project: Path, metadata: dict[str, Any], warning: str
) -> None:
    body = dumped(code("kept <- loss" if warning else KEPT), **metadata)
    write(project, {"n.ipynb": body})
    named = call("check", "-q", "--output-format", "concise")
    stdin = call("check", "--stdin-filename", "n.ipynb", "-q", "-", stdin=body.encode())
    for answer in (named, stdin):
        assert (answer.code, bool(answer.out)) == ((0, False) if warning else (1, True))
        assert answer.err == (f"warning: n.ipynb: {warning}\n" if warning else "")


def test_cells_of_other_languages_are_left_out(project: Path) -> None:
    cells = [code("SELECT kept", metadata={"vscode": {"languageId": "sql"}}), code(KEPT)]
    write(project, {"n.ipynb": dumped(*cells)})
    assert concise() == "n.ipynb:cell 2:1:1: FAK101 [*] kept is flagged\n"


@pytest.mark.parametrize(
    ("place", "status", "said"),
    [
        ("cell 3:2", 0, "n.ipynb:4\n    loss.backward()\n"),
        ("cell 3:2:5", 0, "lines are counted over all cells: cell 1 from 1, cell 3 from 3"),
        ("4", 2, "error: n.ipynb is a notebook; name a cell as in `n.ipynb:cell 1:4`"),
        ("cell 2:1", 2, "error: n.ipynb: cell 2 is no Python, or there is no such cell"),
        ("cell 3:3", 2, "error: n.ipynb:cell 3: there is no line 3"),
        ("cell 3:1", 2, "on this line; the next one stands on cell 3:2"),
    ],
)
def test_explain_takes_a_place_in_a_cell(project: Path, place: str, status: int, said: str) -> None:
    cells = [code("import torch"), markdown("x"), code("# next\nloss.backward()")]
    write(project, {"n.ipynb": dumped(*cells)})
    answer = call("explain", f"n.ipynb:{place}")
    assert answer.code == status
    assert said in answer.out + answer.err


def test_explain_knows_cells_only_in_notebooks(project: Path) -> None:
    write(project, {"a.py": "x = 1\n"})
    answer = call("explain", "a.py:cell 1:1")
    assert (answer.code, answer.err) == (
        2,
        "error: a.py is no notebook; name a line as in `a.py:1`\n",
    )


def test_no_cells_is_a_clean_notebook(project: Path) -> None:
    write(project, {"n.ipynb": dumped()})
    assert call("check").out == "All checks passed!\n"
