"""Functions that only compute with what they are given: no parameters of a network are in them."""

from __future__ import annotations

import ast
import builtins

from oomlint.analysis import sites
from oomlint.analysis.modules import Function, Module
from oomlint.analysis.project import Project

PLAIN_CALLS = frozenset(dir(builtins))
# What runs a network that is an argument.
RUNNING = frozenset({"forward", "__call__"})


def is_plain_function(
    project: Project, module: Module, node: ast.expr, function: Function | None
) -> bool:
    """Whether an expression is such a function: of this project, torch or another library."""
    found = method_of(node, function) or nested(node, function)
    if found is not None:
        return computes_alone(found)
    qualified = sites.qualified_name(module, node, function)
    root, _, rest = qualified.partition(".")
    if not rest or not qualified.rpartition(".")[2].islower():
        return False
    if root == module.name.partition(".")[0] and isinstance(node, ast.Name):
        found = module.functions.get(node.id)
        return found is not None and computes_alone(found)
    definition = project.find(qualified, module)
    if isinstance(definition, Function):
        return computes_alone(definition)
    return definition is None and not is_of_the_project(project, module, qualified)


def is_of_the_project(project: Project, module: Module, qualified: str) -> bool:
    """Whether a name that was not found may still stand in a file of the project."""
    parts = qualified.split(".")
    return any(
        project.find(".".join(parts[:length]), module) is not None
        for length in range(1, len(parts))
    )


def method_of(node: ast.expr, function: Function | None) -> Function | None:
    owner = sites.class_of(function)
    if owner is None or not isinstance(node, ast.Attribute):
        return None
    return owner.methods.get(node.attr) if sites.is_self_attribute(node, function) else None


def nested(node: ast.expr, function: Function | None) -> Function | None:
    if function is None or not isinstance(node, ast.Name):
        return None
    inner = function.module.by_node.values()
    return next((f for f in inner if f.name == node.id and f.parent is function), None)


def computes_alone(function: Function) -> bool:
    """Whether a function calls methods of tensors, functions of torch and builtins, no more."""
    arguments = function.node.args
    if function.owner is not None and not is_static(function):
        first = [*arguments.posonlyargs, *arguments.args][:1]
        if first and first[0].arg in function.words:
            return False
    return all(is_plain_call(function, part) for part in ast.walk(function.node))


def is_static(function: Function) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorators)


def is_plain_call(function: Function, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return True
    qualified = sites.qualified_name(function.module, node.func, function)
    if qualified in PLAIN_CALLS or (
        qualified.startswith("torch.") and qualified.rpartition(".")[2].islower()
    ):
        return True
    if qualified or not isinstance(node.func, ast.Attribute) or node.func.attr in RUNNING:
        return False
    root: ast.expr = node.func
    while isinstance(root, ast.Attribute | ast.Subscript):
        root = root.value
    return not isinstance(root, ast.Name) or root.id in sites.bound_names(function)
