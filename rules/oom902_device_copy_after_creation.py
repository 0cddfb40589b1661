"""OOM902: a tensor that is made on the host, only to be copied to the device at once."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, copies, edits, placement, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Module
from oomlint.analysis.placement import Place
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity

CONSTANT = frozenset("zeros ones empty full arange eye linspace logspace".split())
RANDOM = frozenset("rand randn randint randperm".split())
# Arguments that tie a tensor to the host, or that a move would undo.
TIED = frozenset("device pin_memory out generator requires_grad layout names".split())
MADE = "|".join(sorted(CONSTANT | RANDOM)).encode()
INNER = rb"(?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*"
MOVE = re.compile(r"\s*\.\s*(?:cuda|to)\s*\(")


class DeviceCopyAfterCreation(Rule):
    """
    ## What it does
    Checks for `torch.zeros(...).cuda()` and the like: a factory call whose result is moved to the
    device at once.

    ## Why is this bad?
    The tensor is allocated and filled on the host, then allocated again and copied. With `device=`
    it is made where it is needed. One such call costs little; this is advice and off by default.

    ## Example
    ```python
    import torch

    def positions(length, device):
        return torch.arange(length).to(device)
    ```

    Use instead:
    ```python
    import torch

    def positions(length, device):
        return torch.arange(length, device=device)
    ```

    ## Fix safety
    Safe for constants. Unsafe for random numbers: the device's generator draws other ones.

    ## Measured
    One tensor fewer is copied from the host.

    ## References
    - [PyTorch: create tensors directly on the target device](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html#create-tensors-directly-on-the-target-device)
    """

    code = "OOM902"
    name = "device-copy-after-creation"
    severity = Severity.ADVICE
    tokens = ((".cuda(", ".to("), ("torch",))
    token_pattern = re.compile(
        rb"\b(?:" + MADE + rb")\s*\(" + INNER + rb"\)\s*\\?\s*\.\s*(?:cuda|to)\s*\("
    )
    claims = (Claim.COPIES_FALL,)
    default = False

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        if copies.has_default_device(module):
            return
        for site in sites.called(module, "cuda", "to"):
            made = site.receiver
            if not isinstance(made, ast.Call):
                continue
            name = sites.qualified_name(module, made.func, site.function)
            maker = name.removeprefix("torch.")
            if not name.startswith("torch.") or maker not in CONSTANT | RANDOM:
                continue
            if placement.destination(module, site) not in (Place.DEVICE, Place.OPEN):
                continue
            if any(k.arg is None or k.arg in TIED for k in made.keywords):
                continue
            message = f"`torch.{maker}` fills a tensor on the host, which is then copied"
            safety = Safety.SAFE if maker in CONSTANT else Safety.UNSAFE
            yield finding(model, self, site.node, message, made_there(module, site, made, safety))


def made_there(module: Module, site: Site, made: ast.Call, safety: Safety) -> Fix | None:
    device = destination(module, site)
    end = module.span(site.node)[1]
    start = module.span(made)[1]
    if device is None or not MOVE.match(module.source.text[start:end]):
        return None
    if "#" in module.source.text[start:end] or "\n" in module.source.text[start:end]:
        return None
    try:
        given = edits.add_keyword(module, made, f"device={device}")
    except edits.NoFix:
        return None
    return make_fix(f"Make it there: `device={device}`", [given, Edit(start, end, "")], safety)


def destination(module: Module, site: Site) -> str | None:
    """How `device=` says where a move goes; None where it says more than a device."""
    arguments = [k for k in site.node.keywords if k.arg != "non_blocking"]
    given = [*site.node.args, *(k.value for k in arguments if k.arg == "device")]
    if len(given) != len(site.node.args) + len(arguments) or len(given) > 1:
        return None
    if not given:
        return '"cuda"'
    device = given[0]
    if isinstance(device, ast.Constant):
        value = device.value
        return f'"cuda:{value}"' if isinstance(value, int) else module.segment(device)
    # `.cuda(None)` is the current device, `device=None` the host.
    if site.method == "cuda" and placement.place(module, device, site.function) is Place.OPEN:
        return None
    return module.segment(device)
