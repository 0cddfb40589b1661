"""Functions and networks that only compute with what they are given: no parameters are in them."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from oomlint.analysis import classes, knowledge, sites
from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.project import Project, load_whole
from oomlint.analysis.state import World
from oomlint.analysis.values import Instance, Thing, Value

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


# What gives a network parameters, or layers that are not named.
MAKING = frozenset("Parameter register_parameter add_module register_module setattr".split())
# What holds other networks: those that it is given where it is made, and any that come later.
HOLDING = frozenset(f"torch.nn.{name}" for name in ("ModuleList", "ModuleDict", "Sequential"))
FILLING = frozenset("append extend insert update".split())
# A base that brings no layers with it; a Sequential has those that it is given.
BARE = frozenset({"torch.nn.Module", "torch.nn.modules.Module", "torch.nn.modules.module.Module"})
MAX_DEPTH = 3


def is_plain(world: World, subject: Value | None) -> bool:
    """Whether what is run certainly has no parameters."""
    if isinstance(subject, Thing) and subject.qualified == "torch.nn.Sequential":
        parts = subject.arguments
        # Of what is given as `*layers` nothing is known.
        whole = subject.made is not None and len(parts) == len(subject.made.args)
        return bool(parts) and whole and all(is_plain(world, part) for part in parts.values())
    if isinstance(subject, Thing):
        return knowledge.WITHOUT_PARAMETERS.fullmatch(subject.qualified) is not None
    if not isinstance(subject, Instance) or subject.cls is None:
        return False
    return is_plain_network(world, subject.cls)


def is_plain_network(world: World, cls: Class, depth: int = 0) -> bool:
    """Whether a network of the project has no layers and no parameters, all of it being known."""
    if depth > MAX_DEPTH:
        return False
    lineage = classes.lineage(world, in_full(cls))
    known = {kin.name for kin in lineage}
    for name in classes.base_names(world, lineage[0]):
        if name.rpartition(".")[2] not in known and name not in BARE:
            return False
    if not all(kin.methods for kin in lineage):
        return False
    methods = [method for kin in lineage for method in kin.methods.values()]
    if any(MAKING & method.words for method in methods):
        return False
    running = {name for method in methods for name in attributes_that_run(method)}
    for method in methods:
        for target, value in kept(method):
            calls = [part for part in ast.walk(value) if isinstance(part, ast.Call)]
            if not all(holds_none(world, method, made, depth) for made in calls):
                return False
            if target in running and not calls and not isinstance(value, ast.Constant):
                return False
    return True


def in_full(cls: Class) -> Class:
    """A class with its methods: of most networks in other files only the header was read."""
    if cls.methods:
        return cls
    module = load_whole(cls.module.path)
    return module.classes.get(cls.name, cls) if module is not None else cls


def kept(method: Function) -> Iterator[tuple[str, ast.expr]]:
    """What a method assigns to attributes."""
    for node in sites.own_nodes(method.node):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute):
                    yield target.attr, node.value


def attributes_that_run(method: Function) -> Iterator[str]:
    """The attributes of which something is called, or that a loop runs over."""
    for node in sites.own_nodes(method.node):
        used: list[ast.AST] = [node.func] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.For | ast.comprehension) and not is_range(node.iter):
            used = list(ast.walk(node.iter))
        for part in used:
            while isinstance(part, ast.Attribute | ast.Subscript | ast.Call):
                if isinstance(part, ast.Attribute) and sites.is_self_attribute(part, method):
                    yield part.attr
                part = part.func if isinstance(part, ast.Call) else part.value


def is_range(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"
    )


def holds_none(world: World, method: Function, made: ast.Call, depth: int) -> bool:
    """Whether what a call makes is a number, a tensor or another network without parameters."""
    cls = classes.resolve_class(world, method.module, made.func)
    if cls is not None:
        return is_plain_network(world, cls, depth + 1)
    name = sites.qualified_name(method.module, made.func, method)
    if name in HOLDING:
        return holds_what_is_made(method, made)
    if isinstance(made.func, ast.Attribute) and made.func.attr in ("items", "keys", "values"):
        return True
    if method.name == "forward" and is_plain_call(method, made):
        return True
    if name.startswith("torch.nn."):
        plain = knowledge.WITHOUT_PARAMETERS.fullmatch(name) is not None
        return plain or name.rpartition(".")[2].islower()
    return name in PLAIN_CALLS or name.startswith(("torch.", "math.", "numpy."))


def holds_what_is_made(method: Function, made: ast.Call) -> bool:
    """Whether a `ModuleDict({name: Statistics(n) for ...})` shows each network that it holds."""
    parts = [part for given in made.args for part in elements(given)]
    owner = sites.class_of(method)
    filled = owner is None or any(FILLING & other.words for other in owner.methods.values())
    return (
        bool(parts)
        and not made.keywords
        and not filled
        and all(isinstance(part, ast.Call) for part in parts)
    )


def elements(given: ast.expr) -> list[ast.expr]:
    if isinstance(given, ast.List | ast.Tuple):
        return given.elts
    if isinstance(given, ast.Dict):
        return given.values
    if isinstance(given, ast.ListComp | ast.GeneratorExp):
        return [given.elt]
    return [given.value] if isinstance(given, ast.DictComp) else [given]
