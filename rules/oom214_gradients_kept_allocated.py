"""OOM214: gradients that are filled with zeros instead of being freed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, knowledge
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.debugging import is_test
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import written
from oomlint.analysis.sites import Site, conditions_around, role, sites
from oomlint.analysis.state import World
from oomlint.rule import Claim, Finding, Rule, Safety, Severity


class GradientsKeptAllocated(Rule):
    """
    ## What it does
    Checks for `zero_grad(set_to_none=False)`, on optimizers and on modules.

    ## Why is this bad?
    The gradients are overwritten with zeros and stay allocated: through the next forward, when the
    activations need the memory, the model holds as many bytes of zeros as it has parameters, and
    the backward adds to them instead of writing.

    ## Example
    ```python
    def train(model, loader, criterion, optimizer):
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    ```

    Use instead:
    ```python
    def train(model, loader, criterion, optimizer):
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    ```

    ## Fix safety
    Unsafe: an optimizer skips a parameter whose gradient is None, but with a gradient of zeros it
    still decays its weight and moves it by its momentum. Code that reads `p.grad` finds None.

    ## Measured
    The peak of device bytes falls: the gradients are no longer there while the forward runs.

    ## References
    - [PyTorch: Optimizer.zero_grad](https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html)
    """

    code = "OOM214"
    name = "gradients-kept-allocated"
    severity = Severity.WARNING
    tokens = (("zero_grad",), ("False",))
    token_pattern = re.compile(rb"zero_grad\s*\((?:\s|\"\")*(set_to_none\s*=\s*)?False\b")
    claims = (Claim.PEAK_FALLS, Claim.BYTES_FALL)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        if NEEDED.search(module.source.text):
            return
        for site in sites(module):
            value = kept(model, site)
            if value is None or is_test(module, site.node):
                continue
            if any(
                knowledge.SKIP_NAME.search(written(t))
                for t, _ in conditions_around(module, site.node)
            ):
                continue  # zeros let a step with bad gradients change little
            message = (
                "`set_to_none=False` fills the gradients with zeros and keeps their memory"
                " through the next forward"
            )
            fix = make_fix(
                "Set the gradients to None", [edits.replace(module, value, "True")], Safety.UNSAFE
            )
            yield finding(model, self, site.node, message, fix)


# CUDA graphs replay into the same gradients; sums and reductions by hand need one everywhere.
NEEDED = re.compile(
    r"CUDAGraph\b|cuda\.graph\(|make_graphed_callables"
    r"|\.grad(\.data)?(\.(add|sub|copy|fill|lerp)_\(|\s*[-+]=|\[)"
    r"|(reduce|broadcast|cat|stack|flatten\w*)\([^)\n]*\.grad\b"
)


def kept(model: Model, site: Site) -> ast.expr | None:
    """The `False` that keeps the gradients, where a call is a `zero_grad` of torch's kind."""
    if site.method != "zero_grad" or site.receiver is None:
        return None
    named = next((k.value for k in site.node.keywords if k.arg == "set_to_none"), None)
    value = named or site.argument(0, "set_to_none")
    if not isinstance(value, ast.Constant) or value.value is not False:
        return None
    if named is None:
        world = World(model.project, model.module)
        if role(world, site.receiver, site.function)[0] not in (Role.OPTIMIZER, Role.MODEL):
            return None
    return value
