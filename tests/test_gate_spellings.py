"""A gate opens for each spelling of what its rule finds: names, lines and parts of statements."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import pytest

from oomlint.gate import Gate
from oomlint.linter import check_source
from oomlint.registry import all_rules
from oomlint.settings import Settings
from oomlint.source import from_bytes

RULES = {rule.code: rule for rule in all_rules()}

OFF = (
    "torch.no_grad()",
    "torch.no_grad() # why",
    "torch.no_grad # why",
    "torch.inference_mode(\n    mode=True,\n)",
    "(\n    torch\n    .no_grad()\n)",
    "model.eval(), torch.no_grad()",
    "model.eval(); torch.no_grad()",
    "if x: torch.no_grad()",
    "with torch . no_grad : pass",
    "with (\n    open(x) as file,\n    torch.inference_mode as mode,\n): pass",
    "with open(x) as file, \\\n    torch.no_grad: pass",
    "x.enter_context(\n    torch.no_grad\n)",
    "context = torch.no_grad # why\nwith context: pass",
    "first, context = 1, torch.no_grad\nwith context: pass",
    "if (context := torch.no_grad) and x:\n    with context: pass",
)
RENAMED = (
    "import torch as th\nth.no_grad()",
    "import os, torch as th\nth.no_grad # why",
    "import torch as th\nopen(x), th.no_grad",
    "import torch.autograd as A\nwith A.no_grad: pass",
    "from torch import autograd\nwith autograd.no_grad: pass",
    "from torch import no_grad as off\noff()",
    "from torch import (\n    no_grad\n)\nwith no_grad: pass",
    "from torch import *\nno_grad",
)
REPORTS = (
    "import torch\ntorch.cuda.memory_allocated(\n0)",
    "import torch\n(\n    torch.cuda\n    .memory_stats()\n)",
    "import torch\nx = 1; torch.cuda.memory_stats()",
    "import torch\ntorch.cuda.memory_stats \\\n    ()",
    "import torch\ntell: object = torch.cuda.memory_stats # why\ntell()",
    "import torch\nx, tell = 1, torch.cuda.memory_stats\ntell()",
    "import torch\nx.y, tell = 1, torch.cuda.memory_stats\ntell()",
    "from torch.cuda import (\n    memory_summary,\n    memory_stats as\n    tell)\ntell()",
    "import torch.cuda as device\ndevice.max_memory_allocated()",
)
DROPPED_BY_FUNCTION = """\
from torch.nn.functional import cross_entropy, softmax
def dropout(x): return x
def step(x, y):
    p = softmax(x, 1)
    p = dropout(p)
    cross_entropy(p, y)
"""
DROPPED_BY_METHOD = """\
import torch.nn.functional as F
class A:
    def drop(self, x): return x
    def step(self, x, y):
        p = x.softmax(1)
        p = self.drop(p)
        F.cross_entropy(p, y)
"""
FED = (
    "from torch.nn.functional import softmax as s, nll_loss as n\nn(s(x, 1), y)",
    "from torch.nn import NLLLoss2d as L, Softmax2d as S\nL()(S()(x), y)",
    "from torch.nn.functional import nll_loss, softmax\np = softmax(x, 1)\nnll_loss(p, y)",
    # A function of that name may give back what it is given.
    DROPPED_BY_FUNCTION,
    DROPPED_BY_METHOD,
)
BINARY = (
    "from torch.nn import BCEWithLogitsLoss as L\nimport torch\nL()(torch.special.expit(x), y)",
    "import torch.nn.functional as F\nF.binary_cross_entropy_with_logits(x.sigmoid(), y)",
    "from torch.nn import LazyLinear as L, BCELoss as B\nB()(L(3)(x), y)",
    "from torch import nn\nnn.BCELoss()(nn.ConvTranspose2d(3, 3, 3)(x), y)",
)
SPELLINGS = [
    *(("OOM112", f"import torch\ndef f(model, x):\n{indent(text, '    ')}\n") for text in OFF),
    *(("OOM112", text) for text in RENAMED),
    *(("OOM414", text) for text in REPORTS),
    *(("OOM215", text) for text in FED),
    *(("OOM216", text) for text in BINARY),
]


@pytest.mark.parametrize(("code", "text"), SPELLINGS)
def test_spelling_opens_the_gate(code: str, text: str, tmp_path: Path) -> None:
    source = from_bytes(tmp_path / "code.py", text.encode())
    found = check_source(source, Settings(root=tmp_path, base=tmp_path), gate=False).findings
    assert code in {finding.code for finding in found}
    for written in (text, text.replace("\n", "\r\n")):
        assert Gate((RULES[code],)).open_rules(written.encode())


def test_harmless_use_closes_the_gate() -> None:
    attention = (
        "import torch.nn.functional as F\n"
        "def attend(self, x):\n    p = F.softmax(x, dim=-1).to(x.dtype)\n    # why\n"
        "    p = self.dropout(p)\n    return p\n"
        "def loss(x, y): return F.cross_entropy(x, y)\n"
    )
    closed = {
        "OOM112": "import torch\ndef f(x):\n    with (\n        open(x) as g,\n"
        "        torch.no_grad(),\n    ):\n        return g\n",
        "OOM215": attention,
        "OOM414": "def f(self): self.dump_memory_snapshot()\nimport torch\n",
    }
    for code, text in closed.items():
        assert not Gate((RULES[code],)).open_rules(text.encode()), code
