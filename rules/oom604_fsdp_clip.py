"""OOM604: gradients of a sharded model that each rank clips by the norm of its own shard."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites, synchronisation
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site
from oomlint.analysis.synchronisation import Wrapped
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class FsdpClip(Rule):
    """
    ## What it does
    Checks for `torch.nn.utils.clip_grad_norm_` on the parameters of a model that is wrapped in
    `FullyShardedDataParallel`.

    ## Why is this bad?
    Each rank has the gradient of its own shard. It takes the norm of that shard for the norm of the
    whole gradient: what is left exceeds `max_norm`, and every shard is scaled by another factor, so
    that the step goes in another direction. `fully_shard` (FSDP2) is not concerned: its gradients
    know that they are shards.

    ## Example
    ```python
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    def train(net, loader, criterion):
        model = FullyShardedDataParallel(net)
        optimizer = torch.optim.AdamW(model.parameters())
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    def train(net, loader, criterion):
        model = FullyShardedDataParallel(net)
        optimizer = torch.optim.AdamW(model.parameters())
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
    ```

    ## Fix safety
    Unsafe: the gradient is clipped by its true norm from now on.

    ## Measured
    Two ranks with gloo, `max_norm` 1: the norm over both ranks is 1.41 before the fix and 1 after
    it.

    ## References
    - [PyTorch: FullyShardedDataParallel.clip_grad_norm_](https://docs.pytorch.org/docs/stable/fsdp.html#torch.distributed.fsdp.FullyShardedDataParallel.clip_grad_norm_)
    """

    code = "OOM604"
    name = "fsdp-clip"
    severity = Severity.ERROR
    tokens = (("FullyShardedDataParallel",), ("clip_grad_norm",))
    claims = (Claim.SHARDS_BOUNDED,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in sites.named(module, "clip_grad_norm_", "clip_grad_norm"):
            if not CLIP.fullmatch(site.qualified):
                continue
            found = [
                (clipped, synchronisation.wrapped(module, clipped, site.function, SHARDED))
                for clipped in clipped_models(module, site)
            ]
            sharded = next((kind for _, kind in found if kind is not None), None)
            if sharded is None or is_told_apart(module, site) or is_whole(module):
                continue
            message = (
                "each rank clips its shard by the norm of that shard: "
                "the whole gradient exceeds `max_norm`"
            )
            certain = len(found) == 1 and sharded is Wrapped.ALWAYS
            fix = remedy(module, site, found[0][0]) if certain else None
            yield finding(model, self, site.node, message, fix)


CLIP = re.compile(r"torch\.nn\.utils\.(clip_grad\.)?clip_grad_norm_?")
SHARDED = re.compile(r"(torch\.distributed\.fsdp|fairscale\.nn)\.(\w+\.)*FullyShardedDataParallel")
# Shards of one rank, or gradients that are whole on each.
WHOLE = re.compile(r"\bNO_SHARD\b")
# Tests that ask how the model is wrapped.
KINDS = re.compile(r"fsdp|shard|isinstance|strategy|ddp", re.IGNORECASE)


def clipped_models(module: Module, site: Site) -> list[ast.expr]:
    """`model` in `clip_grad_norm_(model.parameters(), ...)`, or in a list that is made before."""
    given = site.argument(0, "parameters")
    if given is None:
        return []
    sources = [given, *(value for value, _ in sites.values_of(module, given, site.function))]
    found = {
        written(part.func.value): part.func.value
        for source in sources
        for part in ast.walk(source)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr in ("parameters", "named_parameters")
    }
    return list(found.values())


def is_told_apart(module: Module, site: Site) -> bool:
    """Whether the code asks for the kind of wrapper, or has a call for the other kind."""
    tests = sites.conditions_around(module, site.node)
    if any(KINDS.search(written(test)) for test, _ in tests):
        return True
    return clips_itself(site.function)


def clips_itself(function: Function | None) -> bool:
    if function is None:
        return False
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "clip_grad_norm_"
        and not written(node).endswith(("utils.clip_grad_norm_", "clip_grad.clip_grad_norm_"))
        for node in sites.own_nodes(function.node)
    )


def is_whole(module: Module) -> bool:
    return WHOLE.search(module.source.text) is not None


def remedy(module: Module, site: Site, clipped: ast.expr) -> Fix | None:
    """The model clips itself, with the arguments that its method has."""
    node = site.node
    given = site.argument(0, "parameters")
    if not isinstance(given, ast.Call) or given.args:
        return None  # some of the parameters
    rest = [part for part in node.args if part is not given]
    if site.is_open or len(rest) > 2:
        return None
    if any(part.arg not in ("parameters", "max_norm", "norm_type") for part in node.keywords):
        return None
    kept: list[ast.expr | ast.keyword] = [*rest, *node.keywords]
    first = next((part for part in kept if getattr(part, "value", part) is not given), None)
    if first is None or first is not kept[0] or node.args[:1] != [given]:
        return None
    changed = [
        edits.replace(module, node.func, f"{written(clipped)}.clip_grad_norm_"),
        edits.drop_argument(module, node, given),
    ]
    return make_fix("Let the sharded model clip itself", changed, Safety.UNSAFE)
