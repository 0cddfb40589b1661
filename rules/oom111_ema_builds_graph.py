"""OOM111: an average of live parameters that is updated with grad mode on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import Model, callers, edits, grad_mode
from oomlint.analysis.answers import finding, make_fix
from oomlint.analysis.averaging import BLEND, Update, updates
from oomlint.analysis.debugging import is_test
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import loops_around
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AllOf, AnyOf, Exactly, InOneFunction, Lines, OutsideFunctions

PARAMETERS = Exactly((b".parameters(", b".named_parameters("))
# In a source a mix may go on in the next line.
MIX = re.compile(BLEND.replace(r"[^\n]*", "[^=]*?").encode())
# A loop or comprehension over parameters, a name for them or a collection of them.
OVER_PARAMETERS = Lines(
    (b".parameters(", b".named_parameters("),
    re.compile(
        rb"^[ \t]*(?:async[ \t]+)?for\b|[\[{(]\s*\w+(?:\s*:\s*\w+)?\s+for\b"
        rb"|(?:^(?![ \t]*(?:async|def|return)\b)|(?:dict|list|tuple|OrderedDict|iter|sorted|zip)\()"
        rb"[^()]*(?:\([^()]*\)[^()]*)*\.(?:named_)?parameters\("
    ),
)


class EmaBuildsGraph(Rule):
    """
    ## What it does
    Checks for moving averages of a model's parameters that are computed from the parameters
    themselves, outside of `no_grad`.

    ## Why is this bad?
    A parameter requires gradients, so its average gets a graph, and the next update computes with
    the average of before: the chain of operations grows with every step and keeps the tensors of
    all of them. What `state_dict()` returns is detached; what `parameters()` returns is not.

    ## Example
    ```python
    import torch

    def update(shadow, model, decay):
        for name, parameter in model.named_parameters():
            shadow[name] = decay * shadow[name] + (1 - decay) * parameter
    ```

    Use instead:
    ```python
    import torch

    @torch.no_grad()
    def update(shadow, model, decay):
        for name, parameter in model.named_parameters():
            shadow[name] = decay * shadow[name] + (1 - decay) * parameter
    ```

    ## Fix safety
    Safe: the averages are the same numbers.

    ## Measured
    Live autograd nodes grow with every update before the fix and not at all after it.

    ## References
    - [PyTorch: weight averaging](https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema)
    """

    code = "OOM111"
    name = "ema-builds-graph"
    severity = Severity.WARNING
    tokens = ((".parameters(", ".named_parameters("),)
    # A mix where parameters are, or below the functions of a script that lists them.
    token_pattern = AllOf(
        (
            OVER_PARAMETERS,
            AnyOf((InOneFunction((PARAMETERS, MIX)), AllOf((OutsideFunctions(PARAMETERS), MIX)))),
        )
    )
    claims = (Claim.NODES_STOP, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        places: set[int] = set()
        for update in updates(module):
            function = module.function_of(update.statement)
            place = id(function.node if function else outermost_loop(module, update.statement))
            if place in places or gradients_off(model, update, function):
                continue
            places.add(place)
            text = written(update.average)
            message = (
                f"`{text}` is averaged with parameters that require gradients: its graph grows"
                " with every update"
            )
            yield finding(
                model, self, update.statement, message, turn_off(module, update, function)
            )


# Functions that a framework calls without gradients, and those whose gradients are the point.
ELSEWHERE = re.compile(r"valid|test|eval|predict|infer", re.IGNORECASE)
DIFFERENTIATED = re.compile(r"\b(autograd|create_graph|higher|functional_call|vmap|func)\b")
SWITCH = re.compile(r"\b(no_grad|inference_mode|set_grad_enabled)\b")


def gradients_off(model: Model, update: Update, function: Function | None) -> bool:
    """Whether the update runs without gradients, or something may want to go through it."""
    module, node = model.module, update.statement
    if is_test(module, node) or grad_mode.is_off(module, node):
        return True
    if function is None:
        return "set_grad_enabled(False" in module.source.text
    if SWITCH.search(function.code) and not encloses_training(function):
        return True
    if ELSEWHERE.search(function.name) or DIFFERENTIATED.search(function.code):
        return True
    if callers.is_off(model.project, module, node, 3):
        return True
    return callers.any_without_grad(model.project, function, named=True)


def encloses_training(function: Function) -> bool:
    """Whether a function trains, so that a no_grad in it may be about something else."""
    return "backward" in function.words


def outermost_loop(module: Module, statement: ast.stmt) -> ast.stmt:
    """The outermost loop over parameters around an update, else the update."""
    found = statement
    for loop in loops_around(module, statement):
        if isinstance(loop, ast.For) and "parameters" in written(loop.iter):
            found = loop
    return found


def turn_off(module: Module, update: Update, function: Function | None) -> Fix | None:
    """A decorator on a function that only averages, else a `with` around its loop."""
    name, imports = edits.name_in_file(module, "torch.no_grad")
    trains = function is None or {"backward", "forward"} & {*function.words, function.name}
    try:
        if function is not None and not trains and not function.is_generator:
            edit = edits.decorate(module, function, f"{name}()")
            title = f"Decorate `{function.name}` with `@{name}()`"
            return make_fix(title, [*imports, edit], Safety.SAFE)
        loop = outermost_loop(module, update.statement)
        changes = edits.wrap_in(module, [loop], f"with {name}():")
    except edits.NoFix:
        return None
    return make_fix(f"Average under `{name}()`", [*imports, *changes], Safety.SAFE)
