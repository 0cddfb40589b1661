"""Calls and names as they stand in a file, for rules that ask for no order of events.

The other half of the model: `worlds` are followed and know what happens when; a site is a place in
the text, with the qualified name of what is called, what its names are bound to, and what encloses
it. Nothing is executed, so it holds for code that no training step reaches, too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from oomlint.analysis import classes, knowledge
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.names import BUILTINS
from oomlint.analysis.nodes import LEAVES, Index, children
from oomlint.analysis.state import World

LOOPS = (ast.For, ast.AsyncFor, ast.While)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
MAX_ALIASES = 5
# A name that is neither called nor imported.
ELSEWISE = r"^(?![ \t]*(?:from|import)\b).*\b{}\b(?!\s*\()"


@dataclass(frozen=True)
class Site:
    """One call: `method` is the last name of what is called, whatever it is called on.

    `receiver` is what it is called on, None for a plain name.
    """

    module: Module
    node: ast.Call
    method: str
    receiver: ast.expr | None
    function: Function | None

    @cached_property
    def qualified(self) -> str:
        """`torch.cuda.empty_cache`, empty where the receiver is an object.

        Only a plain name may be another one than `method`: ask that first, it costs nothing.
        """
        return qualified_name(self.module, self.node.func, self.function)

    def argument(self, position: int, keyword: str) -> ast.expr | None:
        """What a parameter is given, by position or by name; None where it is not given."""
        for given in self.node.keywords:
            if given.arg == keyword:
                return given.value
        if position < 0 or any(isinstance(part, ast.Starred) for part in self.node.args[:position]):
            return None
        if position < len(self.node.args):
            found = self.node.args[position]
            return None if isinstance(found, ast.Starred) else found
        return None

    @property
    def is_open(self) -> bool:
        """Whether `*args` or `**kwargs` may give more than can be read."""
        return any(isinstance(part, ast.Starred) for part in self.node.args) or any(
            given.arg is None for given in self.node.keywords
        )


def sites(module: Module) -> tuple[Site, ...]:
    """Every call of a file in source order, computed once; most rules want those `called` so."""
    known: tuple[Site, ...] | None = module.__dict__.get("sites")
    if known is None:
        made: dict[int, Site] = module.__dict__.get("site_by_place", {})
        known = tuple(
            made.get(place) or site_of(module, node, function)
            for place, (node, function) in enumerate(module.index.calls)
        )
        module.__dict__["sites"] = known
    return known


def sites_in(module: Module, function: Function | None) -> list[Site]:
    """The calls of a function without those of nested ones; the script's own for none."""
    known: dict[Function | None, list[Site]] | None = module.__dict__.get("sites_by_function")
    if known is None:
        known = module.__dict__["sites_by_function"] = {}
        for site in sites(module):
            known.setdefault(site.function, []).append(site)
    return known.get(function, [])


def found_in(module: Module, node: ast.AST, function: Function | None) -> Iterator[Site]:
    """The calls below a node, which is in a function, in source order."""
    pending = [(child, function) for child in reversed(children(node))]
    while pending:
        child, function = pending.pop()
        if isinstance(child, ast.Call):
            yield site_of(module, child, function)
        inner = module.by_node.get(child, function)
        if type(child) not in LEAVES:
            pending += [(below, inner) for below in reversed(children(child))]


def called(module: Module, *names: str) -> Iterator[Site]:
    """The calls of methods and functions with these last names, in source order."""
    text = module.source.text
    written_here = [name for name in names if name in text]
    if written_here:
        yield from calls_by_name(module, *written_here)


def calls_by_name(module: Module, *names: str) -> Iterator[Site]:
    """The calls of what a file itself calls so, in source order; each has one site for all."""
    every: tuple[Site, ...] | None = module.__dict__.get("sites")
    known: dict[int, Site] = module.__dict__.setdefault("site_by_place", {})
    for place, node, function in module.index.calls_of(*names):
        site = every[place] if every is not None else known.get(place)
        if site is None:
            site = known[place] = site_of(module, node, function)
        yield site


def named(module: Module, *names: str) -> Iterator[Site]:
    """The calls whose qualified name may end with one of these, in source order.

    What is imported or assigned under another name is among them.
    """
    text = module.source.text
    written_here = [name for name in names if name in text]
    if not written_here:
        return
    others = [local for local, name in module.imports.items() if last(name) in written_here]
    if any(re.search(ELSEWISE.format(name), text, re.MULTILINE) for name in written_here):
        # It may be bound to a name: any plain name may mean it.
        yield from (s for s in sites(module) if s.receiver is None or s.method in written_here)
        return
    yield from called(module, *written_here, *others)


def last(name: str) -> str:
    return name.rpartition(".")[2]


def site_of(module: Module, node: ast.Call, function: Function | None) -> Site:
    called = node.func
    receiver = called.value if isinstance(called, ast.Attribute) else None
    method = called.attr if isinstance(called, ast.Attribute) else ""
    if isinstance(called, ast.Name):
        method = called.id
    return Site(module, node, method, receiver, function)


def qualified_name(
    module: Module, node: ast.expr, function: Function | None, depth: int = 0
) -> str:
    """What a dotted name means: imports, their aliases and builtins; empty for anything else."""
    if isinstance(node, ast.Attribute):
        base = qualified_name(module, node.value, function, depth)
        return f"{base}.{node.attr}" if base else ""
    if not isinstance(node, ast.Name) or depth > MAX_ALIASES:
        return ""
    found = bindings(module, node.id, function)
    if found:
        values = {
            qualified_name(module, value, function, depth + 1) if value is not None else ""
            for value in found
        }
        return values.pop() if len(values) == 1 else ""
    if node.id in module.imports:
        return module.imports[node.id]
    if node.id in module.functions or node.id in module.classes:
        return f"{module.name}.{node.id}"
    if node.id in BUILTINS:
        return node.id
    stars = [star for star in module.stars if star.split(".")[0] == "torch"]
    return f"{stars[0]}.{node.id}" if len(stars) == 1 else ""


def bindings(module: Module, name: str, function: Function | None) -> list[ast.expr | None]:
    """Every expression that a name is bound to in its scope; None stands for what is no expression.

    The scope is the innermost function that binds it, else the module; parameters and loop
    variables are None.
    """
    scope = function
    while scope is not None:
        table = bound_names(scope)
        if name in table:
            return table[name]
        scope = scope.parent
    return list(module.globals.get(name, ()))


def bound_names(function: Function) -> dict[str, list[ast.expr | None]]:
    known: dict[str, list[ast.expr | None]] | None = function.__dict__.get("bound_names")
    if known is None:
        known = function.__dict__["bound_names"] = read_bindings(function)
    return known


def read_bindings(function: Function) -> dict[str, list[ast.expr | None]]:
    found: dict[str, list[ast.expr | None]] = {}
    arguments = function.node.args
    for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        found.setdefault(parameter.arg, []).append(None)
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            found.setdefault(rest.arg, []).append(None)
    outer: set[str] = set()
    for node in binding_in(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                bind(found, target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            bind(found, node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.comprehension):
            bind(found, node.target, None)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            bind(found, node.optional_vars, node.context_expr)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.setdefault(node.name, []).append(None)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            outer.update(node.names)
    return {name: values for name, values in found.items() if name not in outer}


def binding_in(function: Function) -> list[ast.AST]:
    """What may bind names in a function's own body."""
    known = function.module.index.binding.get(function.node)
    if known is None:
        # It was parsed for itself.
        known = Index(function.node, {}).binding[function.node]
    return known


def bind(found: dict[str, list[ast.expr | None]], target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, ast.Name):
        found.setdefault(target.id, []).append(value)
    elif isinstance(target, ast.Starred):
        bind(found, target.value, None)
    elif isinstance(target, ast.Tuple | ast.List):
        parts: list[ast.expr | None] = [None] * len(target.elts)
        if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
            parts = list(value.elts)
        for goal, part in zip(target.elts, parts, strict=True):
            bind(found, goal, part)


def own_nodes(function: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes of a function's body, in source order, without those of nested definitions.

    They are remembered on the function: many rules go through them.
    """
    known: tuple[ast.AST, ...] | None = function.__dict__.get("own_nodes")
    if known is not None:
        return known
    found: list[ast.AST] = []
    pending = children(function)[::-1]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind in LEAVES:
            found.append(node)
        elif not issubclass(kind, SCOPES):
            found.append(node)
            pending += children(node)[::-1]
    known = function.__dict__["own_nodes"] = tuple(found)
    return known


def values_of(
    module: Module, node: ast.expr, function: Function | None
) -> list[tuple[ast.expr, Function | None]]:
    """The expressions that a name or `self.name` was assigned, each with the function it is in."""
    if isinstance(node, ast.Name):
        return [(v, function) for v in bindings(module, node.id, function) if v is not None]
    owner = class_of(function)
    if is_self_attribute(node, function) and isinstance(node, ast.Attribute) and owner is not None:
        return [(value, method) for value, method in owner.assigned.get(node.attr, ())]
    return []


def class_of(function: Function | None) -> Class | None:
    while function is not None:
        if function.owner is not None:
            return function.owner
        function = function.parent
    return None


def is_self_attribute(node: ast.expr, function: Function | None) -> bool:
    method = function
    while method is not None and method.owner is None:
        method = method.parent
    if method is None or not isinstance(node, ast.Attribute):
        return False
    arguments = [*method.node.args.posonlyargs, *method.node.args.args]
    return bool(arguments) and written(node.value) == arguments[0].arg


# Methods that give back their receiver as the same object or one of the same role.
CHAINING = frozenset("to cuda cpu half float double bfloat16 train eval requires_grad_".split())


def role(
    world: World, node: ast.expr | None, function: Function | None, depth: int = 0
) -> tuple[Role | None, Evidence | None]:
    """What an expression is in a training step, and how that is known; `world` gives the project.

    Constructors first, then annotations of parameters, then the name alone (Evidence.NAMED).
    """
    module = world.subject
    if node is None or depth > MAX_ALIASES:
        return None, None
    if isinstance(node, ast.Call):
        return role_of_call(world, node, function, depth)
    for value, where in values_of(module, node, function):
        found, evidence = role(world, value, where, depth + 1)
        if found is not None:
            return found, evidence
    if isinstance(node, ast.Name):
        annotated = annotation_role(module, node.id, function)
        if annotated is not None:
            return annotated, Evidence.USED
    text = classes.dotted(node)
    named = knowledge.role_of_name(text) if text else None
    return (named, Evidence.NAMED) if named is not None else (None, None)


def role_of_call(
    world: World, node: ast.Call, function: Function | None, depth: int
) -> tuple[Role | None, Evidence | None]:
    module = world.subject
    if isinstance(node.func, ast.Attribute) and node.func.attr in CHAINING:
        return role(world, node.func.value, function, depth + 1)
    qualified = qualified_name(module, node.func, function)
    if not qualified:
        return None, None
    if knowledge.is_transparent(qualified) and node.args:
        inner, evidence = role(world, node.args[0], function, depth + 1)
        if inner is not None:
            return inner, evidence
    found = knowledge.role_of_constructor(qualified)
    if found is None:
        found = role_of_class(world, node.func)
    return (found, Evidence.CONSTRUCTED) if found is not None else (None, None)


def role_of_class(world: World, called: ast.expr) -> Role | None:
    """The role of an object of a class of the project, by its bases."""
    cls = classes.resolve_class(world, world.subject, called)
    if cls is None:
        return None
    bases = classes.base_names(world, cls)
    if any(knowledge.MODULE_BASE.fullmatch(base) for base in bases):
        return Role.CRITERION if knowledge.LOSS_NAME.search(cls.name) else Role.MODEL
    roles = (knowledge.role_of_constructor(base) for base in bases)
    return next((found for found in roles if found is not None), None)


def annotation_role(module: Module, name: str, function: Function | None) -> Role | None:
    while function is not None:
        arguments = function.node.args
        for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if parameter.arg == name and parameter.annotation is not None:
                text = written(parameter.annotation).strip("'\"")
                return knowledge.role_of_annotation(module.qualified(text))
        function = function.parent
    return None


def is_true(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def loops_around(module: Module, node: ast.AST) -> list[ast.For | ast.AsyncFor | ast.While]:
    """The loops whose body holds a node, innermost first, inside its own function."""
    found: list[ast.For | ast.AsyncFor | ast.While] = []
    child = node
    for parent in module.enclosing(node):
        if isinstance(parent, SCOPES):
            break
        if isinstance(parent, ast.For | ast.AsyncFor | ast.While) and child in parent.body:
            found.append(parent)
        child = parent
    return found


def conditions_around(module: Module, node: ast.AST) -> list[tuple[ast.expr, bool]]:
    """The tests of the `if`s around a node with the arm that it is in, innermost first."""
    found: list[tuple[ast.expr, bool]] = []
    child = node
    for parent in module.enclosing(node):
        if isinstance(parent, SCOPES):
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            found.append((parent.test, child in parent.body))
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            found.append((parent.test, child is parent.body))
        child = parent
    return found


def contexts_around(module: Module, node: ast.AST) -> list[ast.expr]:
    """The context expressions of the `with`s around a node, innermost first."""
    found: list[ast.expr] = []
    for parent in module.enclosing(node):
        if isinstance(parent, SCOPES):
            break
        if isinstance(parent, ast.With | ast.AsyncWith):
            found.extend(item.context_expr for item in reversed(parent.items))
    return found
