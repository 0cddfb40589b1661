"""Settings, folders and files around the documents of a session, and how a session is reached."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import CAPABILITIES, OOMLINT, PATIENCE_S, Client, place

sys.path.append(str(Path(__file__).resolve().parents[1] / "bench"))

import editor

from oomlint.lsp.measuring import NO_TORCH

KEPT = "kept = 0\nfor value in range(9):\n    kept += value\n"
WRONG = "print(wrong)\n"
ASKS: dict[str, Any] = {
    **CAPABILITIES,
    "workspace": {**CAPABILITIES["workspace"], "configuration": True, "workspaceFolders": True},
}


def codes(found: list[dict[str, Any]]) -> list[str]:
    return [item["code"] for item in found]


def shown(client: Client) -> str:
    message = client.wait(lambda message: message.get("method") == "window/showMessage")
    said: str = message["params"]["message"]
    return said


@pytest.fixture
def pushing(client: Client) -> Iterator[Client]:
    """The shared client, for tests that change its settings."""
    yield client
    client.tell("workspace/didChangeConfiguration", {"settings": {}})


# What the client says, and the findings that KEPT and WRONG together have then.
OPTIONS: dict[str, tuple[object, list[str]]] = {
    "nothing": ({}, ["TST001", "TST002"]),
    "a list": ({"settings": {"ignore": ["TST001"]}}, ["TST002"]),
    "without an outer name": ({"select": ["kept-value"]}, ["TST001"]),
    "under the name of the server": ({"oomlint": {"ignore": ["TST002"]}}, ["TST001"]),
    "a name of two words": ({"settings": {"perFileIgnores": {"a.py": ["TST002"]}}}, ["TST001"]),
    "null": ({"settings": {"ignore": None}}, ["TST001", "TST002"]),
}


@pytest.mark.parametrize("case", OPTIONS.values(), ids=OPTIONS)
def test_the_editor_can_say_settings(pushing: Client, case: tuple[object, list[str]]) -> None:
    settings, wanted = case
    pushing.open("a.py", KEPT + WRONG)
    pushing.tell("workspace/didChangeConfiguration", {"settings": settings})
    assert codes(pushing.published("a.py", 1)) == wanted


def test_the_editor_can_say_settings_on_its_start(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('ignore = ["TST002"]\n')
    ignores = {"b.py": ["TST001"]}
    options = {"settings": {"configuration": "other.toml", "perFileIgnores": ignores}}
    with Client(tmp_path, options=options) as client:
        assert codes(client.open("a.py", KEPT + WRONG)) == ["TST001"]
        assert client.open("b.py", KEPT + WRONG) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"selekt": ["TST001"]}, "the editor's settings: unknown key `selekt`"),
        ({"ignore": "TST001"}, "the editor's settings: `ignore` must be a list of strings"),
        ({"configuration": "no.toml"}, "the editor's settings: `configuration` names no file"),
        ({"outputFormat": "json"}, "`output-format` means nothing in an editor"),
    ],
)
def test_wrong_settings_of_the_editor_are_told(
    pushing: Client, settings: dict[str, object], said: str
) -> None:
    pushing.tell("workspace/didChangeConfiguration", {"settings": settings})
    assert pushing.open("a.py", KEPT) == []
    assert said in shown(pushing)


def test_each_folder_has_settings_of_its_own(tmp_path: Path) -> None:
    one, two, inner = tmp_path / "one", tmp_path / "two", tmp_path / "one" / "inner"
    inner.mkdir(parents=True)
    two.mkdir()
    (two / "oomlint.toml").write_text('ignore = ["TST002"]\n')
    said: dict[str, object] = {
        one.as_uri(): {"ignore": ["TST001"]},
        two.as_uri(): None,
        inner.as_uri(): {"ignore": ["TST001", "TST002"]},
    }

    def settings(params: Any) -> object:
        assert {item["section"] for item in params["items"]} == {"oomlint"}
        return [said[item["scopeUri"]] for item in params["items"]]

    replies = {"workspace/configuration": settings}
    with Client(tmp_path, ASKS, folders=[one, two], replies=replies) as client:
        assert codes(client.open("one/a.py", KEPT + WRONG)) == ["TST002"]
        assert codes(client.open("two/a.py", KEPT + WRONG)) == ["TST001"]
        assert codes(client.open("one/inner/a.py", KEPT + WRONG)) == ["TST002"]
        folder = {"uri": inner.as_uri(), "name": "inner"}
        event = {"event": {"added": [folder], "removed": []}}
        client.tell("workspace/didChangeWorkspaceFolders", event)
        assert codes(client.published("one/inner/a.py", 1)) == []
        said[one.as_uri()] = {}
        client.published("one/a.py", 1)
        client.tell("workspace/didChangeConfiguration", {"settings": None})
        assert codes(client.published("one/a.py", 1)) == ["TST001", "TST002"]


HELPER = "def kept(loss):\n    return loss\n"
TRAIN = """\
import torch
from helper import kept

def train(model: torch.nn.Module, loader, optimizer: torch.optim.Optimizer, criterion):
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(kept(loss))
    return losses
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    for name, text in (("helper", HELPER), ("train", TRAIN), ("alone", WRONG)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def publications(client: Client, name: str) -> list[dict[str, Any]]:
    client.ask(
        "textDocument/hover", {"textDocument": {"uri": ""}, "position": place(0, 0, 0)["end"]}
    )
    return [
        message["params"]
        for message in client.unread
        if message.get("method") == "textDocument/publishDiagnostics"
        and message["params"]["uri"] == client.uri(name)
    ]


def test_saving_a_file_checks_what_rests_on_it(package: Path, client: Client) -> None:
    client.open("helper.py", HELPER)
    assert codes(client.open("train.py", TRAIN)) == ["OOM102"]
    assert codes(client.open("alone.py", WRONG)) == ["TST002"]
    repaired = HELPER.replace("return loss", "return loss.item()")
    client.change("helper.py", 2, {"text": repaired})
    client.published("helper.py", 2)
    (package / "helper.py").write_text(repaired)
    client.tell("textDocument/didSave", {"textDocument": {"uri": client.uri("helper.py")}})
    assert client.published("train.py", 1) == []
    client.change("alone.py", 2, {"text": "\n" + WRONG})
    client.published("alone.py", 2)
    assert publications(client, "alone.py") == [], "nothing in it rests on the helper"


def test_a_file_that_another_program_changes_is_read_again(package: Path, client: Client) -> None:
    assert codes(client.open("train.py", TRAIN)) == ["OOM102"]
    (package / "helper.py").write_text("def kept(loss):\n    return float(loss)\n")
    change = {"changes": [{"uri": client.uri("helper.py"), "type": 2}]}
    client.tell("workspace/didChangeWatchedFiles", change)
    assert client.published("train.py", 1) == []


TAGGED = """\
import torch

def train(model: torch.nn.Module, loader, optimizer, criterion):
    for images, labels in loader:
        optimizer.zero_grad()
        with torch.cuda.amp.autocast(dtype=torch.bfloat16):
            loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()
"""


@pytest.mark.parametrize(
    ("known", "wanted"), [([1, 2], [[2], [1]]), ([1], [None, [1]]), ([], [None] * 2)]
)
def test_what_can_go_is_faded_and_what_is_old_is_struck_out(
    tmp_path: Path, known: list[int], wanted: list[list[int] | None]
) -> None:
    shows = {"tagSupport": {"valueSet": known}}
    with Client(tmp_path, {"textDocument": {"publishDiagnostics": shows}}) as client:
        found = client.open("a.py", TAGGED)
        assert codes(found) == ["OOM308", "OOM401"]
        assert [item.get("tags") for item in found] == wanted


def test_a_check_without_end_is_ended_when_its_text_is_gone(client: Client) -> None:
    client.open("b.py", "x = 1  # noqa: OOM101\n")
    item = {"uri": client.uri("a.py"), "languageId": "python", "version": 1, "text": "sleeps(60)\n"}
    client.opened.add(item["uri"])
    client.tell("textDocument/didOpen", {"textDocument": item})
    time.sleep(0.3)
    started = time.monotonic()
    # While the worker is busy, the server is not.
    where = {"textDocument": {"uri": client.uri("b.py")}, "position": place(0, 16, 16)["end"]}
    assert "OOM101" in client.ask("textDocument/hover", where)["contents"]["value"]
    client.change("a.py", 2, {"text": KEPT})
    assert codes(client.published("a.py", 2)) == ["TST001"]
    assert time.monotonic() - started < 30
    assert not [m for m in client.unread if m.get("method") == "window/showMessage"]


def test_random_edits_end_as_a_fresh_check(client: Client) -> None:
    typist = editor.play(client, "a.py", editor.training_file(320), 250, seed=1)
    typed = typist.diagnostics()
    assert typed
    assert editor.bare(typed) == editor.bare(client.open("b.py", typist.text))
    assert [text for text in editor.said(client) if NO_TORCH not in text] == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_a_session_over_tcp(tmp_path: Path) -> None:
    with Client(tmp_path, port=free_port()) as client:
        assert codes(client.open("a.py", KEPT)) == ["TST001"]
        assert client.leave() == 0


def test_a_client_at_a_port_that_leaves_unannounced_ends_the_server(tmp_path: Path) -> None:
    with Client(tmp_path, port=free_port()) as client:
        client.hang_up()
        assert client.process.wait(PATIENCE_S) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--tcp", "--port", "{taken}"], "cannot listen at 127.0.0.1:{taken}: "),
        (["--tcp", "--stdio"], "`--stdio` and `--tcp` exclude each other"),
    ],
)
def test_a_server_that_cannot_start_says_why(arguments: list[str], said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        command = [str(OOMLINT), "server", *(item.format(taken=taken) for item in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert said.format(taken=taken) in done.stderr
    assert "Traceback" not in done.stderr
