"""What an expression comes from, read backwards: names, parameters, attributes, calls, networks.

For questions about a value that need no order of events across calls, in code that no training
step reaches, too. Whatever cannot be told is None, and every way to a value counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import classes, knowledge, parsing
from oomlint.analysis.modules import Class, Function, LazyModule, Module, build, module_name
from oomlint.analysis.nodes import LEAVES, Index, children, walk
from oomlint.analysis.project import Project
from oomlint.analysis.sites import (
    LOOPS,
    SCOPES,
    bindings,
    bound_names,
    calls_by_name,
    class_of,
    is_self_attribute,
    qualified_name,
)
from oomlint.analysis.state import World

MAX_DEPTH = 30


@dataclass(frozen=True, slots=True)
class Place:
    """An expression where it stands: its names mean what they mean in this function."""

    node: ast.expr
    function: Function | None
    module: Module

    def at(self, node: ast.expr) -> Place:
        return Place(node, self.function, self.module)


@dataclass(frozen=True, slots=True)
class Definition:
    """What a name is bound to; with an index, which part of what the expression gives."""

    node: ast.expr
    index: int | None = None


def qualified(place: Place, node: ast.expr) -> str:
    return qualified_name(place.module, node, place.function)


def definitions(place: Place) -> list[tuple[Place, int | None]] | None:
    """Everything that a name, a parameter or an attribute of `self` may be here; None: unknown."""
    node = place.node
    if isinstance(node, ast.Name):
        return of_name(place, node.id)
    if is_self_attribute(node, place.function) and isinstance(node, ast.Attribute):
        owner = class_of(place.function)
        return of_attribute(owner, node.attr) if owner is not None else None
    return None


def of_name(place: Place, name: str) -> list[tuple[Place, int | None]] | None:
    function = place.function
    if function is not None and name in bound_names(function):
        found = reaching(function, place.node, name)
        if found is None:
            return None
        places: list[tuple[Place, int | None]] = []
        for part in found:
            if part is not PARAMETER:
                places.append((place.at(part.node), part.index))
                continue
            given = of_parameter(function, name)
            if given is None:
                return None
            places.extend(given)
        return places
    if function is None:
        if name not in place.module.globals:
            return None
        found = reaching(place.module, place.node, name)
        if found is not None and PARAMETER not in found:
            return [(place.at(part.node), part.index) for part in found]
        return None
    # A name of an outer function or of the module: all that is ever bound to it, in any order.
    values = bindings(place.module, name, function.parent)
    if not values or any(value is None or is_continued(value, name) for value in values):
        return None
    outer = function.parent
    while outer is not None and name not in bound_names(outer):
        outer = outer.parent
    return [
        (Place(value, outer, place.module), None)
        for value in values
        if value is not None and not mentions(value, name)
    ]


def mentions(node: ast.AST, name: str) -> bool:
    """`model = model.to(device)` says nothing new of what the model is."""
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node))


def is_continued(value: ast.expr, text: str) -> bool:
    """`net = nn.Sequential(net, nn.Sigmoid())`: another end than the first binding says."""
    is_chain = isinstance(value, ast.Call) and (classes.dotted(value.func) or "").endswith(
        "Sequential"
    )
    return is_chain and any(
        isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) == text
        for part in ast.walk(value)
    )


def of_attribute(owner: Class, name: str) -> list[tuple[Place, int | None]] | None:
    values = owner.assigned.get(name)
    if not values and name in owner.constants:
        # `criterion = nn.BCELoss()` in the class's body; a subclass may choose another.
        others = [other for other in owner.module.classes.values() if other is not owner]
        if any(name in other.constants or other.assigned.get(name) for other in others):
            return None
        return [(Place(owner.constants[name], None, owner.module), None)]
    if not values or any(is_continued(value, f"self.{name}") for value, _ in values):
        return None
    return [
        (Place(value, method, owner.module), None)
        for value, method in values
        if not any(isinstance(p, ast.Attribute) and p.attr == name for p in ast.walk(value))
    ]


# -- which binding of a name reaches its use

# Stands for "what the caller gives".
PARAMETER = Definition(ast.Constant(None))


def parents_in(scope: Function | Module) -> dict[ast.AST, ast.AST]:
    module = scope.module if isinstance(scope, Function) else scope
    index: Index | None = module.__dict__.get("index")
    if index is not None and (isinstance(scope, Module) or scope.node in index.parents):
        return index.parents
    known: dict[ast.AST, ast.AST] | None = scope.__dict__.get("own_parents")
    if known is None:
        root = scope.node if isinstance(scope, Function) else scope.tree
        known = scope.__dict__["own_parents"] = {}
        pending: list[ast.AST] = [root]
        while pending:
            node = pending.pop()
            below = children(node)
            known.update(dict.fromkeys(below, node))
            pending += [child for child in below if type(child) not in LEAVES]
    return known


def reaching(scope: Function | Module, use: ast.AST, name: str) -> list[Definition] | None:
    """The bindings of a name that may hold where it is used; None where one cannot be read."""
    parents = parents_in(scope)
    root = scope.node if isinstance(scope, Function) else scope.tree
    found: list[Definition] = []
    child = use
    while child is not root:
        parent = parents.get(child)
        if parent is None or (isinstance(parent, SCOPES) and parent is not root):
            return None
        for block in blocks(parent):
            if child not in block:
                continue
            before = block[: block.index(child)]
            done = backwards(before, name, found)
            if done is None:
                return None
            if done:
                return found
        if isinstance(parent, ast.With | ast.AsyncWith) and child in parent.body:
            if any(binds(item, name) for item in parent.items):
                return None
        if isinstance(parent, LOOPS) and child in parent.body and binds(parent, name):
            # Bound by the loop itself, or later in its body: the iteration before may reach here.
            return None
        if isinstance(parent, ast.comprehension | ast.ListComp | ast.GeneratorExp) and binds(
            parent, name
        ):
            return None
        child = parent
    if isinstance(scope, Function) and name in parameters(scope):
        return [*found, PARAMETER]
    return None


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for part in ("body", "orelse", "finalbody"):
        block = getattr(node, part, None)
        if isinstance(block, list):
            yield block


def backwards(block: list[ast.stmt], name: str, found: list[Definition]) -> bool | None:
    """Adds what binds the name in a block, last first; True where nothing before it can reach."""
    for statement in reversed(block):
        if isinstance(statement, ast.With | ast.AsyncWith):
            if any(binds(item, name) for item in statement.items):
                return None
            done = backwards(statement.body, name, found)
            if done is not False:
                return done
        elif isinstance(statement, ast.If):
            if not binds(statement, name):
                continue
            done = both_arms(statement, name, found)
            if done is not False:
                return done
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            definition = assigned(statement, name)
            if definition is not None:
                found.append(definition)
                return True
            if binds(statement, name):
                return None
        elif binds(statement, name):
            return None
    return False


def both_arms(statement: ast.If, name: str, found: list[Definition]) -> bool | None:
    if binds(statement.test, name):
        return None
    arms = [backwards(arm, name, found) for arm in (statement.body, statement.orelse) if arm]
    if None in arms:
        return None
    ends = [leaves(arm) for arm in (statement.body, statement.orelse)]
    complete = bool(statement.orelse) and all(
        arm or end for arm, end in zip(arms, ends, strict=True)
    )
    return complete


def leaves(block: list[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def assigned(statement: ast.Assign | ast.AnnAssign, name: str) -> Definition | None:
    if statement.value is None:
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        if isinstance(target, ast.Name) and target.id == name:
            return Definition(statement.value)
        if isinstance(target, ast.Tuple | ast.List):
            for index, part in enumerate(target.elts):
                if isinstance(part, ast.Starred):
                    break
                if isinstance(part, ast.Name) and part.id == name:
                    value = statement.value
                    if isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts):
                        return Definition(value.elts[index])
                    return Definition(value, index)
    return None


def binds(node: ast.AST, name: str) -> bool:
    """Whether a statement binds a name anywhere inside, remembered on the node."""
    known: frozenset[str] | None = node.__dict__.get("names_bound")
    if known is None:
        known = node.__dict__["names_bound"] = frozenset(
            part.id
            for part in walk(node)
            if type(part) is ast.Name and type(part.ctx) is not ast.Load
        )
    return name in known


# -- what callers give


def parameters(function: Function) -> list[str]:
    arguments = function.node.args
    return [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def of_parameter(function: Function, name: str) -> list[tuple[Place, int | None]] | None:
    """What the calls in the same file give to a parameter; None where there are none."""
    names = parameters(function)
    module = function.module
    shift = 1 if function.owner is not None and not is_static(function) else 0
    found: list[tuple[Place, int | None]] = []
    owner = function.owner
    name_called = owner.name if owner and function.name == "__init__" else function.name
    for site in calls_by_name(module, name_called):
        if not calls(site.node, site.function, function):
            continue
        keyword_only = name in [a.arg for a in function.node.args.kwonlyargs]
        value = site.argument(-1 if keyword_only else names.index(name) - shift, name)
        if value is None:
            return None
        found.append((Place(value, site.function, module), None))
    return found or None


def is_static(function: Function) -> bool:
    return any(classes.dotted(decorator) == "staticmethod" for decorator in function.decorators)


def calls(node: ast.Call, within: Function | None, function: Function) -> bool:
    """Whether a call of the file is one of this function, method or constructor."""
    called = node.func
    owner = function.owner
    if owner is None:
        return isinstance(called, ast.Name) and called.id == function.name
    if function.name == "__init__":
        return isinstance(called, ast.Name) and called.id == owner.name
    return (
        isinstance(called, ast.Attribute)
        and called.attr == function.name
        and isinstance(called.value, ast.Name)
        and called.value.id in ("self", "cls", owner.name)
        and class_of(within) is owner
    )


# -- classes of the project, read whole


def class_at(project: Project, place: Place, called: ast.expr) -> Class | None:
    """The class of the project that a name stands for, with its body."""
    found = classes.resolve_class(World(project, place.module), place.module, called)
    if found is None and isinstance(called, ast.Name):
        # A class that is defined inside a function.
        local = [c for c in place.module.class_by_node.values() if c.name == called.id]
        found = local[0] if len(local) == 1 else None
    if found is None or not isinstance(found.module, LazyModule):
        return found
    return whole(found.module).classes.get(found.name)


def whole(module: LazyModule) -> Module:
    """A file that was only looked into, parsed from its first line to its last."""
    known: Module | None = module.__dict__.get("whole")
    if known is None:
        try:
            tree = parsing.parse(module.source.text)
        except parsing.SyntaxProblem:
            tree = ast.Module([], [])
        known = build(module.source, tree, *module_name(module.path))
        module.__dict__["whole"] = known
    return known


def method_of(
    project: Project, cls: Class, name: str, depth: int = 0
) -> tuple[Function, Class] | None:
    if name in cls.methods:
        return cls.methods[name], cls
    if depth > MAX_DEPTH:
        return None
    for base in cls.node.bases:
        kin = class_at(project, Place(base, None, cls.module), base)
        if kin is not None and kin is not cls:
            found = method_of(project, kin, name, depth + 1)
            if found is not None:
                return found
    return None


def is_network(project: Project, cls: Class, depth: int = 0) -> bool:
    for base in cls.node.bases:
        name = qualified_name(cls.module, base, None)
        if knowledge.MODULE_BASE.fullmatch(name):
            return True
        kin = class_at(project, Place(base, None, cls.module), base)
        if kin is not None and kin is not cls and depth < MAX_DEPTH:
            if is_network(project, kin, depth + 1):
                return True
    return False


def returned(function: Function) -> list[ast.expr] | None:
    """What a function returns, everywhere it does; None for a generator or a bare return."""
    if function.is_generator:
        return None
    found: list[ast.expr] = []
    stack: list[ast.AST] = list(function.node.body)
    while stack:
        node = stack.pop()
        if isinstance(node, SCOPES):
            continue
        if isinstance(node, ast.Return):
            if node.value is None:
                return None
            found.append(node.value)
        stack.extend(ast.iter_child_nodes(node))
    return found
