"""`oomlint explain`: what it says of a line, and when it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from shell import call, write

TRAIN = """\
    import torch
    from elsewhere import Net
    from helpers import backpropagate

    def train(model, loader, use_amp, total):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.cuda.amp.GradScaler()
        for i, (x, y) in enumerate(loader):
            with torch.autocast("cuda"):
                loss = torch.nn.functional.mse_loss(model(x), y)
            if use_amp:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
            else:
                backpropagate(loss)
                optimizer.step()
            thing.step()
            with torch.no_grad():
                total += model(x).mean()
            optimizer.zero_grad()
        try:
            total.item()
        except ValueError:
            total.cpu()
        return total
        print(total)

    def report(x):
        print(x)

    def batches(x):
        y = x + 1
        yield y

    def early(loss, optimizer, ready):
        loss.backward()
        optimizer.step()
        if ready:
            raise ValueError(ready)
        if torch is None:
            optimizer.zero_grad(True)

    class Head(torch.nn.Module):
        def forward(self, x):
            return x.relu()

    print("done")
    """
HELPERS = """\
    def backpropagate(loss):
        loss.backward()
    """


@pytest.fixture
def train(project: Path) -> Path:
    write(project, {"train.py": dedent(TRAIN), "helpers.py": dedent(HELPERS)})
    return project


def row_of(text: str) -> int:
    rows = dedent(TRAIN).splitlines()
    return next(row for row, line in enumerate(rows, 1) if line.strip() == text)


def explained(text: str, *options: str) -> str:
    answer = call("explain", f"train.py:{row_of(text)}", *options)
    assert (answer.code, answer.err) == (0, "")
    return answer.out


def as_json(text: str, *options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(explained(text, "--output-format", "json", *options))
    return document


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scaler.scale(loss).backward()", "`scaler`: a gradient scaler (constructed: line 7"),
        ("scaler.scale(loss).backward()", "`scaler.scale(loss).backward()`: backward"),
        ("scaler.scale(loss).backward()", "a loss with an autograd graph"),
        ("scaler.scale(loss).backward()", "following starts at `train` (line 5); in 1 of "),
        ("scaler.scale(loss).backward()", "where `use_amp` (line 11) is true"),
        ("scaler.scale(loss).backward()", "inside `for (i, (x, y)) in enumerate(loader)` (line 8)"),
        ("scaler.scale(loss).backward()", "> round 1    backward          line 12"),
        ("scaler.scale(loss).backward()", "  round 2    scaler.step       line 13"),
        ("optimizer.step()", "where `use_amp` (line 11) is false"),
        ("backpropagate(loss)", "`backpropagate`: the function `backpropagate`, line 1"),
        ("loss = torch.nn.functional.mse_loss(model(x), y)", "contexts: autocast float16"),
        ("loss = torch.nn.functional.mse_loss(model(x), y)", "`model(x)`: forward"),
        ("total += model(x).mean()", "gradients: off"),
        ("total += model(x).mean()", "`model`: a model, by its annotation or by how it is used"),
        ("thing.step()", "nothing says that `thing` is one (its role is not known)"),
        ("y = x + 1", "`batches` is a generator: only those that make a backward are followed"),
        ("optimizer.zero_grad(True)", "`torch is None` (line 40) is true in no world"),
        ("total.cpu()", "a handler runs only where the body of its `try` (line 21)"),
        ("print(total)", "every way that was followed leaves it"),
        ("print(x)", "following does not start at `report`: its words and those of what"),
        ("return x.relu()", "`Head.forward` is a part of a network"),
        ("raise ValueError(ready)", "the arm of `if ready` (line 38) ends the program"),
        ('print("done")', "the script's own statements are not followed"),
    ],
)
def test_text(train: Path, text: str, said: str) -> None:
    assert said in explained(text)


def test_a_role_by_name_alone_is_said_to_be_too_little(train: Path) -> None:
    write(train, {"b.py": "def f(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n"})
    out = call("explain", "b.py:3").out
    assert "an optimizer, by its name `optimizer` alone; a role by name alone is not enough" in out


def test_a_call_that_is_too_large_to_follow(train: Path) -> None:
    body = "    x = 1\n" * 80
    text = f"def big():\n{body}def f(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n"
    write(train, {"b.py": f"{text}    big()\n"})
    assert (
        "`big` mentions no training event and has 80 statements" in call("explain", "b.py:85").out
    )
    assert "the call in line 85 does not lead there" in call("explain", "b.py:3").out


def test_the_way_over_a_call_into_another_function(train: Path) -> None:
    helper = "def go(loss):\n    loss.backward()\n"
    caller = "def f(loss, optimizer):\n    go(loss)\n    optimizer.step()\n"
    write(train, {"b.py": helper + caller})
    out = call("explain", "b.py:2").out
    assert "following starts at `f` (line 3)" in out
    assert "over `go(loss)` (line 4)" in out


def test_what_happens_inside_of_a_call_belongs_to_its_line(train: Path) -> None:
    out = explained("backpropagate(loss)")
    assert "what happens inside of it: backward" in out
    assert "> round 1    backward          line 2 of helpers.py" in out


def test_a_line_of_a_text_is_no_code(train: Path) -> None:
    write(train, {"b.py": 'def f():\n    """loss.backward()\n    optimizer.step()\n    """\n'})
    assert "- the line is part of a text, and no code" in call("explain", "b.py:3").out


def test_json_holds_the_same(train: Path) -> None:
    document = as_json("scaler.step(optimizer)", "--rule", "OOM101", "--rule", "OOM301")
    assert document["function"] == "train"
    assert document["ways"][0]["conditions"][0]["holds"] is True
    assert [story["happenings"][0]["what"] for story in document["stories"]] == ["forward"]
    assert [rule["code"] for rule in document["rules"]] == ["OOM101", "OOM301"]
    assert document["parts"][0]["meanings"][0]["evidence"] == "constructed"


def test_what_was_not_followed_has_its_reason_in_json(train: Path) -> None:
    document = as_json("print(x)")
    assert document["ways"] == document["stories"] == []
    assert len(document["silence"]) == 2


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("kept += loss\n", [], "FAK101 (kept-value) line 1: kept is flagged\n"),
        ("kept += loss  # noqa: FAK101\n", [], "[not reported: a comment for line 1]"),
        ("kept += loss\n# oomlint: noqa\n", [], "[not reported: a comment for the whole file]"),
        (
            "a = hint\n",
            [],
            "FAK901 (mere-hint) line 1: hint is flagged [not reported: not selected]",
        ),
        ("a = hint\n", ["--config", "select = ['FAK901']"], "hint is flagged\n"),
        ("kept += loss\n", ["--config", "ignore = ['FAK101']"], "[not reported: ignored, or not"),
        (
            "kept += loss\n",
            ["--config", "per-file-ignores = {'b.py' = ['FAK101']}"],
            "[not reported: per-file-ignores for `b.py`",
        ),
        ("kept += loss\n", ["--config", "exclude = ['b.py']"], "note: `oomlint check` leaves this"),
        ("x = 1\n", ["--rule", "OOM301"], "not asked: the file's code holds none of"),
        (
            "x = 1\n",
            ["--rule", "clip-before-unscale"],
            "OOM301 (clip-before-unscale)\n      on for",
        ),
    ],
)
def test_rules(train: Path, text: str, options: list[str], said: str) -> None:
    write(train, {"b.py": text})
    answer = call("explain", "b.py:1", *options)
    assert (answer.code, answer.err) == (0, "")
    assert said in answer.out


def test_a_finding_elsewhere_names_the_line_on_its_path(project: Path) -> None:
    text = """
        import torch

        def f(loss, params, optimizer):
            scaler = torch.amp.GradScaler()
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            scaler.step(optimizer)
        """
    write(project, {"a.py": dedent(text)})
    out = call("explain", "a.py:6", "--rule", "OOM301").out
    assert "line 7" in out
    assert "[this line is on its path]" in out


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("train.py", "`train.py` is not of the form FILE:LINE, as in `train.py:42`"),
        ("train.py:x", "`train.py:x` is not of the form FILE:LINE"),
        ("none.py:1", "none.py: cannot be read: no such file or directory"),
        ("train.py:900", "train.py has 48 lines; there is no line 900"),
        (
            "train.py:4",
            "train.py:4: no statement stands on this line; the next one stands on line 5",
        ),
        ("bad.py:1", "bad.py:1: is no Python"),
    ],
)
def test_refusals(train: Path, place: str, said: str) -> None:
    write(train, {"bad.py": "def f(:\n"})
    answer = call("explain", place)
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert len(answer.err.splitlines()) == 1


def test_unknown_rule(train: Path) -> None:
    answer = call("explain", "train.py:5", "--rule", "OOM999")
    assert (answer.code, answer.out) == (2, "")
    assert "there is no rule `OOM999`" in answer.err


def test_a_place_with_a_column_is_the_same_line(train: Path) -> None:
    row = row_of("thing.step()")
    assert call("explain", f"train.py:{row}:9").out == call("explain", f"train.py:{row}").out


def test_nothing_is_observed_any_more_afterwards(train: Path) -> None:
    from oomlint.analysis import dispatch, exploration

    before = dict(dispatch.EXPRESSIONS), dict(dispatch.STATEMENTS)
    assert exploration.MAX_WORLDS
    explained("thing.step()")
    assert before == (dispatch.EXPRESSIONS, dispatch.STATEMENTS)
