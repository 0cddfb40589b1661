"""OOM308: mixed precision by the names that torch.amp has replaced."""

from __future__ import annotations

from collections.abc import Iterator

from oomlint.analysis import Model, amp_names, edits, requirement
from oomlint.analysis.amp_names import Use
from oomlint.analysis.answers import finding, make_fix
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class DeprecatedCudaAmp(Rule):
    """
    ## What it does
    Checks for `autocast`, `GradScaler`, `custom_fwd` and `custom_bwd` of `torch.cuda.amp` and
    `torch.cpu.amp`.

    ## Why is this bad?
    They are deprecated since torch 2.4 and raise a FutureWarning where they are used; `torch.amp`
    has the same for every device. Code behind a test for the version is left alone.

    ## Example
    ```python
    import torch

    def train(model, loader, optimizer, criterion, use_amp):
        scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.cuda.amp.autocast(use_amp):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    Use instead:
    ```python
    import torch

    def train(model, loader, optimizer, criterion, use_amp):
        scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.amp.autocast("cuda", enabled=use_amp):
                loss = criterion(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    ```

    ## Options
    `torch-version`: what the oldest torch of a project does not have is not reported.
    `torch.amp.GradScaler` is there since 2.3, `torch.amp.custom_fwd` and `custom_bwd` since 2.4.

    ## Fix safety
    Safe: the old names call the new ones with the device's name. There is no fix where an autocast
    around it chose another dtype, where arguments are unpacked, for subclasses, in scripted
    functions, and for an import that `__all__` or an `__init__.py` passes on.

    ## Measured
    The FutureWarning is raised before and not after.

    ## References
    - [PyTorch: torch.amp](https://docs.pytorch.org/docs/stable/amp.html)
    """

    code = "OOM308"
    name = "deprecated-cuda-amp"
    severity = Severity.ADVICE
    tokens = (
        ("cuda.amp", "cpu.amp", "cuda import", "cpu import", "cuda as", "cpu as"),
        ("autocast", "GradScaler", "custom_fwd", "custom_bwd"),
    )
    claims = (Claim.WARNING_GONE,)

    def check(self, model: Model) -> Iterator[Finding]:
        for use in amp_names.uses(model.module):
            warns = use.how in ("call", "decorator", "base")
            if not warns or not amp_names.is_available(use, model.torch_version):
                continue
            if is_kept_older(model):
                return
            message = (
                f"`torch.{use.device}.amp.{use.name}` is deprecated and raises a FutureWarning"
            )
            yield finding(model, self, use.node, message, remedy(model, use))


# The first torch that warns.
WARNING_SINCE = (2, 4)


def is_kept_older(model: Model) -> bool:
    """Whether the project's metadata demands a torch that does not warn."""
    below = requirement.torch_below(model.project, model.module)
    return below is not None and below <= WARNING_SINCE


def remedy(model: Model, use: Use) -> Fix | None:
    try:
        found = amp_names.migration(model.module, use, model.torch_version)
    except edits.NoFix:
        return None
    return make_fix(f"Use `torch.amp.{use.name}`", found, Safety.SAFE)
