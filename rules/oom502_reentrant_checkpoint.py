"""OOM502: activation checkpoints that leave the choice of `use_reentrant` to torch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, parameterless, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import Site
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.signs import CHECKPOINTING


class ReentrantCheckpoint(Rule):
    """
    ## What it does
    Checks for `torch.utils.checkpoint.checkpoint` and `checkpoint_sequential` without
    `use_reentrant`. Functions that only compute with their arguments are not reported: there is no
    parameter in them that could miss its gradient.

    ## Why is this bad?
    Without the argument torch takes the reentrant kind and warns. It runs a backward inside of the
    backward, and only where one of the block's inputs requires a gradient: in a first block, fed
    with data, no parameter gets any. It also ignores keyword arguments, `torch.autograd.grad` and
    what is nested in the block's inputs.

    ## Example
    ```python
    from torch.utils.checkpoint import checkpoint

    def forward(stem, blocks, image):
        hidden = checkpoint(stem, image)
        for block in blocks:
            hidden = block(hidden)
        return hidden
    ```

    Use instead:
    ```python
    from torch.utils.checkpoint import checkpoint

    def forward(stem, blocks, image):
        hidden = checkpoint(stem, image, use_reentrant=False)
        for block in blocks:
            hidden = block(hidden)
        return hidden
    ```

    ## Fix safety
    Unsafe: parameters that got no gradient are trained from now on.

    ## Measured
    A checkpointed first layer: its two parameters get no gradient before the fix and get one after
    it.

    ## References
    - [PyTorch: torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)
    """

    code = "OOM502"
    name = "reentrant-checkpoint"
    severity = Severity.WARNING
    tokens = (("checkpoint",), ("torch",))
    token_pattern = CHECKPOINTING
    claims = (Claim.GRADIENTS_ARRIVE, Claim.WARNING_GONE, Claim.ERROR_GONE)

    def check(self, model: Model) -> Iterator[Finding]:
        if model.torch_version is not None and model.torch_version < SINCE:
            return
        for site in sites.sites(model.module):
            if leaves_choice(model.module, site) and not is_of_a_plain_function(model, site):
                message = (
                    "without `use_reentrant` this is the reentrant kind: a block whose inputs "
                    "require no gradient gets none for its parameters"
                )
                yield finding(model, self, site.node, message, remedy(model.module, site))


CHECKPOINTS = frozenset(
    {"torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential"}
)
# The first torch with the argument.
SINCE = (1, 11)
# Tests that ask what the installed torch can do: one arm is for an older one.
COMPATIBILITY = re.compile(
    r"version|reentrant|signature|torch_?(ge|lt|[12])|hasattr", re.IGNORECASE
)

ASKED = re.compile(r"\.requires_grad\b(?!\s*=[^=])")


def leaves_choice(module: Module, site: Site) -> bool:
    if is_called(module, site):
        given = site.argument(3, "use_reentrant") if "sequential" in site.qualified else None
    elif site.method == "partial" and site.node.args and is_prepared(module, site):
        given = None
    else:
        return False
    named = any(k.arg in ("use_reentrant", None) for k in site.node.keywords)
    return given is None and not named and not (is_for_older(module, site) or asks_inputs(site))


def is_of_a_plain_function(model: Model, site: Site) -> bool:
    """Whether no parameter is in what is run again: what it is given gets its gradients."""
    block = site.argument(0, "function")
    if block is None or "sequential" in site.qualified or site.method == "partial":
        return False
    return parameterless.is_plain_function(model.project, model.module, block, site.function)


def is_called(module: Module, site: Site) -> bool:
    if isinstance(site.node.func, ast.Name) and site.node.func.id in module.functions:
        return False
    if site.qualified:
        return site.qualified in CHECKPOINTS
    # An attribute that holds torch's function, whichever branch put it there.
    values = sites.values_of(module, site.node.func, site.function)
    return bool(values) and all(
        sites.qualified_name(module, value, where) in CHECKPOINTS for value, where in values
    )


def is_prepared(module: Module, site: Site) -> bool:
    """`partial(checkpoint, block)`: nobody who calls the result adds the argument in this file."""
    first = site.node.args[0]
    if sites.qualified_name(module, first, site.function) not in CHECKPOINTS:
        return False
    return "use_reentrant" not in module.source.text


def is_for_older(module: Module, site: Site) -> bool:
    tests = sites.conditions_around(module, site.node)
    if any(COMPATIBILITY.search(written(test)) for test, _ in tests):
        return True
    return any(
        isinstance(parent, ast.ExceptHandler)
        and parent.type is not None
        and "TypeError" in written(parent.type)
        for parent in module.enclosing(site.node)
    )


def asks_inputs(site: Site) -> bool:
    """Whether the code looks whether the inputs require a gradient: it knows the reentrant kind."""
    function = site.function
    while function is not None:
        if ASKED.search(function.code):
            return True
        function = function.parent
    return False


def remedy(module: Module, site: Site) -> Fix | None:
    try:
        edit = edits.add_keyword(module, site.node, "use_reentrant=False")
    except edits.NoFix:
        return None
    return make_fix("Pass `use_reentrant=False`", [edit], Safety.UNSAFE)
