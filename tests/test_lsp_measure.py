"""Measuring a fix from an editor: where it is offered, that it asks first, how it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lsp_client import CAPABILITIES, PLUGIN, Client, place

from oomlint.lsp.lenses import is_runnable
from oomlint.lsp.measuring import LEAVE_IT, RUN_IT

CAN: dict[str, Any] = {
    "workspace": {**CAPABILITIES["workspace"], "codeLens": {"refreshSupport": True}},
    "textDocument": {**CAPABILITIES["textDocument"], "codeLens": {}},
    "window": {"workDoneProgress": True},
}
# Says where it runs, and keeps the graph of every step.
SCRIPT = """\
import os
import torch

with open(os.path.join(os.path.dirname(__file__), "ran.txt"), "w") as file:
    file.write(str(os.getpid()))
device = "cuda" if torch.cuda.is_available() else "cpu"
model = torch.nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses = []
for step in range(12):
    loss = model(torch.randn(8, 64, device=device)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""
KEPT_AT = 14
ENDLESS = SCRIPT.replace("device = ", "import time; time.sleep(600)\ndevice = ", 1)
WRITES = {"measure": {"options": ["--allow-writes", "--device", "emulated", "--steps", "5"]}}
LINE = [{"uri": "", "line": KEPT_AT}]


class Person:
    """Answers the server's questions, and remembers them."""

    def __init__(self) -> None:
        self.answer: Callable[[dict[str, Any]], object] = lambda params: None
        self.questions: list[dict[str, Any]] = []

    def says(self, title: str) -> None:
        self.answer = lambda params: {"title": title}

    def __call__(self, params: dict[str, Any]) -> object:
        self.questions.append(params)
        return self.answer(params)


def refuse(params: dict[str, Any]) -> object:
    raise NotImplementedError("no such method")


Editor = tuple[Client, Person]


@pytest.fixture(scope="module")
def measuring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    pytest.importorskip("torch")
    person = Person()
    replies = {"window/showMessageRequest": person}
    folder = tmp_path_factory.mktemp("measure")
    with Client(folder, CAN, options={"settings": WRITES}, replies=replies) as client:
        yield client, person
        assert client.leave() == 0


@pytest.fixture
def editor(measuring: Editor, tmp_path: Path) -> Editor:
    client, person = measuring
    client.move(tmp_path)
    person.questions.clear()
    return measuring


def saved(client: Client, name: str, text: str) -> list[dict[str, Any]]:
    (client.folder / name).write_text(text)
    return client.open(name, text)


def lenses(client: Client, name: str) -> list[dict[str, Any]]:
    params = {"textDocument": {"uri": client.uri(name)}}
    found: list[dict[str, Any]] | None = client.ask("textDocument/codeLens", params)
    return found or []


def titles(client: Client, name: str) -> list[str]:
    return [item["command"]["title"] for item in lenses(client, name)]


def run(client: Client, name: str, line: int | None = KEPT_AT) -> None:
    where: dict[str, Any] = {"uri": client.uri(name)}
    if line is not None:
        where["line"] = line
    params = {"command": "oomlint.measure", "arguments": [where]}
    assert client.ask("workspace/executeCommand", params) is None


def shown(client: Client) -> str:
    while True:  # patience of a message each: what is measured takes a while
        message = client.wait(lambda m: m.get("method") in ("window/showMessage", "$/progress"))
        if message["method"] == "window/showMessage":
            said: str = message["params"]["message"]
            return said


def progress(client: Client) -> dict[str, Any]:
    params: dict[str, Any] = client.wait(lambda m: m.get("method") == "$/progress")["params"]
    return params


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("def train():\n    loss.backward()\n", False),
        ("def train():\n    pass\n\nif __name__ == '__main__':\n    train()\n", True),
        ('if  __name__=="__main__":\n    pass\n', True),
        ("for x in y:\n    loss.backward()\n", True),
        ("x = 1\noptimizer.step()\n", True),
        ("def f():\n    pass\nloss.backward()\n", True),
        ("def f(\n    x,\n):\n    loss.backward()\n", False),
        ("class A:\n    def f(self):\n# left\n        x.step()\n", False),
        ("def main():\n    pass\n\nmain()\n", True),
        ("def main():\n    pass\n\na, b = main(3)\n", True),
        ("def main():\n    pass\n\nother()\n", False),
        ("@decorated\nasync def main():\n    pass\n", False),
        ("", False),
        ("def f(:\n  'unfinished", False),
    ],
)
def test_what_is_runnable(text: str, wanted: bool) -> None:
    assert is_runnable(text) is wanted


def test_a_lens_stands_above_each_line_that_has_a_fix(editor: Editor) -> None:
    client, _ = editor
    saved(client, "train.py", SCRIPT)
    (lens,) = lenses(client, "train.py")
    assert lens["range"]["start"]["line"] == KEPT_AT
    assert lens["command"] == {
        "title": "Measure this fix",
        "command": "oomlint.measure",
        "arguments": [{"uri": client.uri("train.py"), "line": KEPT_AT}],
    }
    offered = client.actions("train.py", [], place=place(KEPT_AT, 4, 4))
    assert offered and not any("command" in item for item in offered)
    body = SCRIPT.partition("losses = ")
    module = "def train(model, optimizer, device):\n    losses = " + body[2].replace("\n", "\n    ")
    assert saved(client, "module.py", f"import torch\n{module}\n    return losses\n")
    assert titles(client, "module.py") == [], "importing it trains nothing"


@pytest.mark.parametrize("answer", [LEAVE_IT, "Run", None, "an error"])
def test_nothing_runs_without_a_yes(editor: Editor, tmp_path: Path, answer: str | None) -> None:
    client, person = editor
    if answer == "an error":
        person.answer = refuse
    else:
        person.answer = lambda params: answer and {"title": answer}
    saved(client, "train.py", SCRIPT)
    run(client, "train.py")
    # The question is over when lenses are to be asked for again.
    client.wait(lambda m: m.get("method") == "workspace/codeLens/refresh")
    (question,) = person.questions
    assert [item["title"] for item in question["actions"]] == [RUN_IT, LEAVE_IT]
    assert f"--line {KEPT_AT + 1} {tmp_path / 'train.py'}" in question["message"]
    assert not (tmp_path / "ran.txt").exists()
    assert not [m for m in client.unread if m.get("method") == "$/progress"]


def test_what_is_measured_is_said_and_stays_above_the_line(editor: Editor, tmp_path: Path) -> None:
    client, person = editor
    person.says(RUN_IT)
    saved(client, "train.py", SCRIPT)
    run(client, "train.py")
    begun = progress(client)
    assert begun["value"]["title"] == "oomlint: measuring train.py"
    assert begun["value"]["cancellable"] is True
    assert titles(client, "train.py") == ["Measuring …"]
    running = [progress(client)["value"]["message"] for _ in range(2)]
    assert running == ["running OOM102 before the fix", "running OOM102 after the fix"]
    assert progress(client)["value"] == {"kind": "end", "message": "done"}
    said = shown(client)
    assert said.startswith(f"oomlint: train.py:{KEPT_AT + 1} OOM102 confirmed: ")
    assert (tmp_path / "ran.txt").exists()

    sentence = said.partition(f"train.py:{KEPT_AT + 1} ")[2]
    client.wait(lambda m: m.get("method") == "workspace/codeLens/refresh")
    assert titles(client, "train.py") == [sentence]
    client.change("train.py", 2, {"range": place(0, 0, 0), "text": "# é😀\n"})
    (lens,) = lenses(client, "train.py")
    assert lens["range"]["start"]["line"] == KEPT_AT + 1
    assert lens["command"]["title"] == f"{sentence} (measured before the last changes)"


def test_a_measurement_can_be_cancelled(editor: Editor, tmp_path: Path) -> None:
    client, person = editor
    person.says(RUN_IT)
    saved(client, "train.py", ENDLESS)
    run(client, "train.py", KEPT_AT + 1)
    token = progress(client)["token"]
    ran = tmp_path / "ran.txt"
    latest = time.monotonic() + 120
    while not (ran.exists() and ran.read_text()) and time.monotonic() < latest:
        time.sleep(0.05)
    pid = int(ran.read_text())
    # A second wish meanwhile asks whether the first shall go on.
    person.says("Let it run")
    run(client, "train.py", KEPT_AT + 1)
    client.wait(
        lambda m: m.get("method") == "window/showMessageRequest" and len(person.questions) == 2
    )
    os.kill(pid, 0)
    client.tell("window/workDoneProgress/cancel", {"token": token})
    assert shown(client) == "oomlint: the measurement of train.py was cancelled"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert titles(client, "train.py") == ["Measure this fix"]


@pytest.mark.parametrize(
    ("change", "line", "why"),
    [
        ("\n", KEPT_AT + 1, "train.py has changes that are not saved; save it and try again"),
        ("", 3, "line 4 of train.py has no finding with a fix"),
    ],
)
def test_what_cannot_be_measured_is_told(editor: Editor, change: str, line: int, why: str) -> None:
    client, person = editor
    saved(client, "train.py", SCRIPT)
    client.change("train.py", 2, {"range": place(0, 0, 0), "text": change})
    run(client, "train.py", line)
    assert shown(client) == f"oomlint: nothing was measured: {why}"
    assert person.questions == []


def test_a_document_that_is_not_open_is_not_measured(editor: Editor) -> None:
    client, person = editor
    run(client, "never.py", None)
    assert shown(client) == "oomlint: nothing was measured: that document is not open here"
    params = {"command": "oomlint.measure", "arguments": []}
    client.ask("workspace/executeCommand", params)
    assert shown(client) == "oomlint: `oomlint.measure` needs the URI of a document"
    assert person.questions == []


def test_without_torch_nothing_is_offered_and_one_sentence_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The import system takes a module that is None for one that cannot be found.
    (tmp_path / "sitecustomize.py").write_text('import sys; sys.modules["torch"] = None\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{PLUGIN}")
    with Client(tmp_path, CAN, plugin=False) as client:
        assert saved(client, "train.py", SCRIPT)
        assert lenses(client, "train.py") == lenses(client, "train.py") == []
        logged = client.wait(lambda m: m.get("method") == "window/logMessage")["params"]
        assert logged["message"].startswith("oomlint: fixes cannot be measured here, for torch is")
        assert not [m for m in client.unread if m.get("method") == "window/logMessage"]
        run(client, "train.py")
        assert "oomlint[verify]" in shown(client)


def test_lenses_can_be_turned_off_and_wrong_options_are_told(
    tmp_path: Path,
) -> None:
    pytest.importorskip("torch")
    with Client(tmp_path, CAPABILITIES, options={"measure": {"arguments": "--fast"}}) as client:
        assert saved(client, "train.py", SCRIPT)
        offered = client.actions("train.py", [], place=place(KEPT_AT, 4, 4))
        commands = [item["command"]["command"] for item in offered if "command" in item]
        assert commands == ["oomlint.measure"], "for those who show no lenses"
        run(client, "train.py")
        assert "the editor's setting `measure.arguments` must be a list of str" in shown(client)
        settings = {"settings": {"measure": {"lens": False}}}
        client.tell("workspace/didChangeConfiguration", settings)
        client.published("train.py", 1)
        assert titles(client, "train.py") == []


def test_all_safe_fixes_by_a_command(client: Client) -> None:
    client.open("a.py", "kept = 0\nkept += value\n")
    params = {"command": "oomlint.applyAutofix", "arguments": [{"uri": client.uri("a.py")}]}
    assert client.ask("workspace/executeCommand", params) is None
    asked = client.wait(lambda m: m.get("method") == "workspace/applyEdit")["params"]
    assert asked["label"] == "oomlint: Fix all auto-fixable problems"
    (change,) = asked["edit"]["documentChanges"]
    assert change["edits"] == [
        {
            "range": {"start": {"line": 1, "character": 0}, "end": {"line": 2, "character": 0}},
            "newText": "kept += value.detach()\n",
        }
    ]
