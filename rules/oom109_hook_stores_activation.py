"""OOM109: a forward hook that stores outputs together with their graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, grad_mode
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.debugging import is_test
from oomlint.analysis.hooks import (
    Store,
    cuts,
    forward_hooks,
    is_cleared,
    outlives,
    readers,
    stores,
)
from oomlint.analysis.modules import Module, written
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity


class HookStoresActivation(Rule):
    """
    ## What it does
    Checks for forward hooks that append what they are given, undetached, to a list that nothing
    clears, or that store it for readers who only use its values.

    ## Why is this bad?
    The output of a layer holds the graph of everything before it. A list that gets one with every
    forward keeps all these graphs, and without a backward all their activations, until the run is
    out of memory.

    ## Example
    ```python
    features = []

    def keep(module, inputs, output):
        features.append(output)

    def train(model, loader, criterion, optimizer):
        model.body.register_forward_hook(keep)
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    ```

    Use instead:
    ```python
    features = []

    def keep(module, inputs, output):
        features.append(output.detach())

    def train(model, loader, criterion, optimizer):
        model.body.register_forward_hook(keep)
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
    ```

    ## Fix safety
    Safe: the stored values are the same; no fix is offered where they may be differentiated. What
    is stored still grows with every forward until the list is cleared.

    ## Measured
    Live autograd nodes grow with every forward before the fix and not at all after it.

    ## References
    - [PyTorch: Module.register_forward_hook](https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_forward_hook)
    """

    code = "OOM109"
    name = "hook-stores-activation"
    severity = Severity.WARNING
    tokens = (
        (
            "register_forward_hook",
            "register_forward_pre_hook",
            "register_module_forward_hook",
            "register_module_forward_pre_hook",
        ),
    )
    claims = (Claim.NODES_STOP, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        seen: set[int] = set()
        for hook in forward_hooks(module):
            if is_test(module, hook.node) or is_off(module, hook.site.node):
                continue
            for store in stores(hook):
                message = complaint(module, store)
                if message is None or id(store.node) in seen:
                    continue
                seen.add(id(store.node))
                yield finding(model, self, store.node, message, detach(module, store))


GRADIENTS = frozenset("backward autograd retain_grad grad register_hook".split())
OFF = re.compile(r"\b(no_grad|inference_mode|set_grad_enabled)\b")


def is_off(module: Module, registration: ast.Call) -> bool:
    """Whether the forwards that call the hook may build no graph at all."""
    if grad_mode.is_off(module, registration):
        return True
    if not OFF.search(module.source.text):
        return False
    function = module.function_of(registration)
    return function is None or "backward" not in function.words


def complaint(module: Module, store: Store) -> str | None:
    place = written(store.place)
    if store.grows:
        if is_cleared(module, store) or not outlives(module, store):
            return None
        return f"`{place}` keeps the graph of every forward alive: nothing detaches or clears it"
    reads = list(readers(module, store))
    if reads and all(cuts(module, node) for node in reads):
        return f"`{place}` keeps the graph of the last forward alive for readers who detach it"
    return None


def detach(module: Module, store: Store) -> Fix | None:
    """`.detach()` behind the tensor, unless a reader may take gradients of it."""
    if isinstance(store.leaf, ast.Name) and store.leaf.id in ("input", "inputs", "args"):
        return None  # a tuple
    for node in readers(module, store):
        function = module.function_of(node)
        if function is None or function.node is store.hook.node or cuts(module, node):
            continue
        called = module.parents[node]
        if isinstance(called, ast.Call) and written(called.func) in ("len", "print"):
            continue
        if GRADIENTS & function.words or "loss" in function.code:
            return None
    changes = edits.append_call(module, store.leaf, ".detach()")
    return make_fix("Store the output without its graph", changes, Safety.SAFE)
