"""OOM605: all parameters of a sharded model gathered on every rank at every step."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, cadence, sites
from oomlint.analysis.answers import finding
from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Finding, Rule, Severity
from oomlint.token_patterns import Exactly


class FullParamsInLoop(Rule):
    """
    ## What it does
    Checks for `summon_full_params` and full state dicts of a sharded model that are made at every
    training step.

    ## Why is this bad?
    Sharding keeps a part of the parameters on each rank. Whoever asks for the full ones has every
    rank gather all of them: the peak rises by the whole model, and each step waits until it has
    been sent around.

    ## Example
    ```python
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def train(model, loader, optimizer, criterion, log):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            with FSDP.summon_full_params(model):
                log(model)
    ```

    Use instead:
    ```python
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def train(model, loader, optimizer, criterion, log):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
        with FSDP.summon_full_params(model):
            log(model)
    ```

    ## Measured
    Two ranks with gloo: the peak of device bytes of each rank falls when the parameters are
    gathered once, behind the loop. How long the gathering takes between GPUs is not measured here.

    ## References
    - [PyTorch: FullyShardedDataParallel.summon_full_params](https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.summon_full_params)
    """

    code = "OOM605"
    name = "full-params-in-loop"
    severity = Severity.WARNING
    tokens = (("torch.distributed",), ("backward(",))
    token_pattern = Exactly((b"summon_full_params", b"FULL_STATE_DICT", b"full_state_dict"))
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in gatherings(module):
            if cadence.once_a_step(module, site.node, site.function):
                what = "all parameters are gathered on every rank at every step"
                yield finding(model, self, site.node, f"{what}: the peak holds the whole model")


SUMMON = re.compile(
    r"torch\.distributed\.fsdp\.(\w+\.)*FullyShardedDataParallel\.summon_full_params"
)
STATE = re.compile(r"torch\.distributed\.checkpoint\.state_dict\.get_(model_)?state_dict")
OPTIONS = re.compile(r"torch\.distributed\.checkpoint\.state_dict\.StateDictOptions")
KIND = re.compile(r"torch\.distributed\.fsdp\.(\w+\.)*FullyShardedDataParallel\.state_dict_type")


def gatherings(module: Module) -> Iterator[Site]:
    for site in sites.called(module, "summon_full_params"):
        called = SUMMON.fullmatch(site.qualified) or is_method(site)
        if called and not is_false(site.argument(-1, "recurse")):
            yield site
    for site in sites.named(module, "get_model_state_dict", "get_state_dict"):
        if STATE.fullmatch(site.qualified) and asks_for_all(module, site):
            yield site
    for site in sites.called(module, "state_dict"):
        if in_full_kind(module, site):
            yield site


def is_method(site: Site) -> bool:
    """`model.summon_full_params(model)`: an object's own."""
    return not site.qualified and site.receiver is not None


def is_false(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def asks_for_all(module: Module, site: Site) -> bool:
    given = site.argument(-1, "options")
    if given is None:
        return False
    candidates = [given, *(value for value, _ in sites.values_of(module, given, site.function))]
    return any(
        isinstance(value, ast.Call)
        and OPTIONS.fullmatch(sites.qualified_name(module, value.func, site.function))
        and any(k.arg == "full_state_dict" and sites.is_true(k.value) for k in value.keywords)
        for value in candidates
    )


def in_full_kind(module: Module, site: Site) -> bool:
    """`model.state_dict()` where a context has it make full ones."""
    for context in sites.contexts_around(module, site.node):
        if not isinstance(context, ast.Call):
            continue
        called = sites.qualified_name(module, context.func, site.function)
        kinds = [written(part) for part in context.args[1:2]]
        kinds += [written(k.value) for k in context.keywords if k.arg == "state_dict_type"]
        if KIND.fullmatch(called) and any(k.endswith("FULL_STATE_DICT") for k in kinds):
            return True
    return False
