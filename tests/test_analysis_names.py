"""What names mean: imports and aliases, and the role of an object with its evidence."""

from __future__ import annotations

from pathlib import Path

import pytest
from stories import model_of, result, write

from oomlint.analysis import modules, parsing
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.values import External, Thing, Unknown, settled
from oomlint.source import Source

# Makes the function one that is followed.
FOLLOWED = "    args.followed.eval()"


def body(imports: str, *lines: str) -> str:
    return "\n".join(
        [
            imports,
            "def f(args, model: object, loader):",
            *(f"    {line}" for line in lines),
            FOLLOWED,
        ]
    )


@pytest.mark.parametrize(
    ("imports", "expression", "qualified"),
    [
        ("import torch", "torch.optim.SGD", "torch.optim.SGD"),
        ("import torch as t", "t.optim.SGD", "torch.optim.SGD"),
        ("import torch.nn.functional as F", "F.mse_loss", "torch.nn.functional.mse_loss"),
        ("import torch.nn.functional", "torch.nn.functional", "torch.nn.functional"),
        ("from torch import nn as n", "n.Linear", "torch.nn.Linear"),
        ("from torch import (nn,\n    optim as o)", "o.Adam", "torch.optim.Adam"),
        ("import torch\noptim = torch.optim", "optim.Adam", "torch.optim.Adam"),
        ("import torch\nopt = torch.optim.SGD", "opt", "torch.optim.SGD"),
        ("import torch.cuda.amp as amp", "amp.GradScaler", "torch.cuda.amp.GradScaler"),
        ("from torch.cuda import amp", "amp.autocast", "torch.cuda.amp.autocast"),
        ("from torch import *", "optim", "torch.optim"),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", "torch.nn", "torch.nn"),
        (
            "if True:\n    from torch import nn\nelse:\n    nn = None",
            "nn.Module",
            "torch.nn.Module",
        ),
        ("from . import losses", "losses.dice", "losses.dice"),
        ("", "print", "print"),
    ],
)
def test_qualified_names(imports: str, expression: str, qualified: str) -> None:
    value = settled(result(body(imports, f"found = {expression}"), "found"))
    assert isinstance(value, External)
    assert value.qualified == qualified


def test_imports_inside_a_function() -> None:
    value = result(body("", "from torch import nn as n", "found = n.Linear"), "found")
    assert isinstance(value, External)
    assert value.qualified == "torch.nn.Linear"


@pytest.mark.parametrize(
    ("imports", "expression", "role"),
    [
        ("import torch", "torch.optim.SGD(args.p)", Role.OPTIMIZER),
        ("import torch", "torch.optim.adamw.AdamW(args.p)", Role.OPTIMIZER),
        ("from bitsandbytes import optim", "optim.AdamW8bit(args.p)", Role.OPTIMIZER),
        ("from apex.optimizers import FusedLAMB", "FusedLAMB(args.p)", Role.OPTIMIZER),
        ("from lion import Lion", "Lion(args.p)", Role.OPTIMIZER),
        ("import torch", "torch.optim.lr_scheduler.StepLR(args.o, 1)", Role.SCHEDULER),
        ("import transformers", "transformers.get_scheduler(args.o)", Role.SCHEDULER),
        ("import torch", "torch.cuda.amp.GradScaler()", Role.SCALER),
        ("from torch.amp import grad_scaler", "grad_scaler.GradScaler()", Role.SCALER),
        ("from timm.utils import NativeScaler", "NativeScaler()", Role.STEPPER),
        ("import torch", "torch.nn.CrossEntropyLoss()", Role.CRITERION),
        ("from torch.nn.modules.loss import MSELoss", "MSELoss()", Role.CRITERION),
        ("from torch.utils.data import DataLoader", "DataLoader(args.d)", Role.LOADER),
        ("import torch", "torch.nn.Sequential(torch.nn.ReLU())", Role.MODEL),
        ("import torchvision", "torchvision.models.resnet18()", Role.MODEL),
        ("import timm", 'timm.create_model("vit")', Role.MODEL),
        ("from transformers import BertModel", 'BertModel.from_pretrained("b")', Role.MODEL),
        ("import torch", "torch.nn.Linear(1, 1).cuda()", Role.MODEL),
        ("import torch", "torch.nn.DataParallel(torch.nn.Linear(1, 1))", Role.MODEL),
        ("import torch", "torch.compile(torch.nn.Linear(1, 1))", Role.MODEL),
        ("from accelerate import Accelerator", "Accelerator()", Role.ACCELERATOR),
        ("import gymnasium", 'gymnasium.make("X")', Role.ENVIRONMENT),
    ],
)
def test_roles_by_constructor(imports: str, expression: str, role: Role) -> None:
    value = result(body(imports, f"found = {expression}"), "found")
    assert isinstance(value, Thing)
    assert (value.role, value.evidence) == (role, Evidence.CONSTRUCTED)


@pytest.mark.parametrize(
    ("imports", "expression"),
    [
        ("from transformers import AutoTokenizer", 'AutoTokenizer.from_pretrained("b")'),
        ("import torch", "torch.nn.Parameter(args.t)"),
        ("import torch", "torch.nn.init.zeros_(args.t)"),
        ("import torch", 'torch.amp.GradScaler("cuda", enabled=False)'),
    ],
)
def test_what_looks_like_a_role_and_is_none(imports: str, expression: str) -> None:
    value = result(body(imports, f"found = {expression}"), "found")
    assert getattr(value, "role", None) is None


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("optimizer", Role.OPTIMIZER),
        ("optimiser", Role.OPTIMIZER),
        ("opt", Role.OPTIMIZER),
        ("optimizer_G", Role.OPTIMIZER),
        ("d_optim", Role.OPTIMIZER),
        ("lr_scheduler", Role.SCHEDULER),
        ("warmup", Role.SCHEDULER),
        ("scaler", Role.SCALER),
        ("grad_scaler", Role.SCALER),
        ("loss_scaler", Role.SCALER),
        ("accelerator", Role.ACCELERATOR),
        ("model_engine", Role.ENGINE),
        ("train_loader", Role.LOADER),
        ("val_dl", Role.LOADER),
        ("criterion", Role.CRITERION),
        ("loss_fn", Role.CRITERION),
        ("env", Role.ENVIRONMENT),
        ("model", Role.MODEL),
        ("netG", Role.MODEL),
        ("unet", Role.MODEL),
        ("student", Role.MODEL),
        ("feature_scaler", None),
        ("models", None),
        ("options", None),
        ("batch", None),
    ],
)
def test_roles_by_name(name: str, role: Role | None) -> None:
    value = result(body("", f"found = args.{name}"), "found")
    assert isinstance(value, Unknown)
    assert (value.role, value.evidence) == (role, Evidence.NAMED if role else None)


@pytest.mark.parametrize(
    ("imports", "annotation", "role"),
    [
        ("import torch", "torch.optim.Optimizer", Role.OPTIMIZER),
        ("from torch.optim import Adam", "Adam", Role.OPTIMIZER),
        ("from torch import nn", "nn.Module", Role.MODEL),
        ("import torch", '"torch.cuda.amp.GradScaler"', Role.SCALER),
    ],
)
def test_roles_by_annotation(imports: str, annotation: str, role: Role) -> None:
    text = f"{imports}\ndef f(thing: {annotation}, model):\n    model.eval()\n"
    value = result(text, "thing")
    assert isinstance(value, Unknown)
    assert (value.role, value.evidence) == (role, Evidence.USED)


@pytest.mark.parametrize(
    ("use", "role"),
    [
        ("thing.unscale_(args.optimizer)", Role.SCALER),
        ("thing.step(args.optimizer)", Role.SCALER),
        ("thing.zero_grad()", None),
        ("thing.eval()", Role.MODEL),
        ("thing.train(False)", Role.MODEL),
        ("thing.parameters()", Role.MODEL),
        ("thing.first_step(zero_grad=True)", Role.OPTIMIZER),
        ("thing.update()", None),
    ],
)
def test_roles_by_use(use: str, role: Role | None) -> None:
    value = result(body("", "thing = args.thing", use), "thing")
    assert isinstance(value, Unknown)
    assert (value.role, value.evidence) == (role, Evidence.USED if role else None)


def test_the_constructor_is_stronger_than_the_name() -> None:
    value = result(body("import torch", "scheduler = torch.optim.SGD(args.p, 1)"), "scheduler")
    assert isinstance(value, Thing)
    assert value.role is Role.OPTIMIZER


@pytest.mark.parametrize(
    ("arguments", "models"),
    [
        ("net.parameters()", {"net"}),
        ("list(net.parameters()) + list(head.parameters())", {"net", "head"}),
        ('[{"params": net.parameters()}, {"params": head.parameters(), "lr": 1}]', {"net", "head"}),
        ("itertools.chain(net.parameters(), head.parameters())", {"net"}),
        ("filter(lambda p: p.requires_grad, net.parameters())", {"net"}),
        ("[p for p in net.parameters() if p.requires_grad]", set()),
        ("args.params", set()),
    ],
)
def test_whose_parameters_an_optimizer_holds(arguments: str, models: set[str]) -> None:
    text = f"""
import itertools
import torch
def f(args, net, head):
    found = torch.optim.SGD({arguments}, lr=1)
    net.eval()
"""
    value = result(text, "found")
    assert isinstance(value, Thing)
    assert value.models == models


# modules


def build(text: str, name: str = "m", is_package: bool = False) -> modules.Module:
    source = Source(Path("/nowhere/m.py"), text)
    return modules.build(source, parsing.parse(text), name, is_package)


@pytest.mark.parametrize(
    ("name", "is_package", "statement", "qualified"),
    [
        ("a.b.c", False, "from . import x", "a.b.x"),
        ("a.b.c", False, "from .d import x", "a.b.d.x"),
        ("a.b.c", False, "from ..d import x", "a.d.x"),
        ("a.b", True, "from . import x", "a.b.x"),
        ("a.b", True, "from .d import x", "a.b.d.x"),
        ("c", False, "from ....d import x", "d.x"),
    ],
)
def test_relative_imports(name: str, is_package: bool, statement: str, qualified: str) -> None:
    assert build(statement, name, is_package).imports == {"x": qualified}


def test_definitions_are_found_wherever_they_stand() -> None:
    module = build(
        """
if True:
    def a(): pass
try:
    class B:
        x: int = 1
        def m(self):
            def inner(): pass
except ImportError:
    def c(): pass
finally:
    async def d(): pass
match 1:
    case 1:
        def e(): pass
"""
    )
    found = sorted(module.all_functions, key=lambda function: function.node.lineno)
    assert [f.qualname for f in found] == ["a", "B.m", "B.m.inner", "c", "d", "e"]
    assert sorted(module.functions) == ["a", "c", "d", "e"]
    assert list(module.classes["B"].methods) == ["m"]
    assert list(module.classes["B"].constants) == ["x"]


def test_the_last_definition_of_a_function_counts() -> None:
    module = build("def f(): return 1\ndef f(): return 2\n")
    assert module.functions["f"].node.lineno == 2


@pytest.mark.parametrize(
    ("files", "path", "name"),
    [
        ({"a.py": ""}, "a.py", ("a", False)),
        ({"p/__init__.py": "", "p/a.py": ""}, "p/a.py", ("p.a", False)),
        ({"p/__init__.py": ""}, "p/__init__.py", ("p", True)),
        ({"q/p/__init__.py": "", "q/p/a.py": ""}, "q/p/a.py", ("p.a", False)),
    ],
)
def test_the_name_of_a_file(
    files: dict[str, str], path: str, name: tuple[str, bool], tmp_path: Path
) -> None:
    write(tmp_path, files)
    assert modules.module_name(tmp_path / path) == name


def test_words_of_a_function_are_those_of_its_code() -> None:
    module = build('def f(a):\n    "zero_grad"\n    b = a.step()  # backward\n    return b\n')
    assert module.functions["f"].words == {"b", "a", "step", "return"}


def test_which_functions_are_followed_first() -> None:
    model = model_of(
        """
        def one_step(model, optimizer, loss):
            loss.backward()
            optimizer.step()

        def unrelated(x):
            return x

        def train(model, optimizer, losses):
            for loss in losses:
                one_step(model, optimizer, loss)

        def nobody_knows(model):
            model.eval()
        """
    )
    assert [world.root.name for world in model.worlds if world.root] == ["train", "nobody_knows"]
