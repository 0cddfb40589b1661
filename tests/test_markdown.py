"""Markdown: its blocks of Python are one module, at their own places, and nothing else changes."""

from __future__ import annotations

import ast
import json
import re
import textwrap
import time
from pathlib import Path

import pytest
from fixture_files import FixtureFile, all_files
from shell import call, write

import oomlint
from oomlint.fixer import fix_text
from oomlint.linter import check_source
from oomlint.markdown import read_markdown
from oomlint.settings import Layer, settings_for
from oomlint.source import from_bytes

KEPT = "kept += loss\n"


@pytest.mark.parametrize(
    ("document", "python"),
    [
        ("```python\nx = 1\n```\n", ["x = 1"]),
        ("```py\nx = 1\n```", ["x = 1"]),
        ("~~~ Python3 title='a'\nx = 1\n~~~~\n", ["x = 1"]),
        ("```{python}\nx = 1\n```\n", ["x = 1"]),
        ("````python\nx = '''\n```\n'''\n````\n", ["x = '''", "```", "'''"]),
        ("```python\nx = 1\n```\ntext\n```python\ny = x\n```\n", ["x = 1", "y = x"]),
        ("```python\r\nx = 1\r\n```\r\n", ["x = 1"]),
        ("```python\nnever closed = \n", []),
        ("```python\nx = 1\n", ["x = 1"]),
        ("- item\n\n  ```python\n  x = 1\n  ```\n", ["if 1:", "x = 1"]),
        ("- item\n\n\t```python\n\tx = 1\n\t```\n", ["if 1:", "x = 1"]),
        ("  ```python\nx = 1\n  ```\n", []),
        ("```pycon\n>>> x\n```\n", []),
        ("```python\n>>> x\n1\n```\n", []),
        ("```python-repl\nx\n```\n", []),
        ("```bash\nx = 1\n```\n```python\ny = 1\n```\n", ["y = 1"]),
        ("````markdown\n```python\nx = 1\n```\n````\n", []),
        ("x = 1\n", []),
        ("", []),
    ],
)
def test_blocks(document: str, python: list[str]) -> None:
    found = read_markdown(document)
    assert [line.strip() for line in found.text.splitlines() if line.strip()] == python
    assert len(found.text) == len(document)
    assert re.findall(r"[\r\n]", found.text) == re.findall(r"[\r\n]", document)
    compile(found.text, "document", "exec")


def test_reading_takes_linear_time() -> None:
    def seconds(blocks: int) -> float:
        document = "é\n```python\nx = 1\n```\n" * blocks
        started = time.process_time()
        assert len(read_markdown(document).blocks) == blocks
        return time.process_time() - started

    few = min(seconds(1_000) for _ in range(3))
    assert seconds(8_000) < 24 * few


def test_which_files_are_read(project: Path) -> None:
    text = f"# 😀 Title\n\n```python\n{KEPT}```\n"
    write(project, {"a.md": text, "sub/b.qmd": text, "c.py": "x = 1\n"})
    concise = ("-q", "--output-format", "concise")
    assert call("check", *concise).out == ""
    found = "a.md:4:1: FAK101 [*] kept is flagged\n"
    assert call("check", "a.md", *concise).out == found
    assert call("check", "--extension", "md", *concise).out == found
    assert call("check", "--extension", "md,qmd", *concise).out.count("FAK101") == 2
    write(project, {"oomlint.toml": 'extension = [".md"]\n'})
    assert call("check", *concise).out == found
    wrong = call("check", "--extension", "txt")
    assert wrong.code == 2
    assert "--extension: `extension` must be one of `md`, `markdown`, `qmd`" in wrong.err


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_fix_changes_code_and_nothing_else(project: Path, newline: str, bom: bytes) -> None:
    text = (
        f"# Kept 😀 `kept += loss`\n\n- a\n\n  ```python\n  {KEPT}  ```\n\n```python\n{KEPT}```\n"
    )
    text += "\n```text\nkept += loss\n```  \n"
    data = bom + text.replace("\n", newline).encode()
    write(project, {"a.md": data})
    diff = call("check", "--diff", "a.md")
    assert diff.code == 1
    assert "-  kept += loss" in diff.out and "+kept += loss.detach()" in diff.out
    assert (project / "a.md").read_bytes() == data
    assert call("check", "--fix", "a.md").code == 0
    lines = data.split(b"\n")
    for row in (5, 9):
        lines[row] = lines[row].replace(b"loss", b"loss.detach()")
    assert (project / "a.md").read_bytes() == b"\n".join(lines)
    assert call("check", "--fix", "a.md").out == "All checks passed!\n"


def test_stdin_and_comments(project: Path) -> None:
    text = f"```python\n{KEPT}kept += b  # oomlint: ignore[FAK101]\n```\n"
    answer = call("check", "--stdin-filename", "a.md", "--fix", "-", stdin=text.encode())
    assert answer.out == text.replace("+= loss", "+= loss.detach()")
    write(project, {"a.md": text})
    assert call("check", "--add-noqa", "a.md").code == 0
    assert "kept += loss  # oomlint: ignore[FAK101]\n" in (project / "a.md").read_text()


def test_what_is_above_the_code_comes_into_its_first_block() -> None:
    found = read_markdown("# Title\n\n```python\nx = 1\n```\n")
    after = found.edited([(0, 0, "import y\n")])
    assert after is not None
    assert after.document == "# Title\n\n```python\nimport y\nx = 1\n```\n"
    assert found.edited([(2, 3, "t")]) is None
    assert found.edited([(len(found.document), len(found.document), "y = 1\n")]) is None


def test_unreadable(project: Path) -> None:
    write(project, {"a.md": b"```python\nx = '\xff'\n```\n"})
    answer = call("check", "a.md", "--output-format", "concise")
    assert answer.code == 1
    assert "unreadable: is not valid utf-8; save it as UTF-8" in answer.out


def test_json_and_api(project: Path) -> None:
    text = f"é\n\n```python\n{KEPT}```\n"
    write(project, {"a.md": text})
    (found,) = json.loads(call("check", "a.md", "--output-format", "json").out)
    assert found["cell"] is None
    assert found["location"] == {"row": 4, "column": 1}
    fixed = oomlint.fix(text, project / "a.md", config={"select": ["FAK101"]})
    assert fixed.text == text.replace("loss", "loss.detach()")


SAMPLE = [f for f in all_files() if f.hits and f.path.parent.name == f.folder][::12]


def has_long_text(code: str) -> bool:
    """Whether a text, or an import of all names, stands where indentation would change it."""
    return any(
        (isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno)
        or (isinstance(node, ast.ImportFrom) and node.names[0].name == "*")
        for node in ast.walk(ast.parse(code))
    )


@pytest.mark.parametrize("indent", ["", "   "])
@pytest.mark.parametrize("file", SAMPLE, ids=lambda file: file.name)
def test_fixtures_in_a_block_are_judged_as_files(
    file: FixtureFile, indent: str, tmp_path: Path
) -> None:
    """With all that their fixes change, in a block of the text and in one of a list."""
    if indent and has_long_text(file.text):
        pytest.skip("indentation would change a text of several lines")
    if indent and "\n# %%" in file.text:
        pytest.skip("cells begin in the first column")
    (tmp_path / "pyproject.toml").touch()
    settings = settings_for(tmp_path / "a.md")
    settings = type(settings)(
        root=tmp_path, base=tmp_path, layers=(Layer("test", select=("ALL",)),), preview=True
    )
    head = f"# Title\n\n{indent}```python\n"
    body = textwrap.indent(file.text, indent)
    document = f"{head}{body}\n{indent}```\n"
    source = from_bytes(tmp_path / "a.md", document.encode())
    result = check_source(source, settings)
    found = sorted((finding.row - 3, finding.code) for finding in result.findings)
    assert found == file.hits
    fixed = fix_text(source, settings, unsafe=True).source
    assert fixed.document.startswith("# Title\n\n") and fixed.document.endswith(f"{indent}```\n")
