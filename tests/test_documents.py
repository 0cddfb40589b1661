"""Every code block and command of the written documentation runs, or is checked, or says why not.

A block behind `<!-- not run: REASON -->` is only looked at as far as its language allows.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import click
import pytest
from shell import call

from oomlint.cli import cli
from oomlint.keys import checked_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
FENCE = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+) -->\s*)?(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n"
    r"(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)
# What only another test can try, by page and language.
ELSEWHERE = {
    ("docs/editors.md", "lua"): "test_lsp_neovim.py",
    ("docs/editors.md", "elisp"): "test_lsp_emacs.py",
    ("README.md", "lua"): "the first one of docs/editors.md",
    ("docs/guard.md", "python"): "test_guard_memory.py runs them as parts of a training script",
    ("README.md", "python"): "a call of guard.attach, as in docs/guard.md",
    ("docs/command-line.md", "zsh"): "test_config.py::test_shell_completion asks click",
    ("docs/command-line.md", "fish"): "test_config.py::test_shell_completion asks click",
}
# Commands that are not run here, by how they begin.
NOT_RUN = {
    "pip install": "it would install packages from the network",
    "scripts/": "they set up or test everything, as CI does",
    "flake8": "test_flake8.py runs it",
    "mkdocs": "scripts/test builds the site",
    "python bench/": "they need real code, other tools or hours; test_bench.py runs their parts",
    "python -m oomlint.docs": "test_docs.py does what it does",
    "oomlint COMMAND": "it stands for any command",
    "oomlint rule ACM": "test_plugins.py installs those rules",
    "oomlint check --select ACM": "test_plugins.py installs those rules",
    "torchrun": "it would run code on several GPUs",
    "cd editors/vscode": "test_editors_vscode.py builds and packages the extension",
    "npm ": "test_editors_vscode.py builds and packages the extension",
    "code --install-extension": "it needs VS Code",
}
# Commands of oomlint that run the user's code or go on for ever: their options are checked.
ONLY_PARSED = {"verify", "measure", "server"}


@dataclass(frozen=True)
class Block:
    page: str
    row: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.row}"


def blocks() -> Iterator[Block]:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            row = text.count("\n", 0, match.start("language")) + 1
            page = path.relative_to(ROOT).as_posix()
            body = re.sub(rf"(?m)^{match['indent']}", "", match["text"])
            yield Block(page, row, match["language"], body, match["reason"])


BLOCKS = list(blocks())


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def commands(block: Block) -> list[str]:
    """What is typed at each prompt, without comments and without what reads its output."""
    joined = block.text.replace("\\\n", " ")
    return [
        re.sub(r"\s+#\s.*$", "", line[2:]).strip()
        for line in joined.splitlines()
        if line.startswith("$ ")
    ]


def inline_commands() -> list[tuple[str, str]]:
    found = []
    for path in PAGES:
        text = FENCE.sub("", path.read_text(encoding="utf-8"))
        for command in re.findall(r"(?<!`)`(oomlint [^`]+)`(?!`)", text):
            found.append((path.relative_to(ROOT).as_posix(), " ".join(command.split())))
    return sorted(set(found))


def parse(command: str) -> None:
    """Raises click's error for a command, an option or a choice that does not exist."""
    words = shlex.split(command)[1:]
    while words and words[0] in ("--isolated", "--color", "--config"):
        words = words[1:] if words[0] == "--isolated" else words[2:]
    context = click.Context(cli)
    if not words or words[0].startswith("-"):
        return
    name, *arguments = words
    found = cli.get_command(context, name)
    assert found is not None, f"there is no command `oomlint {name}`"
    found.make_context(name, arguments, parent=context)


def test_every_block_is_of_a_kind_that_is_tried() -> None:
    tried = {"console", "bash", "python", "toml", "yaml", "json", "text", "diff", "mermaid"}
    others = [
        block
        for block in BLOCKS
        if block.language not in tried
        and not block.reason
        and (block.page, block.language) not in ELSEWHERE
    ]
    assert [str(block) for block in others] == []
    assert len(BLOCKS) > 40


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the example, where commands find what they name."""
    for name in ("train.py", "src/train.py", "tests/train.py"):
        (project / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / "examples" / "train.py", project / name)
    monkeypatch.chdir(project)
    return project


@pytest.mark.parametrize("block", of("console"), ids=str)
def test_commands(block: Block, folder: Path) -> None:
    typed = commands(block)
    assert typed, "a block of the console begins its commands with `$ `"
    for command in typed:
        if any(command.startswith(begin) for begin in NOT_RUN):
            continue
        command = command.partition(" | ")[0]
        assert command.startswith("oomlint "), f"how is `{command}` tried? see NOT_RUN"
        parse(command)
        words = shlex.split(command)
        if block.reason or words[1] in ONLY_PARSED or "--watch" in words:
            continue
        answer = call(*words[1:])
        assert answer.code in (0, 1), f"{command}: {answer.err}"
        assert "error:" not in answer.err


@pytest.mark.parametrize(("page", "command"), inline_commands())
def test_commands_in_the_text_exist(page: str, command: str) -> None:
    if any(command.startswith(begin) for begin in NOT_RUN):
        return
    # Names of what stands for something: FILE, CODE, [PATHS] ...
    command = re.sub(r"[\[\]]|\.\.\.|…", "", command).replace("|", "/")
    try:
        parse(command)
    except click.MissingParameter:
        pass
    except click.UsageError as error:
        if "requires an argument" not in error.format_message():
            pytest.fail(f"{page}: `{command}`: {error.format_message()}")


@pytest.mark.parametrize("block", of("python"), ids=str)
def test_python(block: Block, tmp_path: Path) -> None:
    compile(block.text, str(block), "exec")
    if block.reason or (block.page, "python") in ELSEWHERE:
        return
    if re.search(r"\bimport torch\b", block.text) and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = subprocess.run(
        [sys.executable, "-c", block.text], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("block", of("bash"), ids=str)
def test_shell(block: Block) -> None:
    subprocess.run(["bash", "-n", "-c", block.text], check=True)


@pytest.mark.parametrize("block", of("toml"), ids=str)
def test_settings(block: Block) -> None:
    table = tomllib.loads(block.text).get("tool", {}).get("oomlint")
    if table is not None:
        checked_table(table, str(block), ".", lambda *keys: str(block))


@pytest.mark.parametrize("block", of("json", "yaml"), ids=str)
def test_data(block: Block, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    document = yaml.safe_load(block.text)
    assert isinstance(document, (dict, list))
    if isinstance(document, dict) and "repos" in document and find_spec("pre_commit"):
        from pre_commit.clientlib import load_config

        (tmp_path / "config.yaml").write_text(block.text, encoding="utf-8")
        assert load_config(tmp_path / "config.yaml")["repos"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            headings = re.findall(r"(?m)^#+ (.+)$", target.read_text(encoding="utf-8"))
            slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, f"{link}#{anchor}"


def test_every_page_joins_the_site_once() -> None:
    pytest.importorskip("mkdocs")
    spec = spec_from_file_location("oomlint_site", ROOT / "docs" / "site.py")
    assert spec is not None and spec.loader is not None
    site = module_from_spec(spec)
    spec.loader.exec_module(site)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    pages = sorted([*pages, "index.md", "a-new-one.md"])

    def flat(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        elif isinstance(entry, dict):
            for inner in entry.values():
                yield from flat(inner)
        elif isinstance(entry, list):
            for inner in entry:
                yield from flat(inner)

    nav = site.navigation(pages)
    assert sorted(flat(nav)) == pages
    assert "a-new-one.md" in nav[-1]["Extend"]
