"""Reads a Python text as the planting of faults needs it: scopes, loops, callers and edits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Scope = FunctionNode | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
LOOPS = (ast.For, ast.AsyncFor, ast.While)
CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"})
NO_GRAD = frozenset({"no_grad", "inference_mode"})
ROLE_NAMES = {
    "scheduler": re.compile(r"sched", re.IGNORECASE),
    "scaler": re.compile(r"scaler", re.IGNORECASE),
    "optimizer": re.compile(r"opt(im|$|_|\d|[A-Z])|solver", re.IGNORECASE),
}
CONSTRUCTORS = {
    "scheduler": re.compile(r"lr_scheduler\.\w+$|(?:LR|Restarts)$|get_\w*_schedule(_with_\w+)?$"),
    "scaler": re.compile(r"\bGradScaler$"),
    "optimizer": re.compile(r"\boptim\.\w+$|\b(?:Adam|AdamW|SGD|RMSprop|Adagrad|Adadelta)$"),
}


@dataclass(frozen=True, slots=True)
class Edit:
    start: int
    end: int
    text: str


class Code:
    """One parsed text with `\\n` as its line end; offsets count code points. Raises SyntaxError."""

    def __init__(self, path: Path, text: str, package: Package | None = None) -> None:
        self.path, self.text, self.package = path, text, package
        self.tree = ast.parse(text)
        self.starts = [0]
        for line in text.split("\n"):
            self.starts.append(self.starts[-1] + len(line) + 1)
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            self.nodes.append(node)
            for child in ast.iter_child_nodes(node):
                self.parents[child] = node
                waiting.append(child)

    # Positions.

    def offset(self, row: int, utf8_column: int) -> int:
        start = self.starts[row - 1]
        line = self.text[start : start + utf8_column]
        if line.isascii():
            return start + utf8_column
        return start + len(line.encode()[:utf8_column].decode("utf-8", "ignore"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.offset(node.lineno, node.col_offset)
        return start, self.offset(node.end_lineno, node.end_col_offset)

    def segment(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def row_of(self, offset: int) -> int:
        return next(row for row, start in enumerate(self.starts) if start > offset)

    # The tree.

    @cached_property
    def functions(self) -> list[FunctionNode]:
        return [node for node in self.nodes if isinstance(node, FunctionNode)]

    @cached_property
    def calls(self) -> list[ast.Call]:
        found = [node for node in self.nodes if isinstance(node, ast.Call)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))

    @cached_property
    def by_scope(self) -> dict[Scope, list[ast.Call]]:
        found: dict[Scope, list[ast.Call]] = {}
        for call in self.calls:
            found.setdefault(self.scope(call), []).append(call)
        return found

    def calls_in(self, scope: Scope) -> list[ast.Call]:
        """The calls of a scope in the order of the text, without those of functions inside."""
        return self.by_scope.get(scope, [])

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def scope(self, node: ast.AST) -> Scope:
        inner = node
        for outer in self.above(node):
            if isinstance(outer, FunctionNode) and inner not in outer.decorator_list:
                return outer
            inner = outer
        return self.tree

    def statement(self, node: ast.AST) -> ast.stmt:
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        parent = self.parents[statement]
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list) and statement in value:
                return value
        return []

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops of the same scope around a node, the innermost first."""
        found: list[Loop] = []
        for outer in self.above(node):
            if isinstance(outer, Scope):
                break
            if isinstance(outer, LOOPS):
                found.append(outer)
        return found

    def conditions(self, node: ast.AST, below: ast.AST | None = None) -> list[ast.If]:
        """The `if` statements around a node, up to a loop or the scope."""
        found: list[ast.If] = []
        for outer in self.above(node):
            if outer is below or isinstance(outer, Scope):
                break
            if isinstance(outer, ast.If):
                found.append(outer)
        return found

    def callers(self, function: Scope) -> list[ast.Call]:
        """Calls of this file that name the function, by their last word."""
        if isinstance(function, ast.Module):
            return []
        return [
            call
            for call in self.calls
            if last_name(call.func) == function.name and self.scope(call) is not function
        ]

    def repeated(self, node: ast.AST) -> bool:
        """Whether a loop of this file surely runs the node many times."""
        if self.loops(node):
            return True
        return any(self.loops(call) for call in self.callers(self.scope(node)))

    def related(self, scope: Scope) -> set[Scope]:
        """Where a finding may point: a scope, who calls it here, and what they and it call."""
        found = {scope, *(self.scope(call) for call in self.callers(scope))}
        called = {last_name(call.func) for one in found for call in self.calls_in(one)}
        return found | {function for function in self.functions if function.name in called}

    # What things are.

    @cached_property
    def roles(self) -> dict[str, str]:
        """The role of every name or attribute that a known constructor was assigned to."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
                continue
            made = ast.unparse(node.value.func)
            for role, pattern in CONSTRUCTORS.items():
                if pattern.search(made):
                    found.update({ast.unparse(target): role for target in node.targets})
                    break
        return found

    def role(self, node: ast.expr) -> str:
        """What is stepped, by its constructor, or else by its last name."""
        text = ast.unparse(node)
        if text in self.roles:
            return self.roles[text]
        name = last_name(node)
        return next((role for role, pattern in ROLE_NAMES.items() if pattern.search(name)), "")

    def called(self, scope: Scope, name: str) -> list[ast.Call]:
        """Calls `x.name(...)` of a scope."""
        return [
            call
            for call in self.calls_in(scope)
            if isinstance(call.func, ast.Attribute) and call.func.attr == name
        ]

    def steps(self, scope: Scope) -> list[tuple[ast.Call, str]]:
        """Optimizer steps with the optimizer as text, through a scaler too."""
        found = []
        for call in self.called(scope, "step"):
            receiver = receiver_of(call)
            role = self.role(receiver)
            if role == "scaler" and call.args:
                found.append((call, ast.unparse(call.args[0])))
            elif role == "optimizer":
                found.append((call, ast.unparse(receiver)))
        return found

    def backwards(self, scope: Scope) -> list[tuple[ast.Call, ast.expr]]:
        """Backward passes with what is differentiated, the scaler's `scale` taken off."""
        found: list[tuple[ast.Call, ast.expr]] = []
        for call in [*self.called(scope, "backward"), *self.called(scope, "manual_backward")]:
            loss = call.args[0] if call.args else receiver_of(call)
            if call.args and self.is_tensor_backward(call):
                loss = receiver_of(call)
            if (
                isinstance(loss, ast.Call)
                and isinstance(loss.func, ast.Attribute)
                and loss.func.attr == "scale"
                and loss.args
            ):
                loss = loss.args[0]
            if ast.unparse(receiver_of(call)) != "super()":
                found.append((call, loss))
        return found

    def is_tensor_backward(self, call: ast.Call) -> bool:
        name = last_name(receiver_of(call)).lower()
        return "loss" in name or "scale" in name

    # Grad mode.

    def switches(self, node: ast.AST) -> list[ast.expr]:
        """Every no_grad or inference_mode that stands around a node in this file's text."""
        found: list[ast.expr] = []
        inner = node
        for outer in self.above(node):
            if isinstance(outer, ast.With | ast.AsyncWith) and inner in outer.body:
                found += [i.context_expr for i in outer.items if is_no_grad(i.context_expr)]
            elif isinstance(outer, FunctionNode | ast.ClassDef) and (
                inner not in outer.decorator_list
            ):
                found += [item for item in outer.decorator_list if is_no_grad(item)]
            inner = outer
        return found

    def off_at_callers(self, scope: Scope, depth: int = 3) -> bool:
        """Whether any call of a function, here or in the package, is without gradients."""
        if isinstance(scope, ast.Module) or depth == 0:
            return False
        for call in self.callers(scope):
            if self.switches(call) or self.off_at_callers(self.scope(call), depth - 1):
                return True
        return self.package is not None and self.package.calls_without_gradients(
            scope.name, self.path
        )

    # Edits: none where the layout of the text allows none.

    def lone(self, statement: ast.stmt) -> tuple[int, int] | None:
        """The offsets of whole lines that hold this statement and nothing else."""
        start, end = self.span(statement)
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(item.lineno for item in decorators)])
        assert statement.end_lineno is not None
        stop = self.starts[statement.end_lineno]
        behind = self.text[end:stop].strip()
        shared = behind and not behind.startswith("#")
        if self.text[self.starts[statement.lineno - 1] : start].strip() or shared:
            return None
        return self.starts[first - 1], stop

    def indent(self, statement: ast.stmt) -> str:
        return self.text[self.starts[statement.lineno - 1] : self.span(statement)[0]]

    def remove(self, statement: ast.stmt) -> list[Edit]:
        lines = self.lone(statement)
        if lines is None:
            return []
        alone = len(self.block(statement)) == 1
        return [Edit(*lines, f"{self.indent(statement)}pass\n" if alone else "")]

    def insert(self, lines: Iterable[str], target: ast.stmt, behind: bool) -> list[Edit]:
        place = self.lone(target)
        if place is None:
            return []
        at, indent = place[behind], self.indent(target)
        return [Edit(at, at, "".join(f"{indent}{line}\n" for line in lines))]

    def move(self, statement: ast.stmt, target: ast.stmt, behind: bool) -> list[Edit]:
        place, indent = self.lone(statement), self.indent(statement)
        if place is None:
            return []
        lines = self.text[place[0] : place[1]].splitlines()
        if any(line.strip() and not line.startswith(indent) for line in lines):
            return []
        moved = self.insert([line[len(indent) :] for line in lines], target, behind)
        return [*self.remove(statement), *moved] if moved else []

    def replace(self, node: ast.expr, text: str) -> list[Edit]:
        return [Edit(*self.span(node), text)]

    def unwrap(self, node: ast.With | ast.AsyncWith) -> list[Edit]:
        """The body of a `with` without it, its lines moved to the left."""
        place, body = self.lone(node), node.body[0]
        assert node.end_lineno is not None
        inside = [one for one in self.nodes if isinstance(one, ast.Constant | ast.JoinedStr)]
        texts = any(
            one.end_lineno is not None
            and node.lineno <= one.lineno < one.end_lineno <= node.end_lineno
            for one in inside
        )
        if place is None or texts or body.lineno == node.items[-1].context_expr.end_lineno:
            return []
        outer, inner = self.indent(node), self.indent(body)
        edits = [Edit(place[0], self.starts[body.lineno - 1], "")]
        for row in range(body.lineno, node.end_lineno + 1):
            start = self.starts[row - 1]
            if self.text.startswith(inner, start):
                edits.append(Edit(start, start + len(inner), outer))
        return edits

    def apply(self, edits: Iterable[Edit]) -> str:
        text = self.text
        for edit in sorted(edits, key=lambda one: (one.start, one.end), reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text


class Package:
    """The other files of a tree, read and parsed when a question about callers needs them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names: dict[str, dict[Path, bool]] = {}

    @cached_property
    def files(self) -> dict[Path, Code]:
        found = {}
        for path in sorted(self.root.rglob("*.py")):
            text = path.read_text("utf-8", "replace")
            if any(word in text for word in NO_GRAD):
                try:
                    found[path] = Code(path, text)
                except (SyntaxError, ValueError, RecursionError):
                    continue
        return found

    def calls_without_gradients(self, name: str, besides: Path) -> bool:
        if name not in self.names:
            self.names[name] = {
                path: any(
                    last_name(call.func) == name and code.switches(call) for call in code.calls
                )
                for path, code in self.files.items()
                if f"{name}(" in code.text
            }
        return any(found for path, found in self.names[name].items() if path != besides)


def last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Subscript | ast.Call):
        return last_name(node.value if isinstance(node, ast.Subscript) else node.func)
    return node.id if isinstance(node, ast.Name) else ""


def receiver_of(call: ast.Call) -> ast.expr:
    assert isinstance(call.func, ast.Attribute)
    return call.func.value


def is_no_grad(node: ast.expr) -> bool:
    return last_name(node.func if isinstance(node, ast.Call) else node) in NO_GRAD


@dataclass(frozen=True, slots=True)
class Site:
    """Where a fault is planted and how."""

    node: ast.AST
    edits: list[Edit]


def within(node: ast.AST, region: ast.AST) -> bool:
    assert isinstance(node, ast.expr | ast.stmt) and isinstance(region, ast.expr | ast.stmt)
    return region.lineno <= node.lineno and (node.end_lineno or 0) <= (region.end_lineno or 0)


def assigned(node: ast.AST) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    flat = []
    for target in targets:
        flat += target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return [ast.unparse(target) for target in flat]


def is_test(code: Code, scope: Scope) -> bool:
    """Whether memory does not matter: a test may keep graphs and gradients to look at them."""
    folders = {"test", "tests", "testing", "test_utils"}
    name = getattr(scope, "name", "")
    of_test = name.startswith("test") or code.path.name.startswith("test_")
    return of_test or bool(folders & set(code.path.parts)) or code.path.stem.endswith("_test")
