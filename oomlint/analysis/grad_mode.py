"""Where a file means to turn gradients off and does not: contexts that nothing enters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import knowledge
from oomlint.analysis.modules import Module
from oomlint.analysis.sites import called, contexts_around, qualified_name


@dataclass(frozen=True, slots=True)
class Bare:
    """`torch.no_grad()` or `torch.no_grad` as a statement of its own, or as a part of one."""

    statement: ast.Expr
    value: ast.expr

    @property
    def called(self) -> bool:
        return isinstance(self.value, ast.Call)


def bare_statements(module: Module) -> Iterator[Bare]:
    """Statements that build a no_grad context, or only name it, and throw it away."""
    for node in module.index.by_kind.get(ast.Expr, ()):
        assert isinstance(node, ast.Expr)
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        for value in parts:
            if isinstance(value, ast.Call) and not turns_off(value):
                continue
            named = value.func if isinstance(value, ast.Call) else value
            if is_no_grad(module, named) and not is_off(module, node):
                yield Bare(node, value)


def uncalled_contexts(module: Module) -> Iterator[ast.expr]:
    """`with torch.no_grad:` and `stack.enter_context(torch.no_grad)`, which raise."""
    for node in module.index.by_kind.get(ast.withitem, ()):
        assert isinstance(node, ast.withitem)
        if is_no_grad(module, node.context_expr):
            yield node.context_expr
    for site in called(module, "enter_context"):
        if site.receiver is not None and site.node.args:
            if is_no_grad(module, site.node.args[0]):
                yield site.node.args[0]


def turns_off(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(value, ast.Constant) and value.value is True for value in given)


def is_no_grad(module: Module, node: ast.expr) -> bool:
    if not isinstance(node, ast.Name | ast.Attribute):
        return False
    qualified = qualified_name(module, node, module.function_of(node))
    return knowledge.NO_GRAD.fullmatch(qualified) is not None


def is_off(module: Module, node: ast.AST) -> bool:
    """Whether a context or a decorator around a node turns gradients off by its name."""
    around = list(contexts_around(module, node))
    function = module.function_of(node)
    while function is not None:
        around += function.decorators
        function = function.parent
    named = (part.func if isinstance(part, ast.Call) else part for part in around)
    return any(is_no_grad(module, part) for part in named)


def meant_off(module: Module, node: ast.expr | ast.stmt) -> bool:
    """Whether a statement without effect above a node means to turn gradients off for it."""
    text = module.source.text
    if "no_grad" not in text and "inference_mode" not in text:
        return False
    function = module.function_of(node)
    return any(
        bare.statement.lineno < node.lineno and module.function_of(bare.statement) is function
        for bare in bare_statements(module)
    )
