"""Names that functions take from their file, and that importing the file does not define."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from oomlint.verify.targets import Definition, Function

SCOPES = Function | ast.Lambda | ast.ClassDef
PRESENT = frozenset((*dir(builtins), "__file__", "__name__"))


def free_names(tree: ast.Module, functions: Iterable[Function]) -> tuple[str, ...]:
    """What `if __name__ == "__main__"` or another function would have had to define.

    Empty for a file that imports names unseen (`from x import *`) or makes them (`globals`).
    """
    known = set(PRESENT)
    for statement in top(tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            return ()
        known |= set(bound(statement))
    return tuple(
        dict.fromkeys(
            name for function in functions for name in read(function) if name not in known
        )
    )


def top(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs when the file is imported."""
    for statement in body:
        if isinstance(statement, ast.If) and "__name__" in ast.dump(statement.test):
            yield from top(statement.orelse)
        else:
            yield statement


def bound(node: ast.AST) -> Iterator[str]:
    """Names that a statement binds in its own scope."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
            return
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            for one in names:
                yield one.asname or one.name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name
        case ast.Lambda():
            return
        case _:
            pass
    for inner in ast.iter_child_nodes(node):
        yield from bound(inner)


def read(scope: Definition | ast.Lambda) -> Iterator[str]:
    """Names that a scope and what lies in it read, but do not bind."""
    own = set(parameters_of(scope)) if isinstance(scope, Function | ast.Lambda) else set()
    body = scope.body if isinstance(scope.body, list) else [scope.body]
    shared: set[str] = set()
    for statement in body:
        own |= set(bound(statement))
        shared |= {
            name for n in ast.walk(statement) if isinstance(n, ast.Global) for name in n.names
        }
    for statement in body:
        for name in loaded(statement):
            if name not in own or name in shared:
                yield name


def loaded(node: ast.AST) -> Iterator[str]:
    if isinstance(node, SCOPES):
        outside = getattr(node, "decorator_list", [])
        if not isinstance(node, ast.ClassDef):
            outside = [*outside, *node.args.defaults, *filter(None, node.args.kw_defaults)]
        for part in outside:
            yield from loaded(part)
        yield from read(node)
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    for inner in ast.iter_child_nodes(node):
        yield from loaded(inner)


def parameters_of(scope: Function | ast.Lambda) -> Iterator[str]:
    for argument in ast.walk(scope.args):
        if isinstance(argument, ast.arg):
            yield argument.arg
