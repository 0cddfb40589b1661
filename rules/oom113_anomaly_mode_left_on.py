"""OOM113: autograd's anomaly mode that stays on in ordinary runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.debugging import on_purpose
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import Site, is_true, sites
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity


class AnomalyModeLeftOn(Rule):
    """
    ## What it does
    Checks for `torch.autograd.set_detect_anomaly(True)`, `with torch.autograd.detect_anomaly():`
    and Lightning's `Trainer(detect_anomaly=True)` that no debug flag guards.

    ## Why is this bad?
    Anomaly mode is for the search for a NaN. Every operation of the forward keeps a stack trace,
    and the backward checks every gradient, which waits for the device: each step takes several
    times as long, in every run.

    ## Example
    ```python
    import torch

    torch.autograd.set_detect_anomaly(True)
    torch.manual_seed(0)
    ```

    Use instead:
    ```python
    import torch

    torch.manual_seed(0)
    ```

    ## Fix safety
    Safe: the numbers stay the same; a NaN in a backward no longer raises.

    ## Measured
    A step of a model of many small operations took six times as long, more on the emulated device.

    ## References
    - [PyTorch: anomaly detection](https://docs.pytorch.org/docs/stable/autograd.html#anomaly-detection)
    """

    code = "OOM113"
    name = "anomaly-mode-left-on"
    severity = Severity.WARNING
    tokens = (("detect_anomaly",),)
    claims = (Claim.STEP_FASTER,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        found = [site for site in sites(module) if turns_on(module, site)]
        if not found or any(turns_off(site) for site in sites(module)):
            return
        for site in found:
            if on_purpose(module, site.node):
                continue
            message = (
                "anomaly mode is on in every run: each operation keeps a stack trace and each"
                " gradient is checked for NaN, which slows every step several times"
            )
            yield finding(model, self, site.node, message, off(module, site))


DETECT = re.compile(r"torch\.autograd\.(anomaly_mode\.)?detect_anomaly")
SET_DETECT = re.compile(r"torch\.autograd\.(anomaly_mode\.)?set_detect_anomaly")
TRAINER = re.compile(r"(pytorch_lightning|lightning(\.pytorch)?)\.(trainer\.)*Trainer")


def turns_on(module: Module, site: Site) -> bool:
    if DETECT.fullmatch(site.qualified):
        return isinstance(module.parents[site.node], ast.withitem | ast.Call)
    if SET_DETECT.fullmatch(site.qualified):
        return is_true(site.argument(0, "mode"))
    return bool(TRAINER.fullmatch(site.qualified)) and is_true(site.argument(-1, "detect_anomaly"))


def turns_off(site: Site) -> bool:
    """Whether a file also turns it off, or asks a variable: then it is a tool that is put away."""
    if not SET_DETECT.fullmatch(site.qualified):
        return False
    return not is_true(site.argument(0, "mode"))


def off(module: Module, site: Site) -> Fix | None:
    try:
        changes = removal(module, site)
    except edits.NoFix:
        return None
    return make_fix("Turn anomaly mode off", changes, Safety.SAFE)


def removal(module: Module, site: Site) -> tuple[Edit, ...]:
    call, parent = site.node, module.parents[site.node]
    for keyword in call.keywords:
        if keyword.arg == "detect_anomaly":
            return (edits.drop_argument(module, call, keyword),)
    if isinstance(parent, ast.Expr):
        return (edits.delete(module, parent),)
    block = module.parents[parent]
    if not isinstance(parent, ast.withitem) or not isinstance(block, ast.With):
        raise edits.NoFix
    if parent.optional_vars is not None:
        raise edits.NoFix
    if len(block.items) == 1:
        return edits.unwrap(module, block)
    return (edits.drop_item(module, block, parent),)
