"""The analysis ends, soon, whatever the code looks like; and says the same thing every time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stories import findings, marks, model_of, words, write

from oomlint.analysis import SyntaxProblem, dispatch, exploration, following, state
from oomlint.analysis.state import Kind

# Seconds; what is measured takes a fraction of that on an idle core.
SOON = 10.0


@contextmanager
def soon() -> Iterator[None]:
    started = time.process_time()
    yield
    assert time.process_time() - started < SOON


HEAD = """\
import torch

def train(model, loader, criterion, optimizer, scaler, args):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""
TAIL = """\
        scaler.step(optimizer)
        scaler.update()
"""
FAULT = "OOM301@8:9"


def nested_ifs(count: int, body: str) -> str:
    lines = [" " * i + f"if args.a{i}:" for i in range(count)]
    return "\n".join(["def f(args, loss, optimizer):", *(f" {line}" for line in lines)]) + (
        f"\n {' ' * count}{body}\n"
    )


def long_sum(count: int) -> str:
    return f"def f(loss, optimizer, a):\n    x = {' + '.join(['a'] * count)}"


def recursive(count: int) -> str:
    """Functions of which each calls each, with events in all of them."""
    names = [f"f{i}" for i in range(count)]
    calls = "\n".join(f"    {name}(loss, optimizer)" for name in names)
    return "\n".join(
        f"def {name}(loss, optimizer):\n    loss.backward()\n{calls}\n    optimizer.step()"
        for name in names
    )


def doubling(count: int) -> str:
    """Functions of which each calls the next one twice."""
    lines = [f"def f{count}(loss, optimizer):\n    loss.backward()\n    optimizer.step()"]
    lines += [
        f"def f{i}(loss, optimizer):\n    f{i + 1}(loss, optimizer)\n    f{i + 1}(loss, optimizer)"
        for i in range(count)
    ]
    return "\n".join(lines)


EVENTS = "\n    loss.backward()\n    optimizer.step()\n"

TEXTS = {
    "recursion": "def f(loss, optimizer):\n    loss.backward()\n    f(loss, optimizer)\n"
    "    optimizer.step()\n",
    "mutual recursion": recursive(2),
    "everybody calls everybody": recursive(12),
    "calls that double": doubling(30),
    "recursion through self": "class A:\n    def f(self, loss):\n        loss.backward()\n"
    "        self.f(loss)\n        self.o.step()\n        A().f(loss)\n",
    "a class that is its own base": "class A(A):\n    def f(self, loss, o):\n"
    "        loss.backward()\n        o.step()\n        super().f()\n        self.g()\n",
    "bases in a circle": "class A(B):\n    pass\nclass B(A):\n    def f(self, loss, o):\n"
    "        loss.backward()\n        o.step()\n        self.g\n",
    "a constructor that makes itself": "class A:\n    def __init__(self, loss, o):\n"
    "        self.a = A(loss, o)\n        loss.backward()\n        o.step()\n"
    "def f(loss, o):\n    A(loss, o)\n    loss.backward()\n    o.step()\n",
    "a property of itself": "class A:\n    @property\n    def a(self):\n        return self.a\n"
    "    def f(self, loss, o):\n        loss.backward()\n        self.a.step()\n",
    "a closure of itself": "def f(loss, o):\n    def g():\n        loss.backward()\n        g()\n"
    "    g()\n    o.step()\n",
    "a lambda of itself": "def f(loss, o):\n    g = lambda: g()\n    g()\n    loss.backward()\n"
    "    o.step()\n",
    "a variable of itself": "x = y\ny = x\ndef f(loss, optimizer):\n    x.a" + EVENTS,
    "a list in itself": "def f(loss, optimizer):\n    a = []\n    a.append(a)\n    for b in a:\n"
    "        a.extend(b)\n    a[0][0].x" + EVENTS,
    "90 nested ifs": nested_ifs(90, "loss.backward(); optimizer.step()"),
    "19 nested loops": "def f(loss, optimizer, a):\n"
    + "".join(" " * (i + 1) + f"for x{i} in a:\n" for i in range(19))
    + " " * 20 + "loss.backward(); optimizer.step()\n",
    "60 ifs with events": "def f(loss, optimizer, a):\n    loss.backward()\n"
    + "".join(f"    if a.x{i}:\n        optimizer.step()\n" for i in range(60)),
    "30 ifs with events": "def f(loss, optimizer, a):\n    loss.backward()\n"
    + "".join(f"    if a.x{i}:\n        optimizer.step()\n" for i in range(30)),
    "60 ifs with exits": "def f(loss, optimizer, a):\n    loss.backward()\n"
    + "".join(f"    if a.x{i}:\n        return\n" for i in range(60)) + "    optimizer.step()\n",
    "60 ifs without events": "def f(loss, optimizer, a):\n"
    + "".join(
        f"    if a.x{i}:\n        b{i} = loss\n    else:\n        b{i} = a\n" for i in range(60)
    )
    + EVENTS,
    "90 elifs": "def f(loss, optimizer, a):\n    loss.backward()\n    if a.x:\n        pass\n"
    + "".join(f"    elif a.x{i}:\n        optimizer.step()\n" for i in range(90)),
    "a test of 300 parts": "def f(loss, optimizer, a):\n    loss.backward()\n    if "
    + " and ".join(f"a.x{i}" for i in range(300)) + ":\n        optimizer.step()\n",
    "5,000 statements": "def f(loss, optimizer):\n"
    + "    loss.backward()\n    optimizer.step()\n" * 2500,
    "5,000 assignments": "def f(loss, optimizer):\n"
    + "".join(f"    a{i} = loss + a{i - 1}\n" for i in range(1, 5000)) + EVENTS,
    "2,000 functions": "".join(
        f"def f{i}(loss, optimizer):\n    loss.backward()\n    optimizer.step()\n"
        for i in range(2000)
    ),
    "a total over 200 lines": "def f(loss, optimizer, a):\n    t = 0\n    for x in a:\n"
    + "        t = t + loss\n" * 200 + "        loss.backward()\n        optimizer.step()\n",
    "a sum of 100 terms": long_sum(100) + EVENTS,
    "a chain of 300 calls": "def f(loss, optimizer, a):\n    x = a" + ".b()" * 300 + EVENTS,
    "a list of 20,000 numbers": "X = [" + "1, " * 20000 + "]\ndef f(loss, optimizer):" + EVENTS,
    "100 comprehensions in each other": "def f(loss, optimizer, a):\n    x = "
    + "[" * 60 + "a()" + " for b in a]" * 60 + EVENTS,
    "conditional expressions in each other": "def f(loss, optimizer, a):\n    x = "
    + "".join(f"optimizer.step() if a.x{i} else " for i in range(60)) + "0" + EVENTS,
    "tries in each other": "def f(loss, optimizer):\n"
    + "".join(" " * (i + 1) + "try:\n" for i in range(19)) + " " * 20 + "loss.backward()\n"
    + "".join(
        " " * (19 - i) + "finally:\n" + " " * (20 - i) + "optimizer.step()\n" for i in range(19)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_ends_soon(name: str) -> None:
    with soon():
        model = model_of(TEXTS[name])
    kinds = {event.kind for world in model.worlds for event in world.events}
    assert Kind.BACKWARD in kinds


@pytest.mark.parametrize("name", TEXTS)
def test_rules_end_soon(name: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    with soon():
        first = findings(path, "import torch\n# append extend\n" + TEXTS[name])
    assert len({(f.code, f.start, f.end) for f in first}) == len(first)


@pytest.mark.parametrize(
    "middle",
    [
        "".join(f"        if args.a{i}:\n            optimizer.step()\n" for i in range(60)),
        "".join(f"        a{i} = x\n" for i in range(1500)),
        "".join(f"        if args.a{i}:\n            print(x)\n" for i in range(300)),
    ],
    ids=["60 ifs with events", "1,500 statements", "300 ifs without events"],
)
def test_a_fault_before_much_code_is_still_found(middle: str, tmp_path: Path) -> None:
    text = HEAD + TAIL + middle
    with soon():
        assert FAULT in marks(tmp_path / "train.py", text)


@pytest.mark.parametrize("count", [101, 300, 3000])
def test_more_levels_of_indentation_than_python_accepts(count: int) -> None:
    with soon(), pytest.raises(SyntaxProblem, match="indentation"):
        model_of(nested_ifs(count, "loss.backward()"))


@pytest.mark.xfail(
    str(state.__file__).endswith(".py"),  # compiled code does not count its calls
    strict=True,
    reason="an expression that nests too deeply ends its world",
)
def test_a_long_sum_hides_nothing_behind_it() -> None:
    (world,) = model_of(long_sum(800) + EVENTS).worlds
    assert words(world.events) == ["backward", "step optimizer"]


def test_budgets() -> None:
    many = model_of(TEXTS["30 ifs with events"])
    assert len(many.worlds) == exploration.MAX_WORLDS
    costly = model_of(TEXTS["60 ifs with events"])
    spent = [world.statements for world in costly.worlds]
    assert sum(spent[:-1]) < exploration.ROOT_BUDGET <= sum(spent)
    long = model_of(TEXTS["5,000 statements"])
    assert [world.statements for world in long.worlds] == [5000]
    cut = model_of(TEXTS["5,000 statements"] + "    loss.backward()\n" * 100)
    assert [world.statements for world in cut.worlds] == [dispatch.MAX_STATEMENTS + 1]
    assert len(words(cut.worlds[0].events)) == dispatch.MAX_STATEMENTS


# the same thing every time


SEVERAL = {
    "meters.py": "class Meter:\n    def __init__(self):\n        self.sum = 0\n"
    "    def update(self, value):\n        self.sum += value\n",
    "val.py": "import torch\n\ndef evaluate(model, loader):\n    model.eval()\n"
    "    for x in loader:\n        model(x)\n",
    "train.py": HEAD
    + "        if args.a or args.b:\n            meter.update(loss)\n"
    + "        if args.c and args.a in {1, 2, 3}:\n            optimizer.zero_grad()\n"
    + TAIL
    + "        total += loss\n",
    "main.py": "from val import *\nfrom train import train\nfrom meters import Meter\n"
    "def main(model, loader):\n    evaluate(model, loader)\n",
}

PROGRAM = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from stories import findings
found = []
for name in sys.argv[3:]:
    path = Path(sys.argv[2], name)
    found += [
        [f.code, f.start, f.end, f.message, [repr(e) for e in f.fix.edits] if f.fix else None,
         [(w.what, w.row, w.column, w.filename) for w in f.path]]
        for f in findings(path, path.read_text())
    ]
print(json.dumps(found))
"""


def test_two_runs_and_two_hash_seeds_say_the_same(tmp_path: Path) -> None:
    write(tmp_path, SEVERAL)
    (tmp_path / "pyproject.toml").touch()
    answers = []
    for seed in ("0", "1", "1"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), str(tmp_path), *SEVERAL],
            env={**os.environ, "PYTHONHASHSEED": seed},
            # Not where the sources lie: `python -c` would import them, not what is installed.
            cwd=tmp_path,
            capture_output=True,
            check=True,
            timeout=60,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0] == answers[1] == answers[2]
    assert {finding[0] for finding in answers[0]} >= {"OOM101", "OOM301"}


@pytest.mark.parametrize("name", ["everybody calls everybody", "60 ifs with events"])
def test_worlds_come_in_the_same_order(name: str) -> None:
    runs = [model_of(TEXTS[name]).worlds for _ in range(2)]
    stories = [[(world.choices, words(world.events)) for world in worlds] for worlds in runs]
    assert stories[0] == stories[1]


def test_a_second_analysis_of_one_text_says_the_same(tmp_path: Path) -> None:
    text = HEAD + TAIL
    path = tmp_path / "train.py"
    assert marks(path, text) == [FAULT]
    assert findings(path, text) == findings(path, text)


TRAINS = """\
import torch

def train(model, loader, optimizer):
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

def main(model, loader, optimizer):
    train(model, loader, optimizer)

"""


@pytest.mark.parametrize(
    ("caller", "followed"),
    [
        ("def again(model, loader, optimizer):\n    train(model, loader, optimizer)\n", False),
        (
            "def again(model, loader, optimizer):\n    for _ in range(2):\n"
            "        train(model, loader, optimizer)\n",
            True,
        ),
        (
            "def again(model, loader, optimizer):\n    with torch.no_grad():\n"
            "        train(model, loader, optimizer)\n",
            True,
        ),
        (
            "@torch.enable_grad()\ndef again(model, loader, optimizer):\n"
            "    train(model, loader, optimizer)\n",
            True,
        ),
        (
            "def again(model, loader, optimizer):\n    train(model, loader, optimizer)\n"
            "    optimizer.step()\n",
            True,
        ),
    ],
)
def test_who_only_hands_on_is_no_further_way_to_the_same(caller: str, followed: bool) -> None:
    model = model_of(TRAINS + caller)
    roots = {world.root.name for world in model.worlds if world.root is not None}
    assert roots == ({"main", "again"} if followed else {"main"})


def test_a_long_world_follows_only_what_may_train() -> None:
    """Whatever came before, the step is seen; what a helper without events does is not."""
    busy = "\n".join("    count = 1" for _ in range(following.TIRED))
    text = f"""\
import torch

def scaled(x):
    return Scaled(x)

def finish(loss, optimizer):
    loss.backward()
    optimizer.step()

class Scaled:
    def __init__(self, x):
        self.x = x

def train(model, x, optimizer):
{busy}
    scaled(x)
    finish(model(x).mean(), optimizer)
"""
    (world,) = (w for w in model_of(text).worlds if w.root and w.root.name == "train")
    assert [event.kind for event in world.of(Kind.BACKWARD, Kind.STEP)] == [
        Kind.BACKWARD,
        Kind.STEP,
    ]
    assert {function.name for function in world.visited} == {"train", "finish"}
