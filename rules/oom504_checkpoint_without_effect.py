"""OOM504: activation checkpointing where nothing is kept that it could save."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, edits, sites
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import MAX_ALIASES, Site
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import CHECKPOINTING


class CheckpointWithoutEffect(Rule):
    """
    ## What it does
    Checks for `torch.utils.checkpoint.checkpoint` around a single layer, around nothing but another
    checkpoint, and under `torch.no_grad()`.

    ## Why is this bad?
    A checkpoint keeps the inputs of a function and computes the rest again in the backward pass. A
    linear layer, a convolution, a norm or an activation keeps its input, its output or as much
    anyway: the layer runs twice and the peak stays where it was. Where no graph is built, nothing
    is kept in the first place. A checkpoint pays around a block of several layers.

    ## Example
    ```python
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.expand = nn.Linear(width, 4 * width)
            self.project = nn.Linear(4 * width, width)

        def forward(self, x):
            x = checkpoint(self.expand, x, use_reentrant=False)
            return self.project(x.relu())
    ```

    Use instead:
    ```python
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.expand = nn.Linear(width, 4 * width)
            self.project = nn.Linear(4 * width, width)

        def forward(self, x):
            x = self.expand(x)
            return self.project(x.relu())
    ```

    ## Fix safety
    Safe with `use_reentrant=False`: the values are the same. Unsafe for the reentrant kind, which
    may have kept gradients from the layer.

    ## Measured
    Four linear layers: one function of each runs again in the backward pass before the fix, none
    after it, and the peak stays the same.

    ## References
    - [PyTorch: torch.utils.checkpoint](https://docs.pytorch.org/docs/stable/checkpoint.html)
    """

    code = "OOM504"
    name = "checkpoint-without-effect"
    severity = Severity.WARNING
    tokens = (("checkpoint",), ("torch",))
    token_pattern = CHECKPOINTING
    claims = (Claim.RECOMPUTATIONS_FALL,)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for site in sites.named(module, "checkpoint"):
            if not is_checkpoint(module, site) or not site.node.args:
                continue
            message = reason(module, site)
            if message is not None:
                yield finding(model, self, site.node, message, remedy(module, site))


CHECKPOINT = "torch.utils.checkpoint.checkpoint"
# Layers that keep their input, their output or as much for the backward pass, and nothing more.
LAYERS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?("
    r"Linear|Conv[123]d|ConvTranspose[123]d|Embedding|LayerNorm|GroupNorm|Identity|Flatten"
    r"|ReLU|ReLU6|LeakyReLU|ELU|GELU|SiLU|Sigmoid|Tanh|Softmax|LogSoftmax|Softplus"
    r"|Dropout|Dropout[123]d)"
)
FUNCTIONS = re.compile(
    r"torch\.(relu|sigmoid|tanh|softmax)"
    r"|torch\.nn\.functional\.(linear|conv[123]d|layer_norm|group_norm|relu|leaky_relu|elu|gelu"
    r"|silu|sigmoid|tanh|softmax|log_softmax|dropout)"
)
GRADLESS = re.compile(r"torch\.(autograd\.(grad_mode\.)?)?(no_grad|inference_mode)")
LIST = re.compile(r"torch\.nn\.(modules\.container\.)?ModuleList")


def is_checkpoint(module: Module, site: Site) -> bool:
    if isinstance(site.node.func, ast.Name) and site.node.func.id in module.functions:
        return False
    return site.qualified == CHECKPOINT


def reason(module: Module, site: Site) -> str | None:
    """Why a checkpoint saves nothing, or None where it may save something."""
    if is_graphless(module, site):
        return "no graph is built here: the checkpoint has nothing to save"
    run = site.node.args[0]
    if is_layer(module, run, site.function):
        return (
            f"`{written(run)}` keeps no more for its backward pass than this checkpoint does: "
            "it only runs twice"
        )
    if only_checkpoints(module, run, site.function):
        return "this checkpoint holds nothing but another: what is inside runs a third time"
    return None


def is_graphless(module: Module, site: Site) -> bool:
    for context in sites.contexts_around(module, site.node):
        if isinstance(context, ast.Call) and not context.args and not context.keywords:
            called = sites.qualified_name(module, context.func, site.function)
            if GRADLESS.fullmatch(called):
                return True
        if "grad" in written(context):
            return False
    function = site.function
    return function is not None and any(
        GRADLESS.fullmatch(sites.qualified_name(module, part, function.parent))
        for decorator in function.decorators
        for part in [decorator.func if isinstance(decorator, ast.Call) else decorator]
    )


def is_layer(module: Module, node: ast.expr, function: Function | None, depth: int = 0) -> bool:
    """Whether whatever an expression stands for is one layer."""
    if depth > MAX_ALIASES:
        return False
    if isinstance(node, ast.IfExp):
        arms = (node.body, node.orelse)
        return all(is_layer(module, arm, function, depth + 1) for arm in arms)
    if isinstance(node, ast.Call):
        made = sites.qualified_name(module, node.func, function)
        return LAYERS.fullmatch(made) is not None
    if FUNCTIONS.fullmatch(sites.qualified_name(module, node, function)):
        return True
    if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
        return is_list_of_layers(module, node.value, function)
    values = sites.values_of(module, node, function)
    whole = not isinstance(node, ast.Name) or None not in sites.bindings(module, node.id, function)
    return (
        bool(values)
        and whole
        and all(is_layer(module, value, where, depth + 1) for value, where in values)
    )


def is_list_of_layers(module: Module, node: ast.expr, function: Function | None) -> bool:
    """A ModuleList that is written out or comprehended, and to which nobody appends."""
    values = sites.values_of(module, node, function)
    return bool(values) and all(holds_layers(module, value, where) for value, where in values)


def holds_layers(module: Module, value: ast.expr, function: Function | None) -> bool:
    if not isinstance(value, ast.Call) or len(value.args) != 1:
        return False
    if not LIST.fullmatch(sites.qualified_name(module, value.func, function)):
        return False
    given = value.args[0]
    if isinstance(given, ast.ListComp | ast.GeneratorExp):
        return is_layer(module, given.elt, function)
    if isinstance(given, ast.List | ast.Tuple) and given.elts:
        return all(is_layer(module, part, function) for part in given.elts)
    return False


def only_checkpoints(module: Module, node: ast.expr, function: Function | None) -> bool:
    """A lambda or a function of the file that returns a checkpoint and does nothing else."""
    if isinstance(node, ast.Lambda):
        return calls_checkpoint(module, node.body, function)
    if not isinstance(node, ast.Name):
        return False
    inner = next(
        (f for f in module.all_functions if f.name == node.id and f.parent is function), None
    )
    if inner is None or len(inner.node.body) != 1:
        return False
    only = inner.node.body[0]
    return isinstance(only, ast.Return) and calls_checkpoint(module, only.value, inner)


def calls_checkpoint(module: Module, node: ast.expr | None, function: Function | None) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return sites.qualified_name(module, node.func, function) == CHECKPOINT


# What `checkpoint` itself takes; the others are the function's.
OWN = frozenset(
    "use_reentrant preserve_rng_state context_fn determinism_check debug early_stop".split()
)


def remedy(module: Module, site: Site) -> Fix | None:
    """The function is called as it is."""
    node = site.node
    run = node.args[0]
    if not isinstance(run, ast.Name | ast.Attribute | ast.Subscript) or site.is_open:
        return None
    own = [part for part in node.keywords if part.arg in OWN]
    if len(node.args) == 1 and len(own) == len(node.keywords):
        return None
    kind = site.argument(-1, "use_reentrant")
    plain = isinstance(kind, ast.Constant) and kind.value is False
    changed = [
        edits.replace(module, node.func, module.segment(run)),
        *(edits.drop_argument(module, node, part) for part in (run, *own)),
    ]
    safety = Safety.SAFE if plain else Safety.UNSAFE
    return make_fix("Call it without a checkpoint", changed, safety)
