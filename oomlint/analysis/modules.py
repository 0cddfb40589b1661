"""What one file defines and imports, found in one walk over its tree."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from oomlint.analysis.nodes import Index
from oomlint.source import Source

IDENTIFIER = re.compile(r"[^\W\d]\w*")
# What may be a target: `.name =`, also in a tuple, in brackets or before the end of a line.
ASSIGNABLE = re.compile(r"\.\s*(\w+)\s*(?:[,)\]\\\"]|=(?!=))")
ASCII_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Comments and strings, in the order in which Python reads them; loops are unrolled for speed.
TEXTS = re.compile(
    r"#[^\r\n]*"
    r"|'''[^'\\]*(?:(?:\\.|''?(?!'))[^'\\]*)*'''"
    r'|"""[^"\\]*(?:(?:\\.|""?(?!"))[^"\\]*)*"""'
    r"|'[^\\'\r\n]*(?:\\.[^\\'\r\n]*)*'"
    r'|"[^\\"\r\n]*(?:\\.[^\\"\r\n]*)*"',
    re.DOTALL,
)

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Function:
    """A function, method or nested function."""

    name: str
    qualname: str
    node: FunctionNode
    module: Module
    owner: Class | None = None
    parent: Function | None = None
    # Those that are defined in it, by their names.
    inner: dict[str, Function] = field(default_factory=dict)

    @property
    def decorators(self) -> list[ast.expr]:
        return self.node.decorator_list

    @property
    def outermost(self) -> Function:
        """The function or method around it that is in no other one: itself, mostly."""
        function = self
        while function.parent is not None:
            function = function.parent
        return function

    @cached_property
    def words(self) -> frozenset[str]:
        """Every identifier in its body, its nested functions included."""
        code = self.code
        identifier = ASCII_IDENTIFIER if code.isascii() else IDENTIFIER
        return frozenset(identifier.findall(code))

    @cached_property
    def assignable(self) -> frozenset[str]:
        """Every attribute to which its body may assign, and some more."""
        return frozenset(ASSIGNABLE.findall(self.code))

    @cached_property
    def code(self) -> str:
        """The text of its body without strings and comments."""
        source = self.module.source
        first, last = self.node.body[0].lineno, self.node.end_lineno or self.node.lineno
        end = source.line_starts[last] if last < len(source.line_starts) else len(source.text)
        return TEXTS.sub('""', source.text[source.line_starts[first - 1] : end])

    @cached_property
    def size(self) -> int:
        """How many statements it has, nested ones included."""
        total = 0
        stack: list[ast.stmt] = list(self.node.body)
        while stack:
            node = stack.pop()
            total += 1
            for name in ("body", "orelse", "finalbody"):
                stack.extend(getattr(node, name, ()))
        return total

    @cached_property
    def is_generator(self) -> bool:
        return "yield" in self.code and has_own_yield(self.node)


@dataclass(eq=False)
class Class:
    """A class, with its methods and what its methods assign to `self`."""

    name: str
    node: ast.ClassDef
    module: Module
    methods: dict[str, Function] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)

    @cached_property
    def assigned(self) -> Assigned:
        return Assigned(self)


class Assigned:
    """What the methods of a class assign to `self`, found attribute by attribute."""

    def __init__(self, owner: Class) -> None:
        self.owner = owner
        self.by_method: dict[Function, dict[str, list[ast.expr]]] = {}
        self.known: dict[str, tuple[tuple[ast.expr, Function], ...]] = {}

    def get(
        self, attribute: str, default: Sequence[tuple[ast.expr, Function]] = ()
    ) -> Sequence[tuple[ast.expr, Function]]:
        """Every expression that is assigned to the attribute, with the method that does it."""
        known = self.known.get(attribute)
        if known is None:
            known = self.known[attribute] = tuple(self.find(attribute))
        return known or default

    def find(self, attribute: str) -> Iterator[tuple[ast.expr, Function]]:
        for method in self.owner.methods.values():
            if attribute not in method.assignable:
                continue
            if method not in self.by_method:
                self.by_method[method] = assigned_to_self(method)
            for expression in self.by_method[method].get(attribute, ()):
                yield expression, method


@dataclass(eq=False)
class Module:
    """One parsed file of the project."""

    source: Source
    tree: ast.Module
    name: str = ""
    is_package: bool = False
    # local name -> qualified name, for every import anywhere in the file
    imports: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    # every function of the file, in source order
    all_functions: list[Function] = field(default_factory=list)
    by_node: dict[ast.AST, Function] = field(default_factory=dict)
    class_by_node: dict[ast.AST, Class] = field(default_factory=dict)
    # module-level name -> expressions assigned to it
    globals: dict[str, list[ast.expr]] = field(default_factory=dict)
    # names that hold an `import` of this name under which an alias is written: torch -> th
    aliases: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.source.path

    def qualified(self, dotted: str) -> str:
        """A dotted name as its imports mean it; a name that is not imported stays as it is."""
        head, _, rest = dotted.partition(".")
        return self.imports.get(head, head) + (f".{rest}" if rest else "")

    def ready(self, name: str) -> None:
        """Makes sure that a definition of this name is parsed, if there is one."""

    def function(self, name: str) -> Function | None:
        self.ready(name)
        return self.functions.get(name)

    def class_(self, name: str) -> Class | None:
        self.ready(name)
        return self.classes.get(name)

    @cached_property
    def shown_rows(self) -> frozenset[int]:
        """The rows of statements whose value a notebook shows."""
        from oomlint.analysis.cells import shown_rows

        return shown_rows(self)

    @cached_property
    def index(self) -> Index:
        """All nodes of the file, for rules that ask for more than definitions."""
        return Index(self.tree, self.by_node)

    @property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """Child to parent."""
        return self.index.parents

    def statement_of(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def enclosing(self, node: ast.AST) -> Iterator[ast.AST]:
        """The parents of a node, innermost first."""
        parents = self.parents
        while node in parents:
            node = parents[node]
            yield node

    def function_of(self, node: ast.AST) -> Function | None:
        for parent in self.enclosing(node):
            if parent in self.by_node:
                return self.by_node[parent]
        return None

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.source.text[start:end]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end offsets of a node (decorators not included)."""
        return (
            self.source.offset(node.lineno, node.col_offset),
            self.source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )


@dataclass(eq=False)
class LazyModule(Module):
    """A module whose definitions are known by their place and parsed when they are asked for."""

    # top-level definition -> offset of its first line
    pending: dict[str, int] = field(default_factory=dict)
    define: Callable[[LazyModule, int], None] | None = None

    def ready(self, name: str) -> None:
        start = self.pending.pop(name, None)
        if start is not None and self.define is not None:
            self.define(self, start)


def module_name(path: Path) -> tuple[str, bool]:
    """The dotted name of a file, from the `__init__.py` above it, and whether it is a package."""
    is_package = path.stem == "__init__"
    parts = [] if is_package else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").is_file():
        parts.append(folder.name)
        if folder.parent == folder:
            break
        folder = folder.parent
    return ".".join(reversed(parts)), is_package


def build(source: Source, tree: ast.Module, name: str, is_package: bool) -> Module:
    module = Module(source, tree, name, is_package)
    Walker(module).visit_body(tree.body, None, None, "")
    return module


class Walker:
    """Fills a Module: definitions, imports and module-level names."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def visit_body(
        self,
        body: list[ast.stmt],
        owner: Class | None,
        function: Function | None,
        prefix: str,
    ) -> None:
        for statement in body:
            self.visit(statement, owner, function, prefix)

    def visit(
        self, node: ast.stmt, owner: Class | None, function: Function | None, prefix: str
    ) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.add_function(node, owner, function, prefix)
        elif isinstance(node, ast.ClassDef):
            self.add_class(node, function, prefix)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.split(".")[0]
                self.module.imports.setdefault(local, alias.name if alias.asname else local)
                if alias.asname or "." not in alias.name:
                    self.module.aliases.setdefault(alias.name, local)
        elif isinstance(node, ast.ImportFrom):
            self.add_from(node)
        else:
            self.add_assignment(node, owner, function)
            for name in ("body", "orelse", "finalbody"):
                inner = getattr(node, name, None)
                if inner:
                    self.visit_body(inner, owner, function, prefix)
            for handler in getattr(node, "handlers", ()):
                self.visit_body(handler.body, owner, function, prefix)
                self.prefer_imported(node)
            for case in getattr(node, "cases", ()):
                self.visit_body(case.body, owner, function, prefix)

    def prefer_imported(self, node: ast.stmt) -> None:
        """What a `try` imports is meant, and not what stands in for it where it is missing."""
        for statement in getattr(node, "body", ()):
            if isinstance(statement, ast.ImportFrom):
                for alias in statement.names:
                    self.module.classes.pop(alias.asname or alias.name, None)
                    self.module.functions.pop(alias.asname or alias.name, None)

    def add_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            parts = self.module.name.split(".")
            keep = len(parts) - node.level + (1 if self.module.is_package else 0)
            base = ".".join([*parts[: max(keep, 0)], *([base] if base else [])])
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(base)
                continue
            qualified = f"{base}.{alias.name}" if base else alias.name
            self.module.imports.setdefault(alias.asname or alias.name, qualified)
            self.module.aliases.setdefault(qualified, alias.asname or alias.name)

    def add_function(
        self, node: FunctionNode, owner: Class | None, parent: Function | None, prefix: str
    ) -> None:
        function = Function(
            node.name, prefix + node.name, node, self.module, owner if not parent else None, parent
        )
        self.module.all_functions.append(function)
        self.module.by_node[node] = function
        if parent is not None:
            parent.inner.setdefault(node.name, function)
        if owner is not None and parent is None:
            owner.methods.setdefault(node.name, function)
        elif parent is None:
            self.module.functions[node.name] = function
        self.visit_body(node.body, owner, function, f"{prefix}{node.name}.")

    def add_class(self, node: ast.ClassDef, parent: Function | None, prefix: str) -> None:
        found = Class(node.name, node, self.module)
        if parent is None:
            self.module.classes.setdefault(node.name, found)
        self.module.class_by_node[node] = found
        for statement in node.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                found.constants[statement.targets[0].id] = statement.value
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if statement.value is not None:
                    found.constants[statement.target.id] = statement.value
        self.visit_body(node.body, found, None, f"{prefix}{node.name}.")

    def add_assignment(
        self, node: ast.stmt, owner: Class | None, function: Function | None
    ) -> None:
        if owner is not None or function is not None:
            return
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for goal, value in pairs(target, node.value):
                    if isinstance(goal, ast.Name):
                        self.module.globals.setdefault(goal.id, []).append(value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            self.module.globals.setdefault(node.target.id, []).append(node.value)


def assigned_to_self(function: Function) -> dict[str, list[ast.expr]]:
    """What one method assigns to the attributes of its first argument."""
    found: dict[str, list[ast.expr]] = {}
    arguments = function.node.args.posonlyargs + function.node.args.args
    if not arguments:
        return found
    this = arguments[0].arg
    for node in statements_of(function.node):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            for goal, value in pairs(target, node.value):
                if (
                    isinstance(goal, ast.Attribute)
                    and isinstance(goal.value, ast.Name)
                    and goal.value.id == this
                ):
                    found.setdefault(goal.attr, []).append(value)
    return found


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """The statements inside of a node in the order of `ast.walk`, which looks into expressions."""
    pending = deque([node])
    while pending:
        current = pending.popleft()
        yield current
        for name in ("cases", "body", "handlers", "orelse", "finalbody"):
            inner = getattr(current, name, None)
            if inner:
                pending.extend(inner)


def pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """(target, value) for each name of `a, b = x, y`; the whole value where it is no display."""
    if not isinstance(target, ast.Tuple | ast.List):
        return [(target, value)]
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
        return [
            pair
            for goal, part in zip(target.elts, value.elts, strict=True)
            for pair in pairs(goal, part)
        ]
    return []


# What needs no brackets before an attribute's dot.
CHAINED = frozenset((ast.Name, ast.Attribute, ast.Call, ast.Subscript))


def written(node: ast.AST) -> str:
    """A node as text, remembered on the node: the same lines are followed many times."""
    kind = type(node)
    if kind is ast.Name:
        return node.id  # type: ignore[attr-defined, no-any-return] # its kind says so
    text: str | None = node.__dict__.get("written")
    if text is None:
        if kind is ast.Attribute and type(node.value) in CHAINED:  # type: ignore[attr-defined]
            text = f"{written(node.value)}.{node.attr}"  # type: ignore[attr-defined]
        else:
            text = ast.unparse(node)
        node.__dict__["written"] = text
    return text


def has_own_yield(node: FunctionNode) -> bool:
    stack: list[ast.AST] = list(node.body)
    while stack:
        child = stack.pop()
        if isinstance(child, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
        ):
            stack.extend(ast.iter_child_nodes(child))
    return False
