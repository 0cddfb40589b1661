"""Activation checkpoints around what keeps nothing that they could save."""

from __future__ import annotations

import ast
import re

from oomlint.analysis import sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import MAX_ALIASES, Site

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
