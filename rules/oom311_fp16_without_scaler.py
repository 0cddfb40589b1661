"""OOM311: a backward through a float16 forward whose loss no scaler has scaled."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model
from oomlint.analysis import questions as ask
from oomlint.analysis.answers import anchor, finding
from oomlint.analysis.autocast import forwards_of, precision_at
from oomlint.analysis.modules import TEXTS, written
from oomlint.analysis.state import Event, Kind, World
from oomlint.analysis.values import scaler_of
from oomlint.rule import Claim, Finding, Rule, Severity

# A file that scales losses somewhere, or leaves that to a framework, has it in another branch.
SCALING = re.compile(
    r"Scaler\b|\bscaler|scale_loss|loss_scal|scaled_loss|\.scale\(|amp\.initialize|master_param"
    r"|[Aa]ccelerator|deepspeed|\bfabric\b|Fabric\(|manual_backward",
)
# Where a flag switches autocast on, the fault is there when it does.
HALF = "float16"


class Fp16WithoutScaler(Rule):
    """
    ## What it does
    Checks for a training step whose forward runs under float16 autocast and whose loss is not
    scaled before the backward, in a file that has no gradient scaler.

    ## Why is this bad?
    The gradients of float16 operators are float16: what is smaller than 6e-8 becomes zero, and the
    parameters behind it are not trained. bfloat16 needs no scaler.

    ## Example
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, criterion):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Measured
    The share of the gradient's elements that are zero: with a mean over many outputs most of them
    before, hardly any with a scaler.

    ## References
    - [PyTorch: gradient scaling](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling)
    """

    code = "OOM311"
    name = "fp16-without-scaler"
    severity = Severity.ERROR
    tokens = (("autocast",), ("backward(",), ("step(",))
    claims = (Claim.GRADIENTS_SURVIVE,)

    def check(self, model: Model) -> Iterator[Finding]:
        if SCALING.search(TEXTS.sub('""', model.source.text)):
            return
        seen: set[int] = set()
        for world in model.worlds:
            for backward in world.events:
                forward = half_forward(world, backward)
                if forward is None:
                    continue
                step = ask.first_after(world, backward, lambda e: e.kind is Kind.STEP)
                node = anchor(model, backward, step)
                if step is None or node is None or id(node) in seen:
                    continue
                seen.add(id(node))
                message = (
                    "the gradients of a float16 forward are not scaled: those below 6e-8 become "
                    "zero; use a GradScaler or bfloat16"
                )
                path = [
                    (forward, "forward in float16"),
                    (backward, "backward of a loss that is not scaled"),
                    (step, "step"),
                ]
                yield finding(model, self, node, message, None, path)


def half_forward(world: World, backward: Event) -> Event | None:
    """The float16 forward behind a plain backward of a loss as it is."""
    if backward.kind is not Kind.BACKWARD or backward.value is None:
        return None
    if backward.detail.get("wrapper") or scaler_of(backward.value) is not None:
        return None
    if is_multiplied(backward):
        return None
    forwards = [f for f in forwards_of(world, backward) if can_meet(f, backward)]
    for forward in reversed(forwards):
        if precision_at(world, forward)[0] == HALF:
            others = [other for other in forwards if can_meet(other, forward)]
            if all(precision_at(world, other)[0] == HALF for other in others):
                return forward
    return None


def can_meet(one: Event, other: Event) -> bool:
    """Whether no condition keeps two events apart: both arms of an `if` may be in one world."""
    truths = {guard.key: guard.truth for guard in one.guards}
    return all(truths.get(guard.key, guard.truth) is guard.truth for guard in other.guards)


def is_multiplied(backward: Event) -> bool:
    """Whether the loss is scaled by hand: `(loss * 1024).backward()`."""
    return any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult)
        for part in ast.walk(backward.node)
    ) or bool(re.search(r"scale", written(backward.node)))
