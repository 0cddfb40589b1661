"""The language server as an editor meets it: a real process, driven over its pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from lsp_client import CAPABILITIES, OOMLINT, PATIENCE_S, PLUGIN, Client, apply_edits, place

EXAMPLE = Path(__file__).parent.parent / "examples" / "train.py"
KEPT = "kept = 0\nfor value in range(9):\n    kept += value\n"
WRONG = "print(wrong)\n"
SYNTAX = "def f(:\n    kept += value\n"


def applied(text: str, action: dict[str, Any]) -> str:
    (change,) = action["edit"]["documentChanges"]
    return apply_edits(text, change["edits"])


def test_the_session_starts_and_ends_as_the_protocol_says(tmp_path: Path) -> None:
    with Client(tmp_path) as client:
        server, can = client.hello["serverInfo"], client.hello["capabilities"]
        assert server["name"] == "oomlint"
        assert can["positionEncoding"] == "utf-16"
        assert can["textDocumentSync"]["openClose"] is True
        assert can["textDocumentSync"]["change"] == 2
        assert can["codeActionProvider"]["codeActionKinds"] == [
            "quickfix",
            "source.fixAll.oomlint",
            "notebook.source.fixAll.oomlint",
        ]
        assert can["executeCommandProvider"]["commands"] == [
            "oomlint.measure",
            "oomlint.applyAutofix",
        ]
        assert can["codeActionProvider"]["resolveProvider"] is True
        assert client.leave() == 0


def test_an_exit_without_a_shutdown_is_a_failure(tmp_path: Path) -> None:
    with Client(tmp_path) as client:
        client.send({"method": "exit"})
        assert client.process.wait(PATIENCE_S) == 1


def test_a_finding_is_published_whole(client: Client) -> None:
    (found,) = client.open("a.py", KEPT)
    uri = client.uri("a.py")
    assert found["range"] == place(2, 4, 17)
    assert (found["code"], found["source"], found["severity"]) == ("TST001", "oomlint", 1)
    assert "codeDescription" not in found, "only oomlint's own rules have a page"
    assert found["message"] == "value is kept\n\nhelp: Detach it"
    assert found["relatedInformation"] == [
        {"location": {"uri": uri, "range": place(0, 0, 1)}, "message": "the first line"},
        {"location": {"uri": uri, "range": place(2, 4, 17)}, "message": "kept here"},
    ]
    assert found["data"]["is_preferred"] is True
    assert found["data"]["edits"] == [{"range": place(2, 17, 17), "newText": ".detach()"}]


def test_severity_follows_the_finding(client: Client) -> None:
    (found,) = client.open("a.py", WRONG)
    assert (found["code"], found["severity"]) == ("TST002", 2)


def test_without_the_capability_there_is_no_related_information(tmp_path: Path) -> None:
    with Client(tmp_path, {}) as client:
        (found,) = client.open("a.py", KEPT)
        assert "relatedInformation" not in found


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        (KEPT + WRONG, ["TST001", "TST002"]),
        (EXAMPLE.read_text(), ["OOM201", "OOM102", "OOM301", "OOM101", "OOM202"]),
    ],
)
def test_the_answer_is_that_of_check(
    tmp_path: Path, client: Client, text: str, codes: list[str]
) -> None:
    (tmp_path / "a.py").write_text(text)
    command = [str(OOMLINT), "check", "--no-cache", "--output-format", "json", "a.py"]
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    said = [
        (item["code"], item["location"]["row"], item["location"]["column"])
        for item in json.loads(run.stdout)
    ]
    shown = [
        (item["code"], start["line"] + 1, start["character"] + 1)
        for item in client.open("a.py", text)
        for start in [item["range"]["start"]]
    ]
    assert said == shown
    assert [code for code, _, _ in said] == codes


def test_diagnostics_follow_the_typing(client: Client) -> None:
    assert client.open("a.py", "") == []
    client.change("a.py", 2, {"text": KEPT})
    assert [item["range"] for item in client.published("a.py", 2)] == [place(2, 4, 17)]
    client.change("a.py", 3, {"range": place(0, 0, 0), "text": "# é😀\n\n"})
    assert [item["range"] for item in client.published("a.py", 3)] == [place(4, 4, 17)]
    client.change("a.py", 4, {"range": place(4, 17, 17), "text": ".detach()"})
    assert client.published("a.py", 4) == []


def test_fast_typing_is_checked_once(client: Client) -> None:
    client.open("a.py", "kept = 0\n")
    text = "kept += value"
    for count, char in enumerate(text):
        client.change("a.py", count + 2, {"range": place(1, count, count), "text": char})
    assert len(client.published("a.py", len(text) + 1)) == 1
    published = [m for m in client.unread if m.get("method", "").endswith("/publishDiagnostics")]
    assert len(published) < len(text) // 2


def test_closing_takes_the_diagnostics_away(client: Client) -> None:
    assert len(client.open("a.py", KEPT)) == 1
    client.tell("textDocument/didClose", {"textDocument": {"uri": client.uri("a.py")}})
    assert client.published("a.py", None) == []


@pytest.mark.parametrize(
    ("encodings", "start"),
    [([], 12), (["utf-16"], 12), (["utf-8", "utf-16"], 15), (["utf-32"], 11)],
)
def test_positions_are_in_the_units_that_the_client_counts_in(
    tmp_path: Path, encodings: list[str], start: int
) -> None:
    capabilities = {**CAPABILITIES, "general": {"positionEncodings": encodings}}
    end = start + len("kept += value")
    with Client(tmp_path, capabilities) as client:
        (found,) = client.open("a.py", 'k = "é😀" ; kept += value\n')
        assert found["range"] == place(0, start, end)
        (edit,) = found["data"]["edits"]
        assert edit["range"] == place(0, end, end)


def test_edits_behind_characters_outside_the_first_plane_land_where_they_are_meant(
    client: Client,
) -> None:
    text = 'name = "é😀"; kept += value; print("😀")\n'
    (found,) = client.open("a.py", text)
    fix, ignore = client.actions("a.py", [found], only=["quickfix"])
    assert applied(text, fix) == text.replace("value", "value.detach()")
    assert applied(text, ignore) == text.replace("\n", "  # oomlint: ignore[TST001]\n")
    # The same for what the client sends: text behind the emoji is replaced.
    start = len('name = "é😀"; '.encode("utf-16-le")) // 2
    client.change("a.py", 2, {"range": place(0, start, start + 4), "text": "lost"})
    assert client.published("a.py", 2) == []


@pytest.mark.parametrize("newline", ["\r\n", "\r"])
def test_line_ends_survive(client: Client, newline: str) -> None:
    text = KEPT.replace("\n", newline)
    (found,) = client.open("a.py", text)
    assert found["range"] == place(2, 4, 17)
    fixed = text.replace("value\r", "value.detach()\r")
    for action in (client.actions("a.py", [found])[0], fix_all(client, "a.py")):
        assert applied(text, action) == fixed


def test_a_form_feed_is_no_line_end(client: Client) -> None:
    text = "x = 0\n\f\n" + KEPT
    (found,) = client.open("a.py", text)
    assert found["range"] == place(4, 4, 17)
    client.change("a.py", 2, {"range": place(4, 4, 8), "text": "lost"})
    assert client.published("a.py", 2) == []


def fix_all(client: Client, name: str) -> dict[str, Any]:
    (action,) = client.actions(name, [], only=["source.fixAll"])
    assert action["kind"] == "source.fixAll.oomlint"
    resolved: dict[str, Any] = client.ask("codeAction/resolve", action)
    return resolved


def test_quick_fixes_say_what_they_do(client: Client) -> None:
    text = KEPT + WRONG
    found = client.open("a.py", text)
    offered = client.actions("a.py", found, only=["quickfix"])
    assert [(item["title"], item.get("isPreferred", False)) for item in offered] == [
        ("oomlint (TST001): Detach it", True),
        ("oomlint (TST002): Use the right one (unsafe)", False),
        ("oomlint (TST001): Ignore on this line", False),
        ("oomlint (TST002): Ignore on this line", False),
    ]
    assert {item["kind"] for item in offered} == {"quickfix"}
    assert [item["diagnostics"][0]["code"] for item in offered] == ["TST001", "TST002"] * 2
    assert applied(text, offered[1]) == text.replace("wrong", "right")


def test_a_quick_fix_is_offered_at_its_place_too(client: Client) -> None:
    client.open("a.py", KEPT)
    at = client.actions("a.py", [], only=["quickfix"], place=place(2, 8, 8))
    assert [item["title"] for item in at][:1] == ["oomlint (TST001): Detach it"]
    assert client.actions("a.py", [], only=["quickfix"], place=place(1, 0, 3)) == []


def test_a_diagnostic_of_an_older_text_gets_no_edit_at_the_wrong_place(client: Client) -> None:
    old = client.open("a.py", KEPT)
    client.change("a.py", 2, {"range": place(0, 0, 0), "text": "\n\n"})
    assert client.actions("a.py", old, only=["quickfix"]) == []


def test_ignoring_joins_the_comment_that_is_there(client: Client) -> None:
    text = "kept += value; print(wrong)  # oomlint: ignore[TST002]\n"
    (found,) = client.open("a.py", text)
    ignored = applied(text, client.actions("a.py", [found])[1])
    assert ignored == text.replace("TST002", "TST002, TST001")
    client.change("a.py", 2, {"text": ignored})
    assert client.published("a.py", 2) == []


def test_fix_all_applies_the_safe_fixes_only(client: Client) -> None:
    text = KEPT + WRONG + "kept += other\n"
    client.open("a.py", text)
    fixed = applied(text, fix_all(client, "a.py"))
    assert fixed == text.replace("+= value", "+= value.detach()").replace("other", "other.detach()")
    client.change("a.py", 2, {"text": fixed})
    assert [item["code"] for item in client.published("a.py", 2)] == ["TST002"]
    assert "edit" not in fix_all(client, "a.py")


def test_a_client_that_cannot_resolve_gets_the_edit_at_once(tmp_path: Path) -> None:
    with Client(tmp_path, {}) as client:
        client.open("a.py", KEPT)
        (action,) = client.actions("a.py", [], only=["source.fixAll.oomlint"])
        (edits,) = action["edit"]["changes"].values()
        assert apply_edits(KEPT, edits) == KEPT.replace("+= value", "+= value.detach()")
        client.open("b.py", WRONG)
        assert client.actions("b.py", [], only=["source.fixAll.oomlint"]) == []


def test_unknown_documents_and_kinds_get_nothing(client: Client) -> None:
    assert client.actions("never.py", []) is None
    found = client.open("a.py", KEPT)
    assert client.actions("a.py", found, only=["refactor"]) == []


def test_half_typed_code_gives_one_diagnostic_and_recovers(client: Client) -> None:
    (found,) = client.open("a.py", SYNTAX)
    assert (found["code"], found["severity"]) == ("invalid-syntax", 1)
    assert found["range"]["start"]["line"] == 0
    assert client.actions("a.py", [found], only=["quickfix"]) == []
    client.change("a.py", 2, {"text": KEPT})
    assert [item["code"] for item in client.published("a.py", 2)] == ["TST001"]


def test_every_prefix_of_a_text_survives(client: Client) -> None:
    for count in range(0, len(KEPT), 7):
        assert len(client.open(f"{count}.py", KEPT[:count])) <= 1


def test_a_text_that_kills_the_checker_costs_only_its_own_answer(client: Client) -> None:
    assert client.open("dead.py", "fatal()\n") == []
    shown = client.wait(lambda message: message.get("method") == "window/showMessage")
    assert "dead.py" in shown["params"]["message"]
    assert len(client.open("a.py", KEPT)) == 1


def test_what_a_rule_prints_does_not_disturb_the_protocol(client: Client) -> None:
    assert len(client.open("a.py", "# loud\n" + WRONG)) == 1
    assert len(client.open("b.py", "# loud\n" + WRONG)) == 1


def test_settings_are_those_of_the_document_and_are_read_again(
    tmp_path: Path, client: Client
) -> None:
    settings = tmp_path / "inner" / "oomlint.toml"
    settings.parent.mkdir()
    settings.write_text('ignore = ["TST001"]\n')
    assert len(client.open("a.py", KEPT)) == 1
    assert client.open("inner/a.py", KEPT) == []
    settings.write_text("")
    changed = {"changes": [{"uri": client.uri("inner/oomlint.toml"), "type": 2}]}
    client.tell("workspace/didChangeWatchedFiles", changed)
    assert len(client.published("inner/a.py", 1)) == 1


def test_settings_that_are_wrong_are_told_once(tmp_path: Path, client: Client) -> None:
    (tmp_path / "oomlint.toml").write_text('selekt = ["TST001"]\n')
    assert client.open("a.py", KEPT) == []
    shown = client.wait(lambda message: message.get("method") == "window/showMessage")
    assert "selekt" in shown["params"]["message"]
    client.change("a.py", 2, {"text": WRONG})
    assert client.published("a.py", 2) == []
    assert not [m for m in client.unread if m.get("method") == "window/showMessage"]


def test_excluded_files_and_other_languages_stay_silent(tmp_path: Path, client: Client) -> None:
    (tmp_path / "oomlint.toml").write_text('extend-exclude = ["generated"]\n')
    assert client.open("generated/a.py", KEPT) == []
    item = {"uri": client.uri("a.md"), "languageId": "markdown", "version": 1, "text": KEPT}
    client.tell("textDocument/didOpen", {"textDocument": item})
    assert client.actions("a.md", []) is None


def test_a_document_without_a_file_is_checked(client: Client) -> None:
    uri = "untitled:Untitled-1"
    item = {"uri": uri, "languageId": "python", "version": 1, "text": KEPT}
    client.tell("textDocument/didOpen", {"textDocument": item})
    shown = client.wait(lambda message: message.get("method", "").endswith("Diagnostics"))
    assert shown["params"]["uri"] == uri
    (found,) = shown["params"]["diagnostics"]
    assert found["relatedInformation"][0]["location"]["uri"] == uri


def test_saving_checks_the_other_open_documents_again(client: Client) -> None:
    client.open("a.py", KEPT)
    client.open("b.py", WRONG)
    client.tell("textDocument/didSave", {"textDocument": {"uri": client.uri("b.py")}})
    assert len(client.published("a.py", 1)) == 1
    assert len(client.published("b.py", 1)) == 1


EVALUATE = """\
def evaluate(model, loader):
    model.eval()
    return [model(images).argmax(1) for images in loader]
"""
CALLER = """\
import torch
from a import evaluate

def main(model: torch.nn.Module, loader):
    with torch.no_grad():
        return evaluate(model, loader)
"""


def test_the_answer_follows_the_other_files_of_the_project(tmp_path: Path, client: Client) -> None:
    (tmp_path / "pyproject.toml").touch()
    text = "import torch\n" + EVALUATE.replace("model,", "model: torch.nn.Module,")
    (tmp_path / "a.py").write_text(text)
    (found,) = client.open("a.py", text)
    assert found["code"] == "OOM101"
    page = "/docs/rules/oom101-eval-without-no-grad.md"
    assert found["codeDescription"]["href"].endswith(page)
    (tmp_path / "b.py").write_text(CALLER)
    client.tell("textDocument/didSave", {"textDocument": {"uri": client.uri("b.py")}})
    assert client.published("a.py", 1) == []


def test_no_process_outlives_an_editor_that_dies(tmp_path: Path) -> None:
    with Client(tmp_path) as client:
        client.open("a.py", KEPT)
        server = client.process.pid
        listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(server)], capture_output=True)
        workers = [int(pid) for pid in listing.stdout.split()]
        assert workers
        os.kill(server, signal.SIGKILL)
        client.process.wait()
        deadline = time.monotonic() + 10
        while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in workers)


def alive(pid: int) -> bool:
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return status.stdout.strip() not in ("", "Z")
