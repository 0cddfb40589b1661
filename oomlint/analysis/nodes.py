"""All nodes of a file from one walk: what is above each, by kind, and the calls by name."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oomlint.analysis.modules import Function

# Contexts and operators are shared by all trees: they have no place.
NOWHERE = frozenset(
    kind
    for base in (ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
    for kind in base.__subclasses__()
)
LEAVES = NOWHERE | {ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Break, ast.Continue}
FUNCTIONS = frozenset((ast.FunctionDef, ast.AsyncFunctionDef))
SCOPES = FUNCTIONS | {ast.Lambda, ast.ClassDef}
# What may bind a name, besides definitions and parameters.
BINDING = frozenset(
    (
        ast.Assign,
        ast.AnnAssign,
        ast.NamedExpr,
        ast.AugAssign,
        ast.For,
        ast.AsyncFor,
        ast.comprehension,
        ast.withitem,
        ast.ExceptHandler,
        ast.Global,
        ast.Nonlocal,
    )
)


# Fields in which no node stands that has a place.
PLAIN_FIELDS = frozenset(
    "ctx op id attr arg name module level kind type_comment is_async simple conversion".split()
)


class Fields(dict[type[ast.AST], tuple[str, ...]]):
    """The fields of each kind of node in which nodes stand."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        found = tuple(name for name in kind._fields if name not in PLAIN_FIELDS)
        self[kind] = found
        return found


FIELDS = Fields()

# A call with its number in the file and the function that it is in.
Place = tuple[int, ast.Call, "Function | None"]


class Index:
    """What one walk over a tree finds, in source order; names and constants are no nodes here."""

    def __init__(self, root: ast.AST, functions: dict[ast.AST, Function]) -> None:
        self.parents: dict[ast.AST, ast.AST] = {}
        self.by_kind: defaultdict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        self.calls: list[tuple[ast.Call, Function | None]] = []
        # Scope -> the nodes in it that bind names, without those of scopes inside of it.
        self.binding: dict[ast.AST, list[ast.AST]] = {root: []}
        self.methods: dict[str, list[Place]] | None = None
        self.fill(root, functions)

    def fill(self, root: ast.AST, functions: dict[ast.AST, Function]) -> None:
        """One loop with everything in it: files are large, and calls are not cheap."""
        parents, by_kind, calls = self.parents, self.by_kind, self.calls
        function, binding = functions.get(root), self.binding[root]
        # Nodes to visit and, below those of a scope, what the scope around it goes on with.
        stack: list[Any] = [root]
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is tuple:
                function, binding = node
                continue
            by_kind[kind].append(node)
            if kind is ast.Call:
                calls.append((node, function))
            elif kind in BINDING:
                binding.append(node)
            elif kind in SCOPES and node is not root:
                stack.append((function, binding))
                binding = self.binding[node] = []
                function = functions.get(node, function)
            below: list[Any] = []
            held = node.__dict__
            for name in FIELDS[kind]:
                value = held.get(name)
                if type(value) is list:
                    below += value
                elif value is not None:
                    below.append(value)
            below.reverse()
            for child in below:
                if type(child) in LEAVES:
                    parents[child] = node
                elif isinstance(child, ast.AST):
                    parents[child] = node
                    stack.append(child)

    def calls_of(self, *names: str) -> list[Place]:
        """The calls of methods and functions with these last names."""
        if self.methods is None:
            self.methods = {}
            for order, (call, function) in enumerate(self.calls):
                name = getattr(call.func, "attr", None) or getattr(call.func, "id", None)
                self.methods.setdefault(name or "", []).append((order, call, function))
        found = [place for name in set(names) for place in self.methods.get(name, ())]
        found.sort(key=lambda place: place[0])
        return found


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes below a node in the order of its fields, without contexts and operators."""
    if isinstance(node, ast.ClassDef) and type(node) is not ast.ClassDef:
        return list(ast.iter_child_nodes(node))  # its body is made when it is asked for
    found: list[Any] = []
    held = node.__dict__
    for name in FIELDS[type(node)]:
        value = held.get(name)
        if type(value) is list:
            found += [child for child in value if isinstance(child, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(root: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it in the order of `ast.walk`, without contexts and operators."""
    level = [root]
    while level:
        yield from level
        level = [c for node in level if type(node) not in LEAVES for c in children(node)]
