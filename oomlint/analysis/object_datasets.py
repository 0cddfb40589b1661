"""Datasets that keep many small Python objects, which reading changes by their reference counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import loaders, sites
from oomlint.analysis.answers import Node
from oomlint.analysis.modules import Class, Function, Module, written

# Containers that hold their data in one block, or on the disk.
ARRAYS = re.compile(r"(np|numpy|torch|pd|pandas|pa|pyarrow|datasets|jnp|array|h5py|lmdb)\b.*")

# Calls whose results are small objects.
SMALL_CALLS = frozenset(
    "int float str bool tuple dict strip split rstrip lstrip lower upper format replace get rsplit"
    " group loads random randint randrange uniform ord round abs sum min max".split()
)

READS_OBJECTS = re.compile(
    r"(\w+\.)*(json|yaml|ujson|orjson)\.(safe_)?load|(\w+\.)*json\.loads|.*\.readlines|.*\.splitlines"
    r"|.*\.to_dict|(\w+\.)*read_jsonl?|(\w+\.)*load_jsonl?"
)

SOURCES = re.compile(
    r"range\(|open\(|csv\.|reader|readlines|splitlines|json|iterrows|itertuples|\bf\b|\bfp\b|file\b|lines"
)

# Fewer objects than this cost a worker nothing that anybody would notice.
MANY = 1000

OPENED = re.compile(r"(in_?)?file|f|fp|fh|fin|f_in|handle|reader")

FILE_NAMES = re.compile(r"path|file|glob|listdir|scandir|walk|url|dirs?\b", re.IGNORECASE)


def kept_objects(module: Module, cls: Class) -> Iterator[tuple[str, Node]]:
    """Attributes with many small objects, indexed for a sample, and what fills them."""
    filling = loaders.run_by_workers(module, cls.methods["__init__"])
    fetching = loaders.run_by_workers(module, cls.methods["__getitem__"])
    for attribute in sorted(indexed(fetching)):
        values = cls.assigned.get(attribute)
        if not values or any(ARRAYS.match(written(value)) for value, _ in values):
            continue
        for value, method in values:
            if method not in filling:
                continue
            node = many_small(module, value, method, filling, attribute)
            if node is not None:
                yield attribute, node
                break


def indexed(functions: list[Function]) -> set[str]:
    """Attributes of `self` of which an item is read."""
    return {
        part.value.attr
        for function in functions
        for part in ast.walk(function.node)
        if isinstance(part, ast.Subscript)
        and isinstance(part.ctx, ast.Load)
        and isinstance(part.value, ast.Attribute)
        and sites.is_self_attribute(part.value, function)
    }


def many_small(
    module: Module, value: ast.expr, method: Function, filling: list[Function], attribute: str
) -> Node | None:
    """What makes the many objects of a value: a comprehension, an `append`, a parser of text."""
    if isinstance(value, ast.ListComp | ast.DictComp | ast.SetComp):
        element = value.elt if not isinstance(value, ast.DictComp) else value.value
        return value if is_small(element, value.generators[0]) else None
    if isinstance(value, ast.Call):
        called = written(value.func)
        if READS_OBJECTS.fullmatch(called):
            return value
        if called in ("list", "sorted") and value.args:
            inner = value.args[0]
            if isinstance(inner, ast.GeneratorExp):
                return value if is_small(inner.elt, inner.generators[0]) else None
            return value if is_reader(inner) else None
        return None
    if isinstance(value, ast.Dict) and not value.keys:
        name = f"self.{attribute}"
        return appended(filling, name) or filled(filling, name)
    if isinstance(value, ast.List) and not value.elts:
        return appended(filling, f"self.{attribute}")
    if isinstance(value, ast.Name):
        for bound in sites.bindings(module, value.id, method):
            if isinstance(bound, ast.List) and not bound.elts:
                return appended([method], value.id)
            if bound is not None and not isinstance(bound, ast.Name):
                found = many_small(module, bound, method, filling, attribute)
                if found is not None:
                    return found
    return None


def is_reader(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return bool(READS_OBJECTS.fullmatch(written(node.func))) or written(node.func) in (
        "csv.reader",
        "csv.DictReader",
        "range",
    )


def appended(functions: list[Function], name: str) -> ast.Call | None:
    """An `append` of small objects to a list, in a loop that is no loop over a handful of files."""
    for function in functions:
        for loop in ast.walk(function.node):
            if not isinstance(loop, ast.For | ast.While):
                continue
            for part in ast.walk(loop):
                if (
                    isinstance(part, ast.Call)
                    and written(part.func) == f"{name}.append"
                    and len(part.args) == 1
                    and is_small(part.args[0], loop if isinstance(loop, ast.For) else None)
                ):
                    return part
    return None


def filled(functions: list[Function], name: str) -> ast.Assign | None:
    """The line of a loop that gives a dict a new entry, a small object."""
    for function in functions:
        for loop in ast.walk(function.node):
            if not isinstance(loop, ast.For):
                continue
            for part in ast.walk(loop):
                if not isinstance(part, ast.Assign) or not isinstance(
                    part.targets[0], ast.Subscript
                ):
                    continue
                if written(part.targets[0].value) == name and is_small(part.value, loop):
                    return part
    return None


def is_short(loop: ast.comprehension | ast.For | None) -> bool:
    """Whether a loop makes few objects: a row for each of ten classes."""
    call = loop.iter if loop is not None else None
    if not isinstance(call, ast.Call) or written(call.func) != "range":
        return False
    stops = [part.value for part in call.args[:2] if isinstance(part, ast.Constant)]
    return len(stops) == len(call.args[:2]) and all(
        isinstance(stop, int) and stop < MANY for stop in stops
    )


def is_small(element: ast.expr, loop: ast.comprehension | ast.For | None) -> bool:
    """Whether an element is a small object that is worth to be told; lists of files are not."""
    if is_short(loop):
        return False
    over = written(loop.iter) if loop is not None else ""
    text = written(element)
    if isinstance(element, ast.Dict):
        return not any(is_block(part) for part in ast.walk(element))
    if FILE_NAMES.search(text) and not isinstance(element, ast.Tuple | ast.List):
        return False
    if isinstance(element, ast.Tuple | ast.List):
        return bool(element.elts) and not any(is_block(part) for part in ast.walk(element))
    if FILE_NAMES.search(over) and "open(" not in over and not OPENED.fullmatch(over):
        return False
    if isinstance(element, ast.Call):
        return written(element.func).rsplit(".", 1)[-1] in SMALL_CALLS
    if isinstance(element, ast.Name | ast.Subscript | ast.BinOp | ast.JoinedStr):
        if any(is_block(part) for part in ast.walk(element)):
            return False
        return bool(SOURCES.search(over)) or isinstance(element, ast.JoinedStr)
    return False


def is_block(node: ast.AST) -> bool:
    """Whether a part of an element holds its data in one block: tensors, arrays, images."""
    if not isinstance(node, ast.Call):
        return False
    return written(node.func).rsplit(".", 1)[-1] not in SMALL_CALLS | {"join", "len", "basename"}
