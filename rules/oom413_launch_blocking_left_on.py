"""OOM413: CUDA_LAUNCH_BLOCKING that was left on after a search for an error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, cadence, edits, environment, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.environment import Setting
from oomlint.analysis.modules import Module, written
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class LaunchBlockingLeftOn(Rule):
    """
    ## What it does
    Checks for `CUDA_LAUNCH_BLOCKING` that a file sets to 1 without a condition.

    ## Why is this bad?
    It is there to find the operation behind an asynchronous error. With it the host waits for
    every kernel, and the device for the host: nothing runs ahead, and a step of many small
    operations takes a multiple of its time.

    ## Example
    ```python
    import os

    import torch

    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    model = torch.nn.Linear(8, 8).cuda()
    ```

    Use instead:
    ```python
    import os

    import torch

    model = torch.nn.Linear(8, 8).cuda()
    ```

    ## Fix safety
    Safe: the numbers stay the same. Behind a flag, and in functions that make a run deterministic
    or debug it, the setting is not reported.

    ## Measured
    On the emulated device the host waits for every operation before and for none after. The time
    that this takes only a GPU can show.

    ## References
    - [PyTorch: asynchronous execution](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution)
    """

    code = "OOM413"
    name = "launch-blocking-left-on"
    severity = Severity.WARNING
    tokens = (("environ", "putenv"),)
    texts = ("CUDA_LAUNCH_BLOCKING",)
    claims = (Claim.WAITS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        settings = [s for s in environment.settings(module) if s.name == "CUDA_LAUNCH_BLOCKING"]
        if not all(is_on(setting) for setting in settings):
            return
        for setting in settings:
            if is_asked_for(module, setting):
                continue
            message = "with `CUDA_LAUNCH_BLOCKING` the host waits for every single kernel"
            yield finding(model, self, setting.node, message, remedy(module, setting))


def is_on(setting: Setting) -> bool:
    return (
        setting.value is not None
        and re.fullmatch(r"['\"]1['\"]|str\((1|True)\)", written(setting.value)) is not None
    )


PURPOSE = re.compile(r"determin|debug|reproduc|profil|benchmark|test|trace|diagnos", re.IGNORECASE)


def is_asked_for(module: Module, setting: Setting) -> bool:
    """Whether a condition or the purpose of the function says that it is meant."""
    function = setting.function
    while function is not None:
        if PURPOSE.search(function.name):
            return True
        function = function.parent
    if PURPOSE.search(module.path.stem):
        return True
    tests = sites.conditions_around(module, setting.statement)
    return any("__name__" not in written(test) and not cadence.of_device(test) for test, _ in tests)


def remedy(module: Module, setting: Setting) -> Fix | None:
    statement = setting.statement
    whole = isinstance(statement, ast.Assign) or (
        isinstance(statement, ast.Expr) and statement.value is setting.node
    )
    if not whole or (isinstance(setting.node, ast.Call) and len(setting.node.keywords) > 1):
        return None
    try:
        return make_fix("Remove it", [edits.delete(module, statement)], Safety.SAFE)
    except edits.NoFix:
        return None
