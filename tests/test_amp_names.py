"""Moving from torch.cuda.amp to torch.amp: single lines in, what becomes of them out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from oomlint.fixer import fix_text
from oomlint.linter import check_source
from oomlint.settings import Layer, Settings, settings_for
from oomlint.source import Source

FROM = "from torch.cuda.amp import {}\n"


def only_this_rule(path: Path, version: tuple[int, int] | None = None) -> Settings:
    layers = (Layer("the test", select=("OOM308",)),)
    return replace(settings_for(path, isolated=True), layers=layers, torch_version=version)


def fixed(text: str, folder: Path, name: str = "train.py") -> str:
    source = Source(folder / name, text)
    return fix_text(source, only_this_rule(source.path), unsafe=False).text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            FROM.format("autocast") + "autocast()",
            'from torch.amp import autocast\nautocast("cuda")',
        ),
        (
            FROM.format("autocast as half") + "half(on)",
            'from torch.amp import autocast as half\nhalf("cuda", enabled=on)',
        ),
        (
            FROM.format("(\n    GradScaler,  # scales\n    autocast,\n)")
            + "autocast(), GradScaler()",
            "from torch.amp import (\n    GradScaler,  # scales\n    autocast,\n)\n"
            'autocast("cuda"), GradScaler("cuda")',
        ),
        (
            "from torch.cpu.amp import autocast\nautocast(dtype=d)",
            'from torch.amp import autocast\nautocast("cpu", dtype=d)',
        ),
        (
            "import torch.cuda.amp as amp, os\namp.GradScaler(2.0)",
            'import torch.amp as amp, os\namp.GradScaler("cuda", 2.0)',
        ),
        ("import torch\ntorch.cuda.amp.autocast ( on )", None),
        (
            "import torch\ntorch.cuda.amp.autocast(  # why\n    on\n)",
            'import torch\ntorch.amp.autocast(  # why\n    "cuda",\n    enabled=on\n)',
        ),
        (
            "import torch\nf = torch.cuda.amp.custom_bwd(g,)",
            'import torch\nf = torch.amp.custom_bwd(g, device_type="cuda",)',
        ),
        (
            "import torch\n@torch.cuda.amp.custom_fwd()\ndef f(ctx): ...",
            'import torch\n@torch.amp.custom_fwd(device_type="cuda")\ndef f(ctx): ...',
        ),
        (
            "from torch import cuda\ncuda.amp.autocast(on)",
            'import torch\nfrom torch import cuda\ntorch.amp.autocast("cuda", enabled=on)',
        ),
        # what cannot be moved cleanly stays
        (FROM.format("autocast, common") + "autocast()", ""),
        (FROM.format("autocast") + "f = [autocast]\nautocast()", ""),
        ("from torch.cuda import amp, stream\namp.autocast()", ""),
        ("import torch\ntorch.cuda.amp.autocast(a, b, c, d)", ""),
        ("import torch\ntorch.cuda.amp.custom_fwd(*f)", ""),
    ],
)
def test_moved(before: str, after: str | None, tmp_path: Path) -> None:
    wanted = before if after == "" else after
    if after is None:
        wanted = 'import torch\ntorch.amp.autocast ("cuda",  enabled=on )'
    assert fixed(before, tmp_path) == wanted


def test_a_package_passes_its_imports_on(tmp_path: Path) -> None:
    text = FROM.format("autocast") + "autocast()"
    assert fixed(text, tmp_path, "__init__.py") == text


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (None, ["autocast", "GradScaler", "custom_fwd"]),
        ((2, 4), ["autocast", "GradScaler", "custom_fwd"]),
        ((2, 3), ["autocast", "GradScaler"]),
        ((2, 2), ["autocast"]),
        ((1, 10), []),
    ],
)
def test_nothing_is_asked_that_the_oldest_torch_lacks(
    version: tuple[int, int] | None, names: list[str], tmp_path: Path
) -> None:
    calls = "".join(f"a.{name}()\n" for name in ("autocast", "GradScaler", "custom_fwd"))
    source = Source(tmp_path / "train.py", f"import torch\na = torch.cuda.amp\n{calls}")
    direct = replace(source, text=source.text.replace("a.", "torch.cuda.amp."))
    found = check_source(direct, only_this_rule(source.path, version)).findings
    assert [finding.message.split("`")[1].rsplit(".", 1)[-1] for finding in found] == names
