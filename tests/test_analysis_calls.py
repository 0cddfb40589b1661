"""What is followed into: functions, closures, methods, instances, properties, inheritance."""

from __future__ import annotations

from textwrap import dedent

import pytest
from stories import both_iterations, events, model_of, result, words, worlds

from oomlint.analysis.state import Kind
from oomlint.analysis.values import Container, Number, Tensor, has_graph

STEP = ["backward", "step optimizer"]

TRAIN = "def train(loss, optimizer, scaler, model, x, loader):\n    "


def case(before: str, body: str) -> str:
    return f"import torch\n{dedent(before)}\n{TRAIN}" + dedent(body).replace("\n", "\n    ") + "\n"


FOLLOWED = {
    "a tuple under other names": (
        "",
        "pair = (loss, optimizer)\nl, o = pair\nl.backward()\no.step()",
    ),
    "zip under other names": (
        "",
        "for l, o in zip([loss], [optimizer]):\n    l.backward()\n    o.step()\n    break",
    ),
    "a class method": (
        """
        class Stepper:
            @classmethod
            def go(cls, loss, o):
                loss.backward()
                o.step()
        """,
        "Stepper.go(loss, optimizer)",
    ),
    "a default that is a name": (
        "",
        "def go(l=loss, o=optimizer):\n    l.backward()\n    o.step()\ngo()",
    ),
    "partial with arguments": (
        "import functools\ndef go(l, o):\n    l.backward()\n    o.step()",
        "functools.partial(go, loss)(optimizer)",
    ),
    "a function": ("def go(loss, o):\n    loss.backward()\n    o.step()", "go(loss, optimizer)"),
    "keywords": (
        "def go(loss, o):\n    loss.backward()\n    o.step()",
        "go(o=optimizer, loss=loss)",
    ),
    "a star": ("def go(loss, o):\n    loss.backward()\n    o.step()", "go(*(loss, optimizer))"),
    "two stars": (
        "def go(loss, o):\n    loss.backward()\n    o.step()",
        "go(loss, **{'o': optimizer})",
    ),
    "a parameter list": (
        "def go(*args):\n    args[0].backward()\n    args[1].step()",
        "go(loss, optimizer)",
    ),
    "keyword parameters": (
        "def go(**given):\n    given['l'].backward()\n    given['o'].step()",
        "go(l=loss, o=optimizer)",
    ),
    "keyword-only": (
        "def go(loss, *, o):\n    loss.backward()\n    o.step()",
        "go(loss, o=optimizer)",
    ),
    "positional-only": (
        "def go(loss, o, /):\n    loss.backward()\n    o.step()",
        "go(loss, optimizer)",
    ),
    "two functions deep": (
        """
        def inner(o): o.step()
        def go(loss, o):
            loss.backward()
            inner(o)
        """,
        "go(loss, optimizer)",
    ),
    "an alias of a function": (
        "def go(loss, o):\n    loss.backward()\n    o.step()",
        "run = go\nrun(loss, optimizer)",
    ),
    "a function given to a function": (
        "def back(l): l.backward()\ndef go(f, l): return f(l)",
        "go(back, loss)\noptimizer.step()",
    ),
    "a closure": ("", "def go():\n    loss.backward()\n    optimizer.step()\ngo()"),
    "a closure's default": (
        "",
        "def go(l=loss, o=optimizer):\n    loss.backward()\n    optimizer.step()\ngo()",
    ),
    "a lambda": ("", "back = lambda l: l.backward()\nback(loss)\noptimizer.step()"),
    "a function that returns": (
        "def back(l):\n    l.backward()\n    return l\n",
        "kept = back(loss)\noptimizer.step()",
    ),
    "a function that returns the optimizer": (
        "def pick(o, a):\n    if a:\n        return o\n    return o",
        "o = pick(optimizer, x)\nloss.backward()\no.step()",
    ),
    "an instance": (
        """
        class Stepper:
            def __init__(self, o):
                self.o = o
            def go(self, loss):
                loss.backward()
                self.o.step()
        """,
        "s = Stepper(optimizer)\ns.go(loss)",
    ),
    "a method of the base class": (
        """
        class Base:
            def back(self, loss):
                loss.backward()
        class Stepper(Base):
            def go(self, loss, o):
                self.back(loss)
                o.step()
        """,
        "Stepper().go(loss, optimizer)",
    ),
    "super": (
        """
        class Base:
            def go(self, loss, o):
                o.step()
        class Stepper(Base):
            def go(self, loss, o):
                loss.backward()
                super().go(loss, o)
        """,
        "Stepper().go(loss, optimizer)",
    ),
    "super's constructor": (
        """
        class Base:
            def __init__(self, o):
                self.o = o
        class Stepper(Base):
            def __init__(self, o):
                super().__init__(o)
            def go(self, loss):
                loss.backward()
                self.o.step()
        """,
        "Stepper(optimizer).go(loss)",
    ),
    "a static method": (
        """
        class Stepper:
            @staticmethod
            def go(loss, o):
                loss.backward()
                o.step()
        """,
        "Stepper.go(loss, optimizer)",
    ),
    "a class method's own method": (
        """
        class Stepper:
            def back(self, loss):
                loss.backward()
        """,
        "Stepper.back(None, loss)\noptimizer.step()",
    ),
    "a property": (
        """
        class Holder:
            def __init__(self, o):
                self.held = o
            @property
            def o(self):
                return self.held
        """,
        "h = Holder(optimizer)\nloss.backward()\nh.o.step()",
    ),
    "a bound method in a name": (
        """
        class Stepper:
            def back(self, loss):
                loss.backward()
        """,
        "go = Stepper().back\ngo(loss)\noptimizer.step()",
    ),
    "a dataclass": (
        """
        from dataclasses import dataclass
        @dataclass
        class State:
            loss: object
            o: object
        """,
        "s = State(loss, o=optimizer)\ns.loss.backward()\ns.o.step()",
    ),
    "an attribute set from outside": (
        "class Box:\n    pass",
        "b = Box()\nb.o = optimizer\nloss.backward()\nb.o.step()",
    ),
    "a dict": ("", "d = {'l': loss, 'o': optimizer}\nd['l'].backward()\nd['o'].step()"),
    "a tuple": ("", "pair = (loss, optimizer)\npair[0].backward()\npair[1].step()"),
    "zip": (
        "",
        "for l, opt in zip([loss], [optimizer]):\n    l.backward()\n    opt.step()\n    break",
    ),
    "a list": ("", "xs = [loss, optimizer]\nxs[0].backward()\nxs[-1].step()"),
    "a loop over a list": (
        "",
        "for o in [optimizer]:\n    loss.backward()\n    o.step()\n    break",
    ),
    "partial": (
        "import functools\ndef back(l): l.backward()",
        "functools.partial(back)(loss)\noptimizer.step()",
    ),
    "a decorated function": (
        "import functools\n@functools.cache\ndef go(loss, o):\n    loss.backward()\n    o.step()",
        "go(loss, optimizer)",
    ),
    "an async function": (
        "async def go(loss, o):\n    loss.backward()\n    o.step()",
        "await go(loss, optimizer)",
    ),
    "a global": (
        "state = None\ndef back():\n    state.backward()",
        "global state\nstate = loss\nback()\noptimizer.step()",
    ),
    "nonlocal": (
        "",
        "o = 1\ndef go():\n    nonlocal o\n    o = optimizer\n    loss.backward()\ngo()\no.step()",
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_is_followed(name: str) -> None:
    text = case(*FOLLOWED[name])
    if "await" in text:
        text = text.replace("def train", "async def train")
    assert worlds(text) == [STEP]


NOT_FOLLOWED = {
    "a generator": (
        "def go(l):\n    l.backward()\n    yield l",
        "go(loss)\nloss.backward()\noptimizer.step()",
    ),
    "itself": (
        "",
        "loss.backward()\noptimizer.step()\ntrain(loss, optimizer, scaler, model, x, loader)",
    ),
    "a function of nobody": ("", "somewhere(loss)\nloss.backward()\noptimizer.step()"),
    "a function that is only named": (
        "def go(l): l.backward()",
        "print(go)\nloss.backward()\noptimizer.step()",
    ),
}


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_is_not_followed(name: str) -> None:
    assert worlds(case(*NOT_FOLLOWED[name])) == [STEP]


@pytest.mark.xfail(strict=True, reason="a class's name does not lead to its `__call__`")
def test_a_function_that_only_calls_an_instance() -> None:
    text = case(
        """
        class Stepper:
            def __init__(self, o):
                self.o = o
            def __call__(self, loss):
                loss.backward()
                self.o.step()
        """,
        "Stepper(optimizer)(loss)",
    )
    assert worlds(text) == [STEP]


def test_a_callable_instance() -> None:
    text = case(
        """
        class Back:
            def __call__(self, loss):
                loss.backward()
        """,
        "back = Back()\nback(loss)\nloss.backward()\noptimizer.step()",
    )
    assert worlds(text) == [["backward", *STEP]]


def test_a_loop_over_a_generator_runs_its_body() -> None:
    before = "def losses(l):\n    yield l"
    body = "for l in losses(loss):\n    l.backward()\n    optimizer.step()\n    break"
    assert worlds(case(before, body)) == [STEP]


FORWARDS = {
    "assigned in the constructor": ("self.net = torch.nn.Linear(1, 1)", "", ["forward Linear"]),
    "given to the constructor": ("self.net = net", "", ["forward net"]),
    "assigned by another method": ("", "self.net = torch.nn.Linear(1, 1)", ["forward Linear"]),
    "of nobody, used before": ("", "", ["forward self.net"]),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_forwards_of_an_attribute(name: str) -> None:
    constructor, elsewhere, expected = FORWARDS[name]
    text = f"""
import torch
class Trainer:
    def __init__(self, net):
        {constructor or "pass"}
    def configure(self):
        {elsewhere or "pass"}
    def run(self, loader):
        self.net.eval()
        return self.net(loader)
"""
    assert events(text)[1:] == expected


def test_a_forward_of_an_attribute_of_an_unknown_object() -> None:
    text = case("", "x.model.eval()\nx.model(loader)")
    assert events(text) == ["eval x.model", "forward x.model"]


def test_a_forward_of_an_attribute_that_is_only_called() -> None:
    text = """
import torch
class Trainer(Base):
    def run(self, loader, loss):
        self.net(loader)
        self.net.eval()
"""
    assert events(text) == ["forward self.net", "eval self.net"]


# what comes back


RETURNED = [
    ("def f(m): return m(1)", "f(model)", True),
    ("def f(m): return m(1).detach()", "f(model)", False),
    ("def f(m):\n    return m(1), 2", "f(model)[0]", True),
    ("def f(m):\n    a = m(1)\n    return {'loss': a.mean()}", "f(model)['loss']", True),
    ("def f(m, a):\n    if a:\n        return m(1)\n    return m(2)", "f(model, x)", True),
    ("def f(m, a):\n    if a:\n        return m(1)\n    return 0", "f(model, x)", False),
    ("def f(m): pass", "f(model)", False),
    ("def f(m):\n    return [m(i) for i in range(3)]", "f(model)", True),
    ("def f(m):\n    return sum(m(i) for i in range(3))", "f(model)", True),
]


@pytest.mark.parametrize(("before", "expression", "graph"), RETURNED)
def test_what_calls_return(before: str, expression: str, graph: bool) -> None:
    text = case(before, f"model.eval()\nfound = {expression}")
    assert has_graph(result(text, "found")) is graph


def test_a_call_that_is_not_followed_may_return_anything() -> None:
    value = result(case("", "model.eval()\nfound = somewhere(model(1))"), "found")
    assert isinstance(value, Tensor)
    assert (value.opaque, value.graph) == (True, None)


VALUES = [
    ("[1, 2]", Container),
    ("{'a': 1}", Container),
    ("1 + 2", Number),
    ("len(x)", Number),
    ("x > 1", Number),
    ("f'{x}'", Number),
    ("model(x) + 1", Tensor),
    ("x + 1", Tensor),
]


@pytest.mark.parametrize(("expression", "kind"), VALUES)
def test_kinds_of_values(expression: str, kind: type) -> None:
    assert isinstance(result(case("", f"model.eval()\nfound = {expression}"), "found"), kind)


def test_the_way_to_an_event_is_kept() -> None:
    text = case(
        """
        def inner(l):
            l.backward()
        def outer(l):
            inner(l)
        """,
        "outer(loss)\noptimizer.step()",
    )
    backward, step = model_of(text).worlds[0].events
    assert [call.callee.name for call in backward.calls if call.callee] == ["outer", "inner"]
    assert backward.function is not None
    assert backward.function.name == "inner"
    assert step.calls == ()


def test_objects_keep_their_identity_through_calls() -> None:
    text = case(
        """
        class Trainer:
            def __init__(self, net):
                self.net = net
                self.opt = torch.optim.SGD(self.net.parameters(), lr=1)
            def back(self, loss):
                loss.backward()
            def step(self):
                self.opt.step()
        """,
        """\
        a, b = Trainer(model), Trainer(model)
        a.back(loss)
        a.step()
        b.step()
        a.opt.step()
        """,
    )
    world = model_of(text).worlds[0]
    keys = [
        event.subject.key for event in world.events if event.kind is Kind.STEP and event.subject
    ]
    assert keys[0] == keys[2]
    assert keys[0].startswith("SGD@train:")


MADE_TWICE = {
    "two instances": (
        """
        class Holder:
            def __init__(self, net):
                self.opt = torch.optim.SGD(net.parameters(), lr=1)
        """,
        "a, b = Holder(model).opt, Holder(x).opt",
    ),
    "a factory": (
        "def make(net):\n    return torch.optim.SGD(net.parameters(), lr=1)",
        "a = make(model)\nb = make(x)",
    ),
}


@pytest.mark.parametrize("name", MADE_TWICE)
def test_two_calls_make_two_objects(name: str) -> None:
    before, body = MADE_TWICE[name]
    text = case(before, f"{body}\nloss.backward()\na.step()\nb.step()")
    keys = {e.subject.key for e in model_of(text).worlds[0].events if e.subject is not None}
    assert len(keys) == 2


def test_a_function_of_the_file_is_followed_for_its_events_only() -> None:
    long = "\n".join(f"    a{i} = {i}" for i in range(100))
    text = case(
        f"def quiet(l):\n{long}\n    return l\ndef loud(l):\n{long}\n    l.backward()",
        "quiet(loss)\nloud(loss)\noptimizer.step()",
    )
    world = model_of(text).worlds[0]
    assert words(world.events, Kind.OPAQUE_CALL, Kind.BACKWARD, Kind.STEP) == [*STEP]


RAISING = {
    "a method that is left to subclasses": (
        "def task(l):\n    raise NotImplementedError",
        "loss.backward()\ntask(loss)\noptimizer.step()",
        STEP,
    ),
    "a kind of argument that it does not know": (
        "def kind(l):\n    if isinstance(l, str):\n        return 1\n    raise TypeError(l)",
        "loss.backward()\nkind(loss)\noptimizer.step()",
        STEP,
    ),
    "what is handled": (
        "def task(l):\n    raise NotImplementedError",
        "try:\n    task(loss)\n    loss.backward()\nexcept Exception:\n    optimizer.step()",
        STEP[1:],
    ),
    "a handler around its caller": (
        "def task(l):\n    raise ValueError\ndef train_one(l):\n    task(l)\n    l.backward()",
        "try:\n    train_one(loss)\nexcept ValueError:\n    optimizer.step()",
        STEP[1:],
    ),
}


@pytest.mark.parametrize("name", RAISING)
def test_a_function_that_raises_ends_no_training(name: str) -> None:
    before, body, expected = RAISING[name]
    assert events(case(before, body)) == expected


def test_calls_are_followed_nine_deep() -> None:
    lines = ["def f0(l): l.backward()"]
    lines += [f"def f{i}(l): f{i - 1}(l)" for i in range(1, 12)]
    for depth, expected in ((8, STEP), (9, STEP[1:])):
        assert events(case("\n".join(lines), f"f{depth}(loss)\noptimizer.step()")) == expected


def test_lists_of_optimizers_step_each_in_turn() -> None:
    text = case(
        "",
        "a = torch.optim.SGD(x)\nb = torch.optim.Adam(x)\nloss.backward()"
        "\nfor o in [a, b]:\n    o.step()",
    )
    assert both_iterations(text) == ["backward", "step SGD", "step Adam"]
