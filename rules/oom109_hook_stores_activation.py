"""OOM109: a forward hook that stores outputs together with their graphs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, grad_mode
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.debugging import is_test
from oomlint.analysis.hooks import Store, forward_hooks, stores
from oomlint.analysis.modules import Module, written
from oomlint.analysis.sites import bound_names
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


def is_cleared(module: Module, store: Store) -> bool:
    """Whether anything in the file empties the container or binds its name anew."""
    name = re.escape(container(store.place))
    entry = rf"\b{name}(\[[^\]]*\])?"
    emptied = rf"{entry}\.(clear|pop|popleft|remove|popitem)\(|\bdel {name}\b|{entry}\[:\] ="
    bound = rf"(?<![\w.]){name}\s*(?::[^=\n]+)?=[^=]"
    text = module.source.text
    return bool(re.search(emptied, text)) or len(re.findall(bound, text)) > 1


def container(place: ast.expr) -> str:
    """The name of the outermost list or dict: of `d[k]` and of `d.setdefault(k, [])` it is `d`."""
    while isinstance(place, ast.Subscript | ast.Call):
        place = place.func if isinstance(place, ast.Call) else place.value
        if isinstance(place, ast.Attribute) and place.attr == "setdefault":
            place = place.value
    return written(place)


def outlives(module: Module, store: Store) -> bool:
    """Whether more than one forward fills the container: a local one needs a loop for that."""
    root = container(store.place).split(".")[0]
    function = module.function_of(store.hook.node)
    while function is not None and root not in bound_names(function):
        function = function.parent
    if function is None or root == "self":
        return root == "self" or root in module.globals
    registered = store.hook.site.node.lineno
    return "remove" not in function.words and any(
        isinstance(node, ast.For | ast.While) and node.lineno > registered
        for node in ast.walk(function.node)
    )


def readers(module: Module, store: Store) -> Iterator[ast.expr]:
    """Every place of the file that reads what was stored."""
    base = written(store.place)
    for node in module.parents:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if written(node) == base and node is not store.place:
            yield node


def cuts(module: Module, node: ast.expr) -> bool:
    """Whether a reader takes an entry and detaches it at once."""
    parent = module.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        if not isinstance(parent.ctx, ast.Load):
            return True
        node, parent = parent, module.parents[parent]
    return isinstance(parent, ast.Attribute) and parent.attr in ("detach", "data", "shape", "clear")


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
