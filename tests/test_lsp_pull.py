"""What the server does for clients that ask for diagnostics, and what it shows under a pointer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import CAPABILITIES, Client, place

from oomlint import docs

KEPT = "kept = 0\nfor value in range(9):\n    kept += value\n"
TEXT_DOCUMENT = CAPABILITIES["textDocument"]
PULLS: dict[str, Any] = {
    "workspace": {**CAPABILITIES["workspace"], "diagnostics": {"refreshSupport": True}},
    "textDocument": {**TEXT_DOCUMENT, "diagnostic": {"dynamicRegistration": False}},
}


@pytest.fixture(scope="module")
def pulling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with Client(tmp_path_factory.mktemp("pull"), PULLS) as client:
        yield client


def opened(client: Client, name: str, text: str) -> None:
    """Opens a document of a client for which nothing is published."""
    item = {"uri": client.uri(name), "languageId": "python", "version": 1, "text": text}
    client.tell("textDocument/didOpen", {"textDocument": item})


def pulled(client: Client, name: str, known: str | None = None) -> dict[str, Any]:
    params: dict[str, Any] = {"textDocument": {"uri": client.uri(name)}}
    if known is not None:
        params["previousResultId"] = known
    found: dict[str, Any] = client.ask("textDocument/diagnostic", params)
    return found


def published(client: Client) -> list[dict[str, Any]]:
    assert hover(client, "never.py", 0, 0) is None, "whose answer comes behind all others"
    return [m for m in client.unread if m.get("method") == "textDocument/publishDiagnostics"]


def test_the_server_says_that_diagnostics_can_be_pulled(pulling: Client) -> None:
    assert pulling.hello["capabilities"]["diagnosticProvider"] == {
        "identifier": "oomlint",
        "interFileDependencies": True,
        "workspaceDiagnostics": False,
    }


def test_pulled_diagnostics_are_those_that_others_get_published(
    pulling: Client, client: Client
) -> None:
    opened(pulling, "same.py", KEPT)
    report = pulled(pulling, "same.py")
    assert report["kind"] == "full"
    (item,), (other,) = report["items"], client.open("same.py", KEPT)
    assert item["code"] == "TST001"
    different = {key for key in item if item[key] != other[key]}
    assert different == {"relatedInformation"}, "which names the document"
    assert published(pulling) == [], "nothing is published for those who ask"


def test_what_has_not_changed_is_not_sent_again(pulling: Client) -> None:
    opened(pulling, "unchanged.py", KEPT)
    known = pulled(pulling, "unchanged.py")["resultId"]
    assert pulled(pulling, "unchanged.py", known) == {"kind": "unchanged", "resultId": known}
    pulling.change("unchanged.py", 2, {"range": place(0, 0, 0), "text": "\n"})
    moved = pulled(pulling, "unchanged.py", known)
    assert [item["range"] for item in moved["items"]] == [place(3, 4, 17)]


def test_an_answer_is_of_the_text_as_it_is_when_it_comes(pulling: Client) -> None:
    opened(pulling, "typed.py", "")
    text = "kept += value"
    numbers = []
    for index, char in enumerate(text):
        pulling.change("typed.py", index + 2, {"range": place(0, index, index), "text": char})
        pulling.number += 1
        numbers.append(pulling.number)
        params = {"textDocument": {"uri": pulling.uri("typed.py")}}
        pulling.send({"id": pulling.number, "method": "textDocument/diagnostic", "params": params})
    replies = [pulling.wait(lambda m, n=n: m.get("id") == n and "method" not in m) for n in numbers]
    assert [reply.get("error") for reply in replies] == [None] * len(text)
    assert len(replies[-1]["result"]["items"]) == 1


def test_a_cancelled_request_is_answered_and_harms_nobody(pulling: Client) -> None:
    opened(pulling, "cancelled.py", KEPT)
    params = {"textDocument": {"uri": pulling.uri("cancelled.py")}}
    pulling.number += 1
    number = pulling.number
    pulling.send({"id": number, "method": "textDocument/diagnostic", "params": params})
    pulling.tell("$/cancelRequest", {"id": number})
    reply = pulling.wait(lambda m: m.get("id") == number and "method" not in m)
    assert reply.get("error", {}).get("code", -32800) == -32800
    assert len(pulled(pulling, "cancelled.py")["items"]) == 1


def test_who_pulls_is_told_when_to_do_so_again(pulling: Client) -> None:
    opened(pulling, "told.py", KEPT)
    assert len(pulled(pulling, "told.py")["items"]) == 1
    settings = pulling.folder / "oomlint.toml"
    settings.write_text('ignore = ["TST001"]\n')
    change = {"changes": [{"uri": settings.as_uri(), "type": 1}]}
    pulling.tell("workspace/didChangeWatchedFiles", change)
    pulling.wait(lambda m: m.get("method") == "workspace/diagnostic/refresh")
    assert pulled(pulling, "told.py")["items"] == []
    settings.unlink()
    change["changes"][0]["type"] = 3
    pulling.tell("workspace/didChangeWatchedFiles", change)


def test_a_document_that_nobody_opened_has_no_diagnostics(pulling: Client) -> None:
    assert pulled(pulling, "never.py")["items"] == []


def hover(client: Client, name: str, line: int, character: int) -> Any:
    where = {"line": line, "character": character}
    params = {"textDocument": {"uri": client.uri(name)}, "position": where}
    return client.ask("textDocument/hover", params)


ROOT = Path(__file__).resolve().parents[1]
EVALUATED = """\
import torch

def evaluate(model: torch.nn.Module, loader):
    model.eval()
    return [model(images).argmax(1) for images in loader]
"""


def test_a_finding_shows_its_page_and_what_was_measured(client: Client) -> None:
    (found,) = client.open("a.py", EVALUATED)
    assert found["code"] == "OOM101"
    start = found["range"]["start"]
    shown = hover(client, "a.py", start["line"], start["character"] + 2)
    assert shown["range"] == found["range"]
    text = shown["contents"]["value"]
    assert shown["contents"]["kind"] == "markdown"
    assert text.startswith("# eval-without-no-grad (OOM101)\n")
    proof = docs.read_evidence(ROOT).proofs["OOM101"][0]
    assert f"- {proof.measured} ({proof.device} device, torch {proof.torch})" in text
    assert "## Why is this bad?" in text
    assert text.endswith(f"({found['codeDescription']['href']})")
    assert hover(client, "a.py", 0, 0) is None


@pytest.mark.parametrize(
    ("line", "what", "title"),
    [
        ("x = 1  # noqa: OOM102", "OOM102", "# retained-loss (OOM102)"),
        ("x = 1  # noqa: F401, OOM102", "OOM102", "# retained-loss (OOM102)"),
        ("x = 1  # oomlint: ignore[OOM101, retained-loss]", "retained-loss", "# retained-loss"),
        ("# oomlint: noqa: OOM304", "OOM304", "# double-unscale (OOM304)"),
        ("é = '😀'  # noqa: OOM102", "OOM102", "# retained-loss (OOM102)"),
        ("x = 1  # noqa: OOM999", "OOM999", "`OOM999`: oomlint has no such rule."),
        ("x = 1  # noqa: F401", "F401", None),
        ("x = OOM102", "OOM102", None),
        ("x = 1  # noqa", "noqa", None),
        ("def f(:  # noqa: OOM102", "OOM102", "# retained-loss (OOM102)"),
    ],
)
def test_a_code_in_a_comment_shows_its_page(
    client: Client, line: str, what: str, title: str | None
) -> None:
    client.open("a.py", f"\n{line}\n")
    start = len(line[: line.index(what)].encode("utf-16-le")) // 2
    for column in (start, start + len(what) - 1):
        shown = hover(client, "a.py", 1, column)
        if title is None:
            assert shown is None
            continue
        assert shown["contents"]["value"].startswith(title)
        assert shown["range"] == place(1, start, start + len(what))


def test_hovering_past_the_end_shows_nothing(client: Client) -> None:
    client.open("a.py", "x = 1\n")
    assert hover(client, "a.py", 99, 99) is None
