"""docs/editors.md: its configurations are well-formed and start what there is; bench/editor.py."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from oomlint.cli.verify import verify as main
from oomlint.keys import tomllib
from oomlint.lsp.features import build
from oomlint.lsp.options import options

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import editor

ROOT = Path(__file__).resolve().parents[1]
EXTENSION = json.loads((ROOT / "editors" / "vscode" / "package.json").read_text(encoding="utf-8"))
MANUAL = (ROOT / "docs" / "editors.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", MANUAL, re.S)


def test_every_block_is_tried_somewhere() -> None:
    # Lua runs in test_lsp_neovim.py, Emacs Lisp in test_lsp_emacs.py.
    languages = re.findall(r"^```(\w+)$", MANUAL, re.M)
    assert sorted(languages) == [
        "console",
        "elisp",
        "json",
        "json",
        "json",
        "lua",
        "lua",
        "lua",
        "toml",
    ]


def test_helix_is_told_the_command() -> None:
    (text,) = blocks("toml")
    told = tomllib.loads(text)
    server = told["language-server"]["oomlint"]
    assert (server["command"], server["args"]) == ("oomlint", ["server"])
    assert "oomlint" in told["language"][0]["language-servers"]


def test_zed_and_vs_code_are_told_what_the_server_offers() -> None:
    zed, code, _ = (json.loads(text) for text in blocks("json"))
    assert zed["lsp"]["oomlint"]["binary"] == {"path": "oomlint", "arguments": ["server"]}
    kinds: Any = build().protocol.fm.feature_options["textDocument/codeAction"]
    on_save = {**code["[python]"]["editor.codeActionsOnSave"], **code["notebook.codeActionsOnSave"]}
    assert set(on_save) <= set(kinds.code_action_kinds)
    ours = {key: value for key, value in code.items() if key.startswith("oomlint.")}
    declared = EXTENSION["contributes"]["configuration"]["properties"]
    types = {"string": str, "array": list, "object": dict}
    assert all(isinstance(value, types[declared[key]["type"]]) for key, value in ours.items())
    assert options({"oomlint": {"settings": code["oomlint.settings"]}}, Path()).tables()


def test_the_settings_of_the_manual_are_settings(tmp_path: Path) -> None:
    told = json.loads(blocks("json")[-1])
    found = options(told, tmp_path)
    (table,) = found.tables()
    assert set(table.values) == {"extend-select", "per-file-ignores"}
    assert {name for name, _ in found.values} - {"extendSelect", "perFileIgnores"} == {
        "configuration",
        "measure",
    }
    options_of_verify, arguments = found.measuring()
    assert options_of_verify and arguments and found.has_lenses()
    assert main.make_context("verify", [*options_of_verify, "train.py", *arguments])


@pytest.mark.parametrize("lines", [320, 1000])
def test_the_training_file_has_its_lines_and_is_python(lines: int) -> None:
    text = editor.training_file(lines)
    assert text.count("\n") == lines
    assert editor.compiles(text)


def test_the_replayed_edits_are_as_many_as_are_promised() -> None:
    typist = editor.Typist(Nobody(), "a.py", editor.training_file())
    texts = {}
    for count, stroke in enumerate(editor.strokes(typist), 1):
        stroke()
        texts[typist.text] = count
        if count == editor.EDITS:
            break
    assert count == editor.EDITS
    assert len(texts) > 0.9 * editor.EDITS, "nearly all of them make a text that is new"
    sample = list(texts)[::5]
    assert 0 < sum(not editor.compiles(text) for text in sample) < len(sample) / 2


class Nobody:
    """Swallows what a typist sends; only its text is looked at."""

    def change(self, name: str, version: int, *changes: object) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "offset", "place"),
    [("", 0, (0, 0)), ("ab\nc", 2, (0, 2)), ("ab\nc", 3, (1, 0)), ("é😀x\n", 3, (0, 4))],
)
def test_positions_count_utf_16_units(text: str, offset: int, place: tuple[int, int]) -> None:
    assert editor.position(text, offset) == {"line": place[0], "character": place[1]}
