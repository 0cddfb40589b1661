"""What outlives an iteration: totals, containers, attributes, meters and closures."""

from __future__ import annotations

import ast
from textwrap import dedent, indent

import pytest
from stories import model_of

from oomlint.analysis import retention
from oomlint.analysis.state import Event, Kind


def keeps(text: str) -> list[Event]:
    """The keep events of the first world's second iterations, when a total has become one."""
    world = model_of(text).worlds[0]
    found = [e for e in world.events if e.kind is Kind.KEEP]
    return [e for e in found if all(loop.iteration == 2 for loop in e.loops)]


def training(inside: str, before: str = "", behind: str = "", top: str = "") -> str:
    return "\n".join(
        [
            "import torch",
            "from collections import deque, defaultdict",
            dedent(top),
            "def train(model, loader, criterion, optimizer, args):",
            indent(dedent(before), "    "),
            "    for x, y in loader:",
            "        loss = criterion(model(x), y)",
            "        loss.backward()",
            "        optimizer.step()",
            indent(dedent(inside), "        "),
            indent(dedent(behind), "    "),
        ]
    )


KEPT = {
    "total": ("total += loss", "total = 0", "total"),
    "total with plus": ("total = total + loss", "total = 0", "total"),
    "total with plus, other way round": ("total = loss + total", "total = 0", "total"),
    "moving average": ("total = 0.9 * total + 0.1 * loss", "total = 0", "total"),
    "minus": ("total -= loss", "total = 0", "total"),
    "scaled": ("total += loss * x.size(0)", "total = 0", "total"),
    "mean of a batch": ("total += loss.mean()", "total = 0", "total"),
    "append": ("kept.append(loss)", "kept = []", "container"),
    "append a tuple": ("kept.append((1, loss))", "kept = []", "container"),
    "append a dict": ("kept.append({'loss': loss})", "kept = []", "container"),
    "extend": ("kept.extend([loss])", "kept = []", "container"),
    "plus a list": ("kept += [loss]", "kept = []", "container"),
    "insert": ("kept.insert(0, loss)", "kept = list()", "container"),
    "set": ("kept.add(loss)", "kept = set()", "container"),
    "deque": ("kept.append(loss)", "kept = deque()", "container"),
    "list in a dict": ("kept['a'].append(loss)", "kept = {'a': []}", "container"),
    "defaultdict": ("kept['a'].append(loss)", "kept = defaultdict(list)", "container"),
    "attribute total": ("args.total += loss", "args.total = 0", "total"),
    "attribute list": ("args.kept.append(loss)", "args.kept = []", "container"),
    "list of nobody": ("args.kept.append(loss)", "", "container"),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept(name: str) -> None:
    inside, before, how = KEPT[name]
    assert [event.detail["how"] for event in keeps(training(inside, before))] == [how]


NOT_KEPT = {
    "a name": ("last = loss", "last = None"),
    "detached": ("total += loss.detach()", "total = 0"),
    "a number": ("total += loss.item()", "total = 0"),
    "a float": ("total += float(loss)", "total = 0"),
    "a count": ("total += 1", "total = 0"),
    "a size": ("total += x.size(0)", "total = 0"),
    "a list of the iteration": ("kept = []\nkept.append(loss)", ""),
    "a bounded deque": ("kept.append(loss)", "kept = deque(maxlen=10)"),
    "a bounded deque by place": ("kept.append(loss)", "kept = deque([], 10)"),
    "detached in a list": ("kept.append(loss.detach().cpu())", "kept = []"),
    "text": ("kept.append(f'{loss}')", "kept = []"),
    "a total of the iteration": ("total = 0\ntotal += loss", ""),
    "one key": ("kept['loss'] = loss", "kept = {}"),
}


@pytest.mark.parametrize("name", NOT_KEPT)
def test_what_is_not_kept(name: str) -> None:
    found = retentions(training(*NOT_KEPT[name]))
    assert found == []


@pytest.mark.parametrize("inside", ["kept = []\nkept.append(loss)", "total = 0\ntotal += loss"])
def test_what_is_made_in_an_iteration_does_not_outlive_it(inside: str) -> None:
    assert keeps(training(inside)) == []


def retentions(text: str) -> list[str]:
    """`row: place <- loss` for each loss that is kept with its graph."""
    model = model_of(text)
    return [
        f"{item.node.lineno - offset(text)}: {item.place} <- {item.loss}"
        for item in retention.losses(model)
    ]


def offset(text: str) -> int:
    """The row above what stands behind `optimizer.step()`."""
    rows = dedent(text).splitlines()
    return max(i for i, row in enumerate(rows, 1) if row.strip() == "optimizer.step()")


RETAINED = {
    "total": ("total += loss", "total = 0", "", "1: total <- loss"),
    "total with plus": ("total = total + loss", "total = 0", "", "1: total <- loss"),
    "moving average": (
        "total = 0.9 * total + 0.1 * loss", "total = 0", "", "1: total <- loss"),
    "append": ("kept.append(loss)", "kept = []", "", "1: kept <- loss"),
    "a tuple": ("kept.append((x, loss))", "kept = []", "", "1: kept <- loss"),
    "a dict": ("kept.append({'l': loss})", "kept = []", "", "1: kept <- loss"),
    "attribute": ("args.total += loss", "args.total = 0.0", "", "1: args.total <- loss"),
    "printed afterwards": ("total += loss", "total = 0", "print(total.item())", "1: total <- loss"),
    "two totals": ("a += loss\nb = 1", "a = 0\nb = 0", "", "1: a <- loss"),
    "a part of the loss": (
        "total += part", "total = 0", "", "1: total <- part"),
    "another name": ("l = loss\ntotal += l", "total = 0", "", "2: total <- l"),
    "under a condition": ("if args.log:\n    total += loss", "total = 0", "", "2: total <- loss"),
    "two statements in a row": ("y = 1; total += loss", "total = 0", "", "1: total <- loss"),
}  # fmt: skip


@pytest.mark.parametrize("name", RETAINED)
def test_losses_that_are_retained(name: str) -> None:
    inside, before, behind, expected = RETAINED[name]
    text = training(inside, before, behind)
    if name == "a part of the loss":
        text = text.replace(
            "        loss =", "        part = criterion(model(x), y)\n        loss = part +"
        )
    assert retentions(text) == [expected]


RELEASED = {
    "reset in the loop": ("total += loss\nif args.log:\n    total = 0", "total = 0"),
    "cleared in the loop": ("kept.append(loss)\nkept.clear()", "kept = []"),
    "popped in the loop": ("kept.append(loss)\nkept.pop()", "kept = []"),
    "deleted in the loop": ("kept.append(loss)\ndel kept[0]", "kept = []"),
    "under no_grad": ("with torch.no_grad():\n    total += loss", "total = 0"),
    "detached afterwards": ("loss = loss.detach()\ntotal += loss", "total = 0"),
    "no loss of this step": ("kept.append(x)", "kept = []"),
    "an output of nobody": ("kept.append(args.make(x))", "kept = []"),
}


@pytest.mark.parametrize("name", RELEASED)
def test_losses_that_are_not_retained(name: str) -> None:
    inside, before = RELEASED[name]
    assert retentions(training(inside, before)) == []


def test_a_total_that_is_trained_on_is_no_retention() -> None:
    text = """
    import torch
    def train(model, loader, criterion, optimizer):
        for batch in loader:
            total = 0
            for x, y in batch:
                total += criterion(model(x), y)
            total.backward()
            optimizer.step()
    """
    assert retentions(text) == []


def test_a_list_of_losses_that_is_summed_and_trained_on() -> None:
    text = """
    import torch
    def train(model, loader, criterion, optimizer):
        for batch in loader:
            kept = []
            for x, y in batch:
                kept.append(criterion(model(x), y))
            sum(kept).backward()
            optimizer.step()
    """
    assert retentions(text) == []


def test_a_total_over_epochs_and_one_of_each_epoch() -> None:
    text = """
    import torch
    def train(model, loader, criterion, optimizer):
        all_losses = []
        for epoch in range(3):
            total = 0
            for x, y in loader:
                loss = criterion(model(x), y)
                loss.backward()
                optimizer.step()
                total += loss
            all_losses.append(total)
    """
    assert retentions(text)[0] == "1: total <- loss"


METER = """
class Meter:
    def __init__(self):
        self.sum, self.count = 0, 0
    def reset(self):
        self.sum, self.count = 0, 0
    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
"""


def test_a_meter_that_stores_what_it_is_given() -> None:
    text = training("meter.update(loss)", "meter = Meter()", top=METER)
    assert retentions(text) == ["1: meter.update <- loss"]
    text = training("meter.update(loss.item())", "meter = Meter()", top=METER)
    assert retentions(text) == []
    careful = METER.replace("+= value", "+= value.detach()")
    assert retentions(training("meter.update(loss)", "meter = Meter()", top=careful)) == []


def test_a_meter_that_is_made_anew() -> None:
    text = training("meter = Meter()\nmeter.update(loss)", top=METER)
    assert retentions(text) == []


def test_a_list_in_an_attribute_of_self() -> None:
    text = """
    import torch
    class Trainer:
        def __init__(self, model, criterion, optimizer):
            self.model, self.criterion, self.optimizer = model, criterion, optimizer
            self.history = []
        def step(self, x, y):
            loss = self.criterion(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            self.history.append(loss)
        def train(self, loader):
            for x, y in loader:
                self.step(x, y)
    """
    (item,) = retention.losses(model_of(text))
    assert (item.place, item.loss) == ("self.history", "loss")


def test_a_list_of_the_enclosing_function() -> None:
    text = """
    import torch
    def train(model, loader, criterion, optimizer):
        history = []
        def step(x, y):
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            history.append(loss)
        for x, y in loader:
            step(x, y)
    """
    (item,) = retention.losses(model_of(text))
    assert (item.place, item.loss) == ("history", "loss")


FIXES = [
    ("total += loss", "total += loss.detach()"),
    ("total = total + loss", "total = total + loss.detach()"),
    ("kept.append(loss)", "kept.append(loss.detach())"),
    ("kept.append(loss.cpu())", "kept.append(loss.detach().cpu())"),
    ("kept.append((x, loss))", "kept.append((x, loss.detach()))"),
    ("kept.append({'l': loss})", "kept.append({'l': loss.detach()})"),
    ("total += loss * x.size(0)", "total += loss.detach() * x.size(0)"),
    ("total += loss / len(loader)", "total += loss.detach() / len(loader)"),
    ("total += loss  # é", "total += loss.detach()  # é"),
]


@pytest.mark.parametrize(("line", "fixed"), FIXES)
def test_the_operand_that_is_cut_off(line: str, fixed: str) -> None:
    text = training(line, "total = 0\nkept = []")
    model = model_of(text)
    (item,) = retention.losses(model)
    fix = retention.detach(model, item)
    assert fix is not None
    changed = model.source.text
    for edit in reversed(fix.edits):
        changed = changed[: edit.start] + edit.content + changed[edit.end :]
    assert changed == model.source.text.replace(line, fixed)
    ast.parse(changed)


def test_the_witness_path() -> None:
    (item,) = retention.losses(model_of(training("total += loss", "total = 0")))
    assert [(what, event.kind) for event, what in item.path] == [
        ("backward", Kind.BACKWARD),
        ("kept beyond the iteration", Kind.KEEP),
    ]
