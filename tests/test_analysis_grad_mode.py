"""Whether gradients are on where a forward happens."""

from __future__ import annotations

from textwrap import dedent, indent

import pytest
from stories import events, model_of, result

from oomlint.analysis.state import Kind
from oomlint.analysis.values import has_graph

ON, OFF, UNSURE = "on", "off", "unsure"
MODES = {True: ON, False: OFF, None: UNSURE}

IMPORTS = """
import contextlib
import functools
import torch
import torch as t
from contextlib import nullcontext, ExitStack
from torch import no_grad, inference_mode as fast
from torch.autograd import grad_mode
"""


def modes(text: str) -> list[str]:
    """The grad mode of each forward of the first world, each loop once."""
    world = model_of(text).worlds[0]
    return [
        MODES[event.grad]
        for event in world.events
        if event.kind is Kind.FORWARD and all(loop.iteration == 1 for loop in event.loops)
    ]


def evaluation(body: str, decorator: str = "", before: str = "") -> str:
    return "\n".join(
        [
            IMPORTS,
            dedent(before),
            decorator,
            "def evaluate(model, loader, args, training):",
            "    model.eval()",
            indent(dedent(body), "    "),
        ]
    )


CONTEXTS = [
    ("torch.no_grad()", OFF),
    ("t.no_grad()", OFF),
    ("no_grad()", OFF),
    ("fast()", OFF),
    ("torch.inference_mode()", OFF),
    ("torch.inference_mode(True)", OFF),
    ("torch.inference_mode(mode=True)", OFF),
    ("torch.inference_mode(False)", ON),
    ("torch.inference_mode(args.fast)", UNSURE),
    ("torch.autograd.no_grad()", OFF),
    ("torch.autograd.grad_mode.no_grad()", OFF),
    ("grad_mode.no_grad()", OFF),
    ("torch.enable_grad()", ON),
    ("torch.set_grad_enabled(False)", OFF),
    ("torch.set_grad_enabled(mode=False)", OFF),
    ("torch.set_grad_enabled(True)", ON),
    ("torch.set_grad_enabled(training)", UNSURE),
    ("torch.set_grad_enabled(not training)", UNSURE),
    ("torch.autocast('cuda'), torch.no_grad()", OFF),
    ("torch.no_grad(), torch.autocast('cuda')", OFF),
    ("torch.no_grad() as g", OFF),
    ("torch.no_grad() if args.fast else torch.enable_grad()", UNSURE),
    ("torch.no_grad() if args.fast else nullcontext()", UNSURE),
    ("torch.no_grad() if args.fast else torch.inference_mode()", OFF),
    ("nullcontext()", ON),
    ("torch.autocast('cuda')", ON),
    ("open('x')", ON),
    ("args.lock", ON),
    ("args.context()", UNSURE),
    ("args.no_grad()", OFF),
]


@pytest.mark.parametrize(("context", "mode"), CONTEXTS)
def test_contexts(context: str, mode: str) -> None:
    text = evaluation(f"with {context}:\n    model(1)\nmodel(2)")
    assert modes(text) == [mode, ON]


@pytest.mark.parametrize("context", ["contextlib.suppress(ValueError)", "contextlib.closing(args)"])
def test_contexts_that_have_nothing_to_do_with_gradients(context: str) -> None:
    assert modes(evaluation(f"with {context}:\n    model(1)")) == [ON]


def test_a_context_in_a_name() -> None:
    text = evaluation(
        """
        context = torch.no_grad()
        with context:
            model(1)
        """
    )
    assert modes(text) == [OFF]


def test_contexts_in_contexts() -> None:
    text = evaluation(
        """
        with torch.no_grad():
            model(1)
            with torch.enable_grad():
                model(2)
                with torch.inference_mode():
                    model(3)
                model(4)
            model(5)
        model(6)
        """
    )
    assert modes(text) == [OFF, ON, OFF, ON, OFF, ON]


STATEMENTS = [
    ("torch.set_grad_enabled(False)\nmodel(1)", [OFF]),
    ("torch.set_grad_enabled(False)\nmodel(1)\ntorch.set_grad_enabled(True)\nmodel(2)", [OFF, ON]),
    ("torch._C._set_grad_enabled(False)\nmodel(1)", [OFF]),
    ("torch.set_grad_enabled(training)\nmodel(1)", [UNSURE]),
    ("with torch.no_grad():\n    for x in loader:\n        model(x)", [OFF]),
    ("for x in loader:\n    with torch.no_grad():\n        model(x)\n    model(x)", [OFF, ON]),
    (
        "with torch.no_grad():\n    try:\n        model(1)\n    finally:\n        model(2)",
        [OFF, OFF],
    ),
    ("try:\n    with torch.no_grad():\n        raise E\nexcept E:\n    model(1)", [ON]),
    ("with torch.no_grad():\n    if training:\n        model(1)", [OFF]),
    ("with torch.no_grad():\n    return [model(x) for x in loader]", [OFF]),
    ("with ExitStack() as stack:\n    stack.enter_context(torch.no_grad())\n    model(1)", [OFF]),
    ("if training:\n    with torch.no_grad():\n        model(1)\nelse:\n    model(2)", [OFF, ON]),
]


@pytest.mark.parametrize(("body", "expected"), STATEMENTS)
def test_statements(body: str, expected: list[str]) -> None:
    assert modes(evaluation(body)) == expected


DECORATORS = [
    ("@torch.no_grad()", OFF),
    ("@torch.no_grad", OFF),
    ("@no_grad()", OFF),
    ("@fast()", OFF),
    ("@t.inference_mode()", OFF),
    ("@torch.inference_mode(False)", ON),
    ("@torch.enable_grad()", ON),
    ("@torch.set_grad_enabled(False)", OFF),
    ("@torch.set_grad_enabled(FLAG)", UNSURE),
    ("@args.torch_no_grad", OFF),
    ("@functools.wraps(print)", ON),
    ("@functools.lru_cache\n@torch.no_grad()", OFF),
]


@pytest.mark.parametrize(("decorator", "mode"), DECORATORS)
def test_decorators(decorator: str, mode: str) -> None:
    assert modes(evaluation("model(1)", decorator)) == [mode]


def test_a_decorator_with_a_keyword() -> None:
    assert modes(evaluation("model(1)", "@torch.inference_mode(mode=False)")) == [ON]


def test_a_decorator_of_the_class() -> None:
    text = (
        IMPORTS
        + """
@torch.no_grad()
class Evaluator:
    def run(self, model, loader):
        model.eval()
        model(1)
"""
    )
    assert modes(text) == [OFF]


CALLED = [
    # a function under its caller's mode
    ("def infer(model, x):\n    return model(x)", "with no_grad():\n    infer(model, 1)", [OFF]),
    ("def infer(model, x):\n    return model(x)", "infer(model, 1)", [ON]),
    ("@torch.no_grad()\ndef infer(model, x):\n    return model(x)", "infer(model, 1)\nmodel(2)",
     [OFF, ON]),
    ("@torch.enable_grad()\ndef infer(model, x):\n    return model(x)",
     "with torch.no_grad():\n    infer(model, 1)\n    model(2)", [ON, OFF]),
    ("def infer(model, x):\n    with torch.no_grad():\n        return model(x)",
     "infer(model, 1)\nmodel(2)", [OFF, ON]),
    # what a callee sets stays set
    ("def off():\n    torch.set_grad_enabled(False)", "off()\nmodel(1)", [OFF]),
    # a context of the project
    ("@contextlib.contextmanager\ndef frozen():\n    with torch.no_grad():\n        yield",
     "with frozen():\n    model(1)\nmodel(2)", [OFF, ON]),
    ("@contextlib.contextmanager\ndef maybe(on):\n  with torch.set_grad_enabled(on):\n    yield",
     "with maybe(training):\n    model(1)", [UNSURE]),
    ("@contextlib.contextmanager\ndef timer():\n    yield", "with timer():\n    model(1)", [ON]),
    # closures and lambdas run where they are called
    ("", "run = lambda x: model(x)\nwith torch.no_grad():\n    run(1)\nrun(2)", [OFF, ON]),
    ("", "def run(x):\n    return model(x)\nwith torch.no_grad():\n    run(1)\nrun(2)", [OFF, ON]),
    ("", "@torch.no_grad()\ndef run(x):\n    return model(x)\nrun(1)\nmodel(2)", [OFF, ON]),
    ("", "with torch.no_grad():\n    def run(x):\n        return model(x)\nrun(1)", [ON]),
]  # fmt: skip


@pytest.mark.parametrize(("before", "body", "expected"), CALLED)
def test_what_is_called_runs_under_the_callers_mode(
    before: str, body: str, expected: list[str]
) -> None:
    assert modes(evaluation(body, before=before)) == expected


def test_a_mode_that_wraps_a_function_by_a_call() -> None:
    before = "def infer(model, x):\n    return model(x)"
    body = "quiet = torch.no_grad()(infer)\nquiet(model, 1)"
    assert modes(evaluation(body, before=before)) == [OFF]


def test_a_phase_loop() -> None:
    text = evaluation(
        """
        for phase in ["train", "val"]:
            for x in loader:
                with torch.set_grad_enabled(phase == "train"):
                    loss = model(x)
                    if phase == "train":
                        loss.backward()
                        args.optimizer.step()
        """
    )
    world = model_of(text).worlds[0]
    phases = [
        (event.loops[0].iteration, MODES[event.grad])
        for event in world.events
        if event.kind is Kind.FORWARD
    ]
    assert OFF not in [mode for phase, mode in phases if phase == 1]
    assert ON not in [mode for phase, mode in phases if phase == 2]
    steps = [e.loops[0].iteration for e in world.events if e.kind is Kind.STEP]
    assert steps == [1, 1]


def test_a_script_without_functions() -> None:
    text = """
    import torch
    model = torch.nn.Linear(1, 1)
    model.eval()
    torch.set_grad_enabled(False)
    for x in range(3):
        model(x)
    """
    assert events(text) == ["eval Linear", "forward Linear [off]"]


# what a forward gives back


GRAPHS = [
    ("model(1)", True),
    ("model(1).detach()", False),
    ("model(1).mean()", True),
    ("model(1).argmax(1)", False),
    ("model(1) * 2", True),
    ("model(1)[0]", True),
    ("model(1).logits", True),
    ("model(1).data", False),
    ("model(1).item()", False),
    ("float(model(1))", False),
    ("model(1).cpu().numpy()", False),
    ("[model(1)]", True),
    ("(model(1), 2)", True),
    ("{'a': model(1)}", True),
    ("torch.stack([model(1), model(2)])", True),
    ("torch.zeros(3)", False),
    ("torch.zeros(3) + model(1)", True),
    ("torch.nn.functional.mse_loss(model(1), args.y)", True),
    ("torch.max(model(1), 1)[1]", False),
    ("torch.max(model(1), 1)[0]", True),
    ("model(1).topk(3)[1]", False),
    ("args.unknown(model(1))", False),
    ("len(model(1))", False),
    ("model(1) if training else model(2)", True),
    ("model(1) if training else None", False),
    ("-model(1)", True),
    ("model(1) > 0", False),
    ("str(model(1))", False),
]


@pytest.mark.parametrize(("expression", "graph"), GRAPHS)
def test_what_certainly_carries_a_graph(expression: str, graph: bool) -> None:
    assert has_graph(result(evaluation(f"found = {expression}"), "found")) is graph


@pytest.mark.parametrize("mode", ["torch.no_grad()", "torch.inference_mode()"])
def test_nothing_made_under_no_grad_carries_a_graph(mode: str) -> None:
    for expression in ("model(1)", "model(1).mean() * 2", "[model(1)]", "torch.relu(model(1))"):
        text = evaluation(f"with {mode}:\n    found = {expression}")
        assert has_graph(result(text, "found")) is False


def test_a_frozen_model_makes_no_graph() -> None:
    frozen = "for p in model.parameters():\n    p.requires_grad = False\nmodel(1)"
    world = model_of(evaluation(frozen)).worlds[0]
    assert [e.detail["frozen"] for e in world.events if e.kind is Kind.FORWARD] == [True]
    world = model_of(evaluation("model.requires_grad_(False)\nmodel(1)")).worlds[0]
    assert [e.detail["frozen"] for e in world.events if e.kind is Kind.FORWARD] == [True]
    world = model_of(evaluation("model.requires_grad_(True)\nmodel(1)")).worlds[0]
    assert [e.detail["frozen"] for e in world.events if e.kind is Kind.FORWARD] == [False]


def test_the_model_is_in_evaluation_mode_or_not() -> None:
    text = evaluation("model(1)\nmodel.train()\nmodel(2)\nother = args.other_model\nother(3)")
    world = model_of(text).worlds[0]
    found = [e.detail["eval_mode"] for e in world.events if e.kind is Kind.FORWARD]
    assert found == [True, False, None]
