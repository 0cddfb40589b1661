"""Rewrites a script in memory so that the loop or function that holds a finding reports itself."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from oomlint.verify.cells import keep_shown

NAME = "__oomlint_region__"

Loop = ast.For | ast.While | ast.AsyncFor
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Region:
    """A loop or a function by its place in the structure, which a fix leaves alone.

    `scope` is the qualified name of the function around it (empty at module level) and `ordinal`
    the loop's number in that scope from 0, or -1 for the function itself.
    """

    scope: str
    ordinal: int


def region_at(text: str, row: int) -> Region | None:
    """The innermost loop around a 1-based row, else the function, else None."""
    best: Region | None = None
    for region, node in regions(ast.parse(text)):
        if node.lineno <= row <= (node.end_lineno or node.lineno):
            loop = region.ordinal >= 0
            if loop or best is None or best.scope != region.scope:
                best = region
    return best


def regions(tree: ast.Module) -> list[tuple[Region, Loop | Function]]:
    """All regions, outer ones before inner ones."""
    found: list[tuple[Region, Loop | Function]] = []

    def walk(node: ast.AST, scope: str, counts: dict[str, int]) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = f"{scope}.{child.name}".lstrip(".")
                if not isinstance(child, ast.ClassDef):
                    found.append((Region(inner, -1), child))
                walk(child, inner, counts)
            elif isinstance(child, (ast.For, ast.While, ast.AsyncFor)):
                ordinal = counts.get(scope, 0)
                counts[scope] = ordinal + 1
                found.append((Region(scope, ordinal), child))
                walk(child, scope, counts)
            else:
                walk(child, scope, counts)

    walk(tree, "", {})
    return found


def instrumented(text: str, filename: str, region: Region | None) -> ast.Module:
    """The tree to run: the region enters a context, and a loop's body starts with a tick.

    Rows stay as they are, so tracebacks and inspect show the script's own lines.
    """
    tree = ast.parse(text, filename)
    keep_shown(tree, text)
    node = next((node for found, node in regions(tree) if found == region), None)
    if node is None:
        return tree
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        keep = 1 if ast.get_docstring(node, clean=False) is not None else 0
        body = node.body[keep:] or [ast.Pass()]
        node.body[keep:] = [entering(body)]
    else:
        tick = ast.Expr(ast.Call(ast.Attribute(name(), "tick", ast.Load()), [], []))
        node.body.insert(0, ast.copy_location(tick, node.body[0]))
        Wrapper(node).visit(tree)
    return ast.fix_missing_locations(tree)


def name() -> ast.Name:
    return ast.Name(NAME, ast.Load())


def entering(body: list[ast.stmt]) -> ast.With:
    return ast.copy_location(ast.With([ast.withitem(name())], body), body[0])


class Wrapper(ast.NodeTransformer):
    """Puts the context around one loop."""

    def __init__(self, node: Loop) -> None:
        self.node = node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if node is self.node:
            return entering([self.node])
        return super().generic_visit(node)
