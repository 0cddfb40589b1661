"""OOM309: float16 parameters whose gradients a gradient scaler must unscale."""

from __future__ import annotations

import re
from collections.abc import Iterator

from oomlint.analysis import Model, sites
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import Node, anchor, finding
from oomlint.analysis.precision import always_enabled
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import Thing
from oomlint.rule import Claim, Finding, Rule, Severity

# Code that keeps parameters in float32 in its own way, or scalers of its own.
OWN_WAY = re.compile(
    r"\.data\.float\(|\.data\s*=|master_param|fp32_param|to_fp32|_unscale_grads_|lora|get_peft_model"
    r"|prepare_model_for_\w*training|cast_training_params",
    re.IGNORECASE,
)


class HalfModelWithScaler(Rule):
    """
    ## What it does
    Checks for a model cast to float16 whose optimizer is stepped through a GradScaler.

    ## Why is this bad?
    Unscaling the gradients of float16 parameters raises "Attempting to unscale FP16 gradients".
    Mixed precision keeps parameters in float32: autocast makes the float16 copies.

    ## Example
    ```python
    import torch

    def train(net, loader, criterion):
        model = net.cuda().half()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(net, loader, criterion):
        model = net.cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Measured
    "Attempting to unscale FP16 gradients." at the first step; gone with float32 parameters.

    ## References
    - [PyTorch: automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html#torch.autocast)
    """

    code = "OOM309"
    name = "half-model-with-scaler"
    severity = Severity.ERROR
    tokens = (("half", "float16"), ("Scaler",), ("backward(",), ("step(", "unscale_("))
    claims = (Claim.ERROR_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        if OWN_WAY.search(model.source.text):
            return
        seen: set[Node] = set()
        for world in model.worlds:
            for event in world.events:
                cast = halved(model, world, event)
                node = anchor(model, event) if cast is not None else None
                if cast is None or node is None or cast in seen:
                    continue
                seen.add(cast)
                message = (
                    "the optimizer holds float16 parameters: unscaling their gradients raises a "
                    "ValueError; keep them in float32 under autocast"
                )
                what = "`unscale_`" if event.kind is Kind.UNSCALE else "`scaler.step`"
                path = [(cast, "cast to float16"), (event, what)]
                yield finding(model, self, node, message, None, path)


def halved(model: Model, world: World, event: Event) -> Node | None:
    """The cast of what an optimizer steps on, where a scaler unscales its gradients."""
    if event.kind not in (Kind.UNSCALE, Kind.SCALER_STEP) or not isinstance(event.subject, Thing):
        return None
    if always_enabled(event.value) is None:
        return None
    if event.kind is Kind.SCALER_STEP and "fused" in event.subject.arguments:
        # A fused step unscales by itself, float16 as well.
        return None
    for held in event.subject.models:
        for key, (node, moment) in world.halved.items():
            if moment > event.index or not ask.related(held, key) or key in world.frozen:
                continue
            if node in model.module.parents and not sites.conditions_around(model.module, node):
                return node
    return None
