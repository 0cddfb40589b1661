"""OOM406: a checkpoint that is loaded onto the device it was saved from."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, loading
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Edit, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import LOADS_STATE


class LoadWithoutMapLocation(Rule):
    """
    ## What it does
    Checks for `torch.load` of a checkpoint without `map_location`, on every rank of a distributed
    run or while the model that takes it in is on the device already.

    ## Why is this bad?
    Tensors come back to the device that they were saved from. With several ranks every process
    puts a copy of model and optimizer state on GPU 0, where only one of them works; beside a model
    that is on the device already, loading needs twice the memory of its weights.

    ## Example
    ```python
    import torch

    def resume(model, optimizer, path):
        model.cuda()
        checkpoint = torch.load(path)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    ```

    Use instead:
    ```python
    import torch

    def resume(model, optimizer, path):
        model.cuda()
        checkpoint = torch.load(path, map_location="cpu")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
    ```

    ## Fix safety
    Unsafe: what else the checkpoint holds is on the CPU then. `load_state_dict` of modules and
    optimizers copies to where the parameters are.

    ## Measured
    The peak of an evaluation falls by the bytes of the weights, 38 % for a small network. Before
    training with Adam on one GPU the peak stays: the first step needs more than the copy did.

    ## References
    - [PyTorch: torch.load](https://docs.pytorch.org/docs/stable/generated/torch.load.html)
    """

    code = "OOM406"
    name = "load-without-map-location"
    severity = Severity.WARNING
    tokens = (
        ("load(",),
        ("load_state_dict",),
        ("torch",),
        (".cuda", ".to(", "distributed", "DistributedDataParallel", "init_process_group"),
    )
    token_pattern = LOADS_STATE
    claims = (Claim.PEAK_FALLS,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for checkpoint in loading.checkpoints(module):
            site = checkpoint.site
            if not loading.is_unmapped(site):
                continue
            ranked = loading.on_every_rank(module, checkpoint)
            live = loading.live_model(module, checkpoint)
            if not ranked and (live is None or loading.trained_before(module, checkpoint.place)):
                continue
            if site.function is not None and site.function.name.startswith("test_"):
                continue
            message = (
                "without `map_location` the checkpoint goes back to the GPU that it was saved "
                "from, "
            )
            message += (
                "a copy from every rank" if ranked else "beside the model that is there already"
            )
            path = [(live, "the model is on the device")] if live is not None else []
            path += [(checkpoint.restores[0].node, "the checkpoint is copied into it")]
            yield finding(model, self, site.node, message, remedy(module, site), path)


def remedy(module: Module, site: Site) -> Fix | None:
    """Adds the argument behind the last one."""
    given = loading.location(site)
    if given is not None:
        start, end = module.span(given)
        edit = Edit(start, end, '"cpu"')
    else:
        arguments = [*site.node.args, *(keyword.value for keyword in site.node.keywords)]
        if not arguments:
            return None
        end = max(module.span(argument)[1] for argument in arguments)
        # A generator or a parenthesised argument ends behind its node.
        closing = module.span(site.node)[1] - 1
        end = end if module.source.text[end:closing].strip(" \t\r\n,") == "" else closing
        edit = Edit(end, end, ', map_location="cpu"')
    return make_fix("Load onto the CPU", [edit], Safety.UNSAFE)
