"""Who in the project calls a function, and whether gradients are off there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import knowledge, project
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.project import Project

MAX_FILES = 60


def call_sites(
    scope: Project, function: Function, named: bool = False
) -> Iterator[tuple[Module, ast.AST]]:
    """Calls and references of a function in other files of the project, as far as names tell.

    With `named`, only files count that name a method's class or its file: for methods that are
    called like those of many other classes.
    """
    scope.asked_callers = True
    name = function.name.encode()
    word = re.compile(rb"\b" + name + rb"\b")
    stem = function.module.path.stem.encode()
    imports = re.compile(rb"\bimport\b.*\b" + stem + rb"\b|\bfrom\b.*\b" + stem + rb"\s+import\b")
    owner = re.compile(rb"\b" + (function.owner.name.encode() if function.owner else b"") + rb"\b")
    read = 0
    for path, data in project.project_texts(scope.root).items():
        # Most files do not mention it at all, which is told much faster than a whole word.
        if name not in data or path == function.module.path:
            continue
        if function.owner is None and stem not in data and b"import *" not in data:
            continue
        if function.owner is not None and not owner.search(data):
            if (named and not imports.search(data)) or b"." + name + b"(" not in data:
                continue
        if not word.search(data):
            continue
        read += 1
        if read > MAX_FILES:
            return
        module = project.load_whole(path)
        if module is None:
            continue
        for node in module.parents:
            if refers_to(scope, module, node, function):
                yield module, node


def refers_to(scope: Project, module: Module, node: ast.AST, function: Function) -> bool:
    if function.owner is not None:
        return isinstance(node, ast.Attribute) and node.attr == function.name
    if isinstance(node, ast.Name) and node.id == function.name:
        if node.id in module.imports:
            return is_same(scope.find(module.imports[node.id], module), function)
        if node.id in module.functions:
            return False
        return any(is_same(scope.find(f"{s}.{node.id}", module), function) for s in module.stars)
    if isinstance(node, ast.Attribute) and node.attr == function.name:
        base = written(node.value)
        head, _, rest = base.partition(".")
        if head not in module.imports:
            return False
        qualified = ".".join(part for part in (module.imports[head], rest, node.attr) if part)
        return is_same(scope.find(qualified, module), function)
    return False


def is_same(found: object, function: Function) -> bool:
    """Whether a definition found from another file is the function that is asked about."""
    if not isinstance(found, Function):
        return False
    same_place = found.module.path == function.module.path
    return found is function or (same_place and found.qualname == function.qualname)


def all_without_grad(scope: Project, function: Function) -> bool | None:
    """True where every caller in the project has gradients off, False where one has them on.

    None where nobody in the project calls it from another file.
    """
    found = False
    for module, node in call_sites(scope, function):
        found = True
        if not is_off(scope, module, node, 3):
            return False
    return True if found else None


def any_without_grad(scope: Project, function: Function, named: bool = False) -> bool:
    """Whether some caller in the project has gradients off."""
    return any(
        is_off(scope, module, node, 3) for module, node in call_sites(scope, function, named)
    )


def is_off(scope: Project, module: Module, node: ast.AST, depth: int) -> bool:
    """Whether gradients are off where a node stands: around it, above it, or at its own callers."""
    for parent in module.enclosing(node):
        if isinstance(parent, ast.With | ast.AsyncWith):
            if any(turns_off(module, item.context_expr) for item in parent.items):
                return True
        if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
            if any(turns_off(module, decorator) for decorator in parent.decorator_list):
                return True
            if any(sets_off(module, statement) for statement in parent.body):
                return True
            function = module.by_node.get(parent)
            if function is None or depth == 0:
                return False
            sites = [
                other
                for other in module.parents
                if isinstance(other, ast.Name | ast.Attribute)
                and (getattr(other, "id", None) or getattr(other, "attr", None)) == function.name
                and module.function_of(other) is not function
            ]
            return bool(sites) and all(is_off(scope, module, site, depth - 1) for site in sites)
    return any(sets_off(module, statement) for statement in module.tree.body)


def turns_off(module: Module, expression: ast.expr) -> bool:
    call = expression.func if isinstance(expression, ast.Call) else expression
    text = written(call)
    qualified = module.qualified(text)
    if knowledge.NO_GRAD.fullmatch(qualified):
        return True
    if knowledge.SET_GRAD.fullmatch(qualified) and isinstance(expression, ast.Call):
        return not (
            expression.args
            and isinstance(expression.args[0], ast.Constant)
            and expression.args[0].value is True
        )
    return bool(knowledge.NO_GRAD_NAME.search(text.rsplit(".", 1)[-1]))


def sets_off(module: Module, statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    text = written(statement.value)
    return "set_grad_enabled(False)" in text
