"""Forward hooks of a file: where they are registered, and what they store of an output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.sites import (
    Site,
    bound_names,
    called,
    class_of,
    own_nodes,
    qualified_name,
    values_of,
)

# How many of a hook's last parameters hold what the module was given and what it returned.
DATA = {
    "register_forward_hook": 2,
    "register_forward_pre_hook": 1,
    "register_module_forward_hook": 2,
    "register_module_forward_pre_hook": 1,
}
STORING = frozenset("append extend appendleft".split())
# What is left of a tensor after these has no graph.
CUTTING = re.compile(
    r"\.(detach_?|item|tolist|numpy|data|shape|size|dtype|device|numel|dim|ndim|nelement|argmax"
    r"|element_size|nbytes|is_cuda|requires_grad|long|int|bool)\b"
)
NO_TENSOR = frozenset("len float int str repr type id isinstance bool".split())


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that a module calls with its output, and the call that registers it."""

    site: Site
    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    function: Function | None
    data: frozenset[str]


@dataclass(frozen=True, slots=True)
class Store:
    """A statement or call of a hook that puts what it was given, graph included, somewhere else.

    `leaf` is the tensor in the stored expression; `grows` tells a list from what is overwritten.
    """

    hook: Hook
    node: ast.expr | ast.stmt
    leaf: ast.expr
    place: ast.expr
    grows: bool


def forward_hooks(module: Module) -> Iterator[Hook]:
    for site in called(module, *DATA):
        count, given = DATA[site.method], site.argument(0, "hook")
        if given is None:
            continue
        for node in hook_functions(module, given, site.function):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
            # `def save(module, args, output, name=name)`: the module gives it no name.
            names = names[: max(len(names) - len(node.args.defaults), count + 1)]
            if site.argument(-1, "with_kwargs") is None and len(names) > count:
                data = frozenset(names[-count:])
                yield Hook(site, node, module.by_node.get(node), data)


def hook_functions(
    module: Module, given: ast.expr, function: Function | None, depth: int = 0
) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda]:
    """The definitions behind what is registered: names, methods, lambdas, partials, factories."""
    if isinstance(given, ast.Lambda):
        return [given]
    made_by = class_behind(module, given, function)
    if made_by is not None:
        method = made_by.methods.get("__call__")
        return [method.node] if method is not None else []
    if isinstance(given, ast.Call) and depth < 3:
        if qualified_name(module, given.func, function) == "functools.partial" and given.args:
            return hook_functions(module, given.args[0], function, depth + 1)
        made = defined(module, given.func, function)
        if made is None:
            return []
        returned = [n.value for n in own_nodes(made.node) if isinstance(n, ast.Return) and n.value]
        return [n for r in returned for n in hook_functions(module, r, made, depth + 1)]
    found = defined(module, given, function)
    return [found.node] if found is not None else []


def class_behind(module: Module, given: ast.expr, function: Function | None) -> Class | None:
    """The class of this file of which an expression is an instance."""
    for value in (given, *(value for value, _ in values_of(module, given, function))):
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            found = module.classes.get(value.func.id)
            if found is not None:
                return found
    return None


def defined(module: Module, node: ast.expr, function: Function | None) -> Function | None:
    """The function or method of this file that an expression names."""
    if isinstance(node, ast.Name):
        scope = function
        while scope is not None:
            for other in module.all_functions:
                if other.parent is scope and other.name == node.id:
                    return other
            scope = scope.parent
        return module.functions.get(node.id)
    owner = class_of(function)
    if isinstance(node, ast.Attribute) and owner is not None and written(node.value) == "self":
        return owner.methods.get(node.attr)
    return None


def stores(hook: Hook) -> Iterator[Store]:
    if isinstance(hook.node, ast.Lambda):
        yield from stored_by(hook, hook.node.body, hook.data, frozenset())
        return
    carrying, local = set(hook.data), {a.arg for a in hook.node.args.args} - {"self"}
    outer = {n for s in hook.node.body if isinstance(s, ast.Global | ast.Nonlocal) for n in s.names}
    for node in own_nodes(hook.node):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name not in outer:
                local.add(name)
                # A second name for it; one that is bound to something without a graph is none.
                carries = tensor_in(node.value, frozenset(carrying)) is not None
                (carrying.add if carries else carrying.discard)(name)
                continue
        yield from stored_by(hook, node, frozenset(carrying), frozenset(local))


def stored_by(
    hook: Hook, node: ast.AST, carrying: frozenset[str], local: frozenset[str]
) -> Iterator[Store]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in STORING and node.args and root_of(node.func.value) not in local:
            leaf = tensor_in(node.args[-1], carrying)
            if leaf is not None:
                yield Store(hook, node, leaf, node.func.value, grows=True)
    elif isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
        if isinstance(target, ast.Tuple | ast.List) or root_of(target) in local:
            return
        leaf = tensor_in(node.value, carrying)
        if leaf is not None:
            place = target.value if isinstance(target, ast.Subscript) else target
            yield Store(hook, node, leaf, place, grows=False)
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        listed = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else []
        leaf = next((f for e in listed if (f := tensor_in(e, carrying)) is not None), None)
        if leaf is not None and root_of(node.target) not in local:
            yield Store(hook, node, leaf, node.target, grows=True)


def tensor_in(node: ast.expr, carrying: frozenset[str]) -> ast.expr | None:
    """The innermost expression that is what the hook was given, if it gets through with its graph.

    `output`, `output[0]`, `inputs[0].cpu()`, `output.mean(1)`; None for `output.detach()`.
    """
    if isinstance(node, ast.Name):
        return node if node.id in carrying else None
    if isinstance(node, ast.Subscript):
        inner = tensor_in(node.value, carrying)
        return node if inner is node.value else inner
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            if CUTTING.match(f".{node.func.attr}"):
                return None
            return tensor_in(node.func.value, carrying)
        return None
    if isinstance(node, ast.Tuple | ast.List):
        return next((f for e in node.elts if (f := tensor_in(e, carrying)) is not None), None)
    return None


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


# what becomes of what was stored


def is_cleared(module: Module, store: Store) -> bool:
    """Whether anything in the file empties the container or binds its name anew."""
    name = re.escape(container(store.place))
    entry = rf"\b{name}(\[[^\]]*\])?"
    emptied = rf"{entry}\.(clear|pop|popleft|remove|popitem)\(|\bdel {name}\b|{entry}\[:\] ="
    bound = rf"(?<![\w.]){name}\s*(?::[^=\n]+)?=[^=]"
    text = module.source.text
    return bool(re.search(emptied, text)) or len(re.findall(bound, text)) > 1


def container(place: ast.expr) -> str:
    """The name of the outermost list or dict: of `d[k]` and of `d.setdefault(k, [])` it is `d`."""
    while isinstance(place, ast.Subscript | ast.Call):
        place = place.func if isinstance(place, ast.Call) else place.value
        if isinstance(place, ast.Attribute) and place.attr == "setdefault":
            place = place.value
    return written(place)


def outlives(module: Module, store: Store) -> bool:
    """Whether more than one forward fills the container: a local one needs a loop for that."""
    root = container(store.place).split(".")[0]
    function = module.function_of(store.hook.node)
    while function is not None and root not in bound_names(function):
        function = function.parent
    if function is None or root == "self":
        return root == "self" or root in module.globals
    registered = store.hook.site.node.lineno
    removed = "remove" in function.words
    return any(
        isinstance(node, ast.For | ast.While)
        and node.lineno > registered
        and (not removed or runs_over_batches(node))
        for node in ast.walk(function.node)
    )


BATCHES = re.compile(r"loader|_dl\b|batch", re.IGNORECASE)


def runs_over_batches(loop: ast.For | ast.While) -> bool:
    """Whether a loop takes batch after batch, and no hook is removed inside of it."""
    over = written(loop.iter) if isinstance(loop, ast.For) else ""
    return bool(BATCHES.search(over)) and not any(
        isinstance(part, ast.Attribute) and part.attr == "remove" for part in ast.walk(loop)
    )


def readers(module: Module, store: Store) -> Iterator[ast.expr]:
    """Every place of the file that reads what was stored."""
    base = written(store.place)
    for node in module.parents:
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if written(node) == base and node is not store.place:
            yield node


def cuts(module: Module, node: ast.expr) -> bool:
    """Whether a reader takes an entry and detaches it at once."""
    parent = module.parents[node]
    if isinstance(parent, ast.Subscript) and parent.value is node:
        if not isinstance(parent.ctx, ast.Load):
            return True
        node, parent = parent, module.parents[parent]
    return isinstance(parent, ast.Attribute) and parent.attr in ("detach", "data", "shape", "clear")
