"""OOM112: a no_grad context that nothing enters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from oomlint.analysis import Model, edits, grad_mode
from oomlint.analysis.answers import finding, make_fix, short
from oomlint.analysis.modules import Module
from oomlint.rule import Claim, Finding, Fix, Rule, Safety, Severity
from oomlint.token_patterns import AllOf, AnyOf, InOneFunction, Lines, Statements

WORDS = (b"no_grad", b"inference_mode")
NO_GRAD = rb"\b(?:no_grad|inference_mode)"
OF_TORCH = rb"\btorch\s*\.\s*(?:\w+\s*\.\s*)*"
ANY_DOTS = rb"(?:\w+\s*\.\s*)*"
# A file where it may have another name than `torch.no_grad`.
RENAMED = re.compile(
    rb"\btorch(?:\.autograd(?:\.grad_mode)?)?[ \t]+as\b"
    rb"|from[ \t]+torch[\w.]*[ \t]+import\b(?:[ \t]*\([^)]*?|(?:[^\n(;]|\\\n)*?)"
    rb"(?:\b(?:no_grad|inference_mode|autograd|grad_mode)\b|\*)"
)


def unused(named: bytes, called: bytes) -> InOneFunction:
    """Named and not called, or called in a statement that is no `with`; where it may matter."""
    call = NO_GRAD + rb"\s*\((?![^()\n]*\)\s*:)"
    bare = named + NO_GRAD + rb"\b(?!\s*\()"
    end = rb"\b(?!\s*\()\s*(?:$|[,;)]|\"\")"
    thrown_away = called + rb"(?:" + call + rb"|" + NO_GRAD + end + rb")"
    return InOneFunction(
        (
            Lines(
                WORDS,
                re.compile(
                    rb"^(?![ \t]*(?:@|from\b|import\b)).*" + bare + rb"|" + NO_GRAD + rb"\s+as\b"
                    rb"|^[ \t\f.]*" + NO_GRAD + rb"\b"
                    rb"|(?:^|[;:])[ \t\f(]*"
                    + called
                    + call
                    + rb"|^(?![ \t]*(?:async[ \t]+)?with\b).*,[ \t(]*"
                    + called
                    + call
                ),
            ),
            # Entered, given to `enter_context`, bound to a name, or a statement or a part of one.
            Statements(
                WORDS,
                re.compile(
                    rb"\bwith\b.*"
                    + bare
                    + rb"|enter_context\s*\(.*"
                    + bare
                    + rb"|(?<![=!<>])=(?!=).*"
                    + named
                    + NO_GRAD
                    + end
                    + rb"|"
                    + NO_GRAD
                    + rb"\s+as\b"
                    rb"|(?:^|[;:])[ \t\f(]*"
                    + thrown_away
                    + rb"|^(?![ \t]*(?:async[ \t]+)?with\b).*,[ \t(]*"
                    + thrown_away
                ),
            ),
        )
    )


class IneffectiveNoGrad(Rule):
    """
    ## What it does
    Checks for `torch.no_grad()` and `torch.inference_mode()` as statements of their own, and for
    `with torch.no_grad:` without the parentheses.

    ## Why is this bad?
    The call only builds a context manager; gradients are off while a `with` has entered it or a
    function is decorated with it. As a statement it changes nothing: every forward below it saves
    its activations for a backward that never comes. Without the parentheses the `with` raises.

    ## Example
    ```python
    import torch

    def predict(model, inputs):
        model.eval()
        torch.no_grad()
        outputs = model(inputs)
        return outputs.argmax(1)
    ```

    Use instead:
    ```python
    import torch

    def predict(model, inputs):
        model.eval()
        with torch.no_grad():
            outputs = model(inputs)
            return outputs.argmax(1)
    ```

    ## Fix safety
    Unsafe for the statement: what follows it in its block comes under the context, which starts to
    work. Safe for the missing parentheses: the code raised before.

    ## Measured
    The peak of device bytes in the evaluation falls; the error of `with torch.no_grad:` is gone.

    ## References
    - [PyTorch: no_grad](https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html)
    """

    code = "OOM112"
    name = "ineffective-no-grad"
    severity = Severity.WARNING
    tokens = (("no_grad", "inference_mode"),)
    token_pattern = AllOf((unused(rb"", ANY_DOTS), AnyOf((unused(OF_TORCH, OF_TORCH), RENAMED))))
    claims = (Claim.ERROR_GONE, Claim.PEAK_FALLS, Claim.GROWTH_STOPS)

    def check(self, model: Model) -> Iterator[Finding]:
        module = model.module
        for bare in grad_mode.bare_statements(module):
            text = short(module, bare.value)
            message = f"`{text}` as a statement has no effect: gradients stay on below it"
            fix = decorated(module, bare) or entered(module, bare)
            yield finding(model, self, bare.value, message, fix)
        for context in grad_mode.uncalled_contexts(module):
            text = short(module, context)
            message = f"`{text}` without parentheses is no context manager: entering it raises"
            fix = make_fix(
                f"Write `{text}()`", edits.append_call(module, context, "()"), Safety.SAFE
            )
            found = finding(model, self, context, message, fix)
            yield replace(found, severity=Severity.ERROR)


# What needs gradients, or hands the grad mode to somebody else.
NEEDS_GRADIENTS = re.compile(
    r"\b(backward|autograd|requires_grad_?|enable_grad|set_grad_enabled|training_step)\b"
)


def decorated(module: Module, bare: grad_mode.Bare) -> Fix | None:
    """A statement in the line above a `def` has lost its `@`."""
    rest = following(module, bare.statement)
    below = rest[0] if rest else None
    if (
        not isinstance(below, ast.FunctionDef | ast.ClassDef)
        or bare.value is not bare.statement.value
    ):
        return None
    if edits.first_row(below) != (bare.statement.end_lineno or 0) + 1:
        return None
    call = module.segment(bare.value) + ("" if bare.called else "()")
    try:
        edits.stands_alone(module, bare.statement)
    except edits.NoFix:
        return None
    change = edits.replace(module, bare.statement, f"@{call}")
    return make_fix(f"Decorate `{below.name}` with `@{call}`", [change], Safety.UNSAFE)


def entered(module: Module, bare: grad_mode.Bare) -> Fix | None:
    """The statement becomes a `with` over what follows it in its block."""
    statement = bare.statement
    if bare.value is not statement.value:
        return None
    rest = following(module, statement)
    if not rest or any(NEEDS_GRADIENTS.search(module.segment(part)) for part in rest):
        return None
    definitions = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    passes_on = ast.Yield | ast.YieldFrom | ast.Await
    if any(isinstance(node, definitions | passes_on) for part in rest for node in ast.walk(part)):
        return None
    call = module.segment(statement) + ("" if bare.called else "()")
    try:
        changes = edits.enter(module, statement, rest, f"with {call}:")
    except edits.NoFix:
        return None
    return make_fix(f"Run what follows under `with {call}:`", changes, Safety.UNSAFE)


def following(module: Module, statement: ast.stmt) -> list[ast.stmt]:
    """The statements behind one in its block."""
    parent = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block[block.index(statement) + 1 :]
    return []
