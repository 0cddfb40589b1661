"""Sites: what is called by its qualified name, what names are bound to, what encloses a call."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import dedent

import pytest

from oomlint.analysis import modules, sites
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.project import Project
from oomlint.analysis.state import World
from oomlint.source import Source, from_bytes


def module_of(tmp_path: Path, text: str) -> modules.Module:
    source: Source = from_bytes(tmp_path / "train.py", dedent(text).encode())
    return modules.build(source, ast.parse(source.text), "train", False)


@pytest.mark.parametrize(
    ("text", "qualified"),
    [
        ("import torch\ntorch.cuda.empty_cache()", "torch.cuda.empty_cache"),
        ("import torch as th\nth.cuda.empty_cache()", "torch.cuda.empty_cache"),
        ("from torch import cuda\ncuda.empty_cache()", "torch.cuda.empty_cache"),
        ("from torch.cuda import empty_cache as flush\nflush()", "torch.cuda.empty_cache"),
        ("import torch\nc = torch.cuda\nc.empty_cache()", "torch.cuda.empty_cache"),
        (
            "import torch\ndef f():\n    c = torch.cuda\n    c.empty_cache()",
            "torch.cuda.empty_cache",
        ),
        ("def f():\n    import torch\n    torch.cuda.empty_cache()", "torch.cuda.empty_cache"),
        ("import torch\ndef f(torch):\n    torch.cuda.empty_cache()", ""),
        ("def f(device):\n    device.empty_cache()", ""),
        ("for cuda in ():\n    cuda.empty_cache()", ""),
        ("def empty_cache(): ...\nempty_cache()", "train.empty_cache"),
        ("from torch.cuda import *\nempty_cache()", "torch.cuda.empty_cache"),
        ("len(())", "len"),
    ],
)
def test_a_call_has_the_qualified_name_of_what_is_called(tmp_path, text, qualified):
    assert sites.sites(module_of(tmp_path, text))[0].qualified == qualified


def test_sites_know_their_method_receiver_function_and_arguments(tmp_path):
    text = """
        def f(loss, **more):
            def inner():
                loss.backward(None, retain_graph=True)
            g(*loss, 2, **more)
    """
    backward, g = sites.sites(module_of(tmp_path, text))
    assert (backward.method, ast.unparse(backward.receiver)) == ("backward", "loss")
    assert backward.function.qualname == "f.inner"
    assert ast.unparse(backward.argument(1, "retain_graph")) == "True"
    assert ast.unparse(backward.argument(0, "gradient")) == "None"
    assert backward.argument(5, "create_graph") is None
    assert not backward.is_open
    assert g.is_open and g.argument(1, "n") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("opt = torch.optim.SGD(p)\nuse(opt)", (Role.OPTIMIZER, Evidence.CONSTRUCTED)),
        ("x = torch.amp.GradScaler()\nuse(x)", (Role.SCALER, Evidence.CONSTRUCTED)),
        ("m = torch.nn.Linear(1, 1).to(d).half()\nuse(m)", (Role.MODEL, Evidence.CONSTRUCTED)),
        ("m = torch.compile(torch.nn.Linear(1, 1))\nuse(m)", (Role.MODEL, Evidence.CONSTRUCTED)),
        ("class N(torch.nn.Module): ...\nx = N()\nuse(x)", (Role.MODEL, Evidence.CONSTRUCTED)),
        ("def f(x: torch.nn.Module):\n    use(x)", (Role.MODEL, Evidence.USED)),
        ("def f(model):\n    use(model)", (Role.MODEL, Evidence.NAMED)),
        ("def f(x):\n    use(x)", (None, None)),
        (
            "class T:\n    def __init__(self):\n        self.o = torch.optim.Adam(p)\n"
            "    def f(self):\n        use(self.o)",
            (Role.OPTIMIZER, Evidence.CONSTRUCTED),
        ),
    ],
)
def test_a_role_comes_from_the_constructor_then_the_annotation_then_the_name(
    tmp_path, text, expected
):
    module = module_of(tmp_path, "import torch\n" + text)
    world = World(Project(tmp_path, module), module)
    use = next(site for site in sites.sites(module) if site.method == "use")
    assert sites.role(world, use.node.args[0], use.function) == expected


def test_calls_by_name_are_those_among_all_sites(tmp_path):
    text = """
        @wrap(
            to(1))
        def f(x):
            return [g(x.to(
                2)) for x in f"{x.to(3)}"], "to(4)"
        class C:
            to = lambda self: (
                self
                .to (5)
            )
        if to: torch.to(6)
    """
    module = module_of(tmp_path, text)
    found = list(sites.called(module, "to", "missing"))
    assert found == [site for site in sites.sites(module) if site.method == "to"]
    assert [ast.unparse(site.node.args[0]) for site in found] == ["2", "3", "1", "5", "6"]


def test_what_encloses_a_call_ends_at_its_function(tmp_path):
    text = """
        for epoch in epochs:
            def f():
                with outer, inner:
                    while True:
                        if a:
                            pass
                        else:
                            call()
                for x in call2(): ...
    """
    module = module_of(tmp_path, text)
    call = next(site.node for site in sites.sites(module) if site.method == "call")
    assert [type(loop) for loop in sites.loops_around(module, call)] == [ast.While]
    assert [(ast.unparse(test), arm) for test, arm in sites.conditions_around(module, call)] == [
        ("a", False)
    ]
    assert [ast.unparse(c) for c in sites.contexts_around(module, call)] == ["inner", "outer"]
    second = next(site.node for site in sites.sites(module) if site.method == "call2")
    assert sites.loops_around(module, second) == []
