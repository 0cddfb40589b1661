"""Where data-parallel models average gradients over their ranks, and where that is put off."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from oomlint.analysis import knowledge, sites
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.sites import Site

DDP = re.compile(r"torch\.nn\.parallel\.(distributed\.)?DistributedDataParallel")
FSDP = re.compile(r"torch\.distributed\.fsdp\.(\w+\.)*FullyShardedDataParallel")
# Contexts that put the averaging off; they must be entered before the forward.
DEFERRING = frozenset({"no_sync", "no_backward_sync"})
# These look at the backward alone.
BACKWARD_ONLY = re.compile(r"engine|deepspeed|booster|fsdp|megatron", re.IGNORECASE)
MAX_DEPTH = 6


class Wrapped(Enum):
    """Whether a model is wrapped whenever the code runs, or only under a condition."""

    ALWAYS = "always"
    SOMETIMES = "sometimes"


def wrapped(
    module: Module,
    node: ast.expr,
    function: Function | None,
    pattern: re.Pattern[str] = DDP,
    depth: int = 0,
) -> Wrapped | None:
    """Whether an expression is a model in DistributedDataParallel, as far as the file says it."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(node, ast.IfExp):
        if any(
            isinstance(n, ast.Attribute) and n.attr == "module" for n in (node.body, node.orelse)
        ):
            return None  # unwrapped: its own forward prepares no averages
        arms = (wrapped(module, n, function, pattern, depth + 1) for n in (node.body, node.orelse))
        return Wrapped.SOMETIMES if any(arms) else None
    if isinstance(node, ast.Call):
        return wrapped_call(module, node, function, pattern, depth)
    if isinstance(node, ast.Name) and is_parameter(node.id, function):
        return given(module, node.id, function, pattern, depth)
    found = [
        combined(module, value, wrapped(module, value, where, pattern, depth + 1))
        for value, where in assigned(module, node, function)
    ]
    return min_of([answer for answer in found if answer is not None])


def wrapped_call(
    module: Module,
    node: ast.Call,
    function: Function | None,
    pattern: re.Pattern[str],
    depth: int,
) -> Wrapped | None:
    qualified = sites.qualified_name(module, node.func, function)
    if pattern.fullmatch(qualified):
        return Wrapped.ALWAYS
    if isinstance(node.func, ast.Attribute) and node.func.attr in sites.CHAINING:
        return wrapped(module, node.func.value, function, pattern, depth + 1)
    if knowledge.is_transparent(qualified) and node.args:
        return wrapped(module, node.args[0], function, pattern, depth + 1)
    maker = callee(module, node, function)
    if maker is None:
        return None
    returns = [n.value for n in sites.own_nodes(maker.node) if isinstance(n, ast.Return)]
    answers = [wrapped(module, v, maker, pattern, depth + 1) for v in returns if v is not None]
    if not answers or None in answers:
        return Wrapped.SOMETIMES if any(answers) else None
    return min_of([answer for answer in answers if answer is not None])


def assigned(
    module: Module, node: ast.expr, function: Function | None
) -> list[tuple[ast.expr, Function | None]]:
    found = sites.values_of(module, node, function)
    if found or not isinstance(node, ast.Attribute) or function is None:
        return found
    text = written(node)
    return [
        (part.value, function)
        for part in sites.own_nodes(function.node)
        if isinstance(part, ast.Assign) and text in [written(target) for target in part.targets]
    ]


def combined(module: Module, value: ast.expr, answer: Wrapped | None) -> Wrapped | None:
    """A wrapping under an `if` need not happen."""
    if answer is None:
        return None
    tests = [t for t, _ in sites.conditions_around(module, value) if "__name__" not in written(t)]
    return Wrapped.SOMETIMES if tests else answer


def min_of(answers: list[Wrapped]) -> Wrapped | None:
    if not answers:
        return None
    return Wrapped.ALWAYS if Wrapped.ALWAYS in answers else Wrapped.SOMETIMES


def is_parameter(name: str, function: Function | None) -> bool:
    """Whether a name is what a function was given, and nothing else there."""
    while function is not None:
        table = sites.bound_names(function)
        if name in table:
            return all(value is None for value in table[name])
        function = function.parent
    return False


def given(
    module: Module,
    name: str,
    function: Function | None,
    pattern: re.Pattern[str],
    depth: int,
) -> Wrapped | None:
    """What the calls in this file give for a parameter; a call that gives no such model decides."""
    function = binder(name, function)
    if function is None:
        return None
    if annotated(module, name, function, pattern):
        return Wrapped.ALWAYS
    answers = []
    for value, caller in given_by_calls(module, name, function):
        if value is not None:
            answers.append(wrapped(module, value, caller, pattern, depth + 1))
    if not any(answers):
        return None
    return Wrapped.SOMETIMES if None in answers else min_of([a for a in answers if a is not None])


def binder(name: str, function: Function | None) -> Function | None:
    """The function, or the closest one around it, that binds a name."""
    while function is not None and name not in sites.bound_names(function):
        function = function.parent
    return function


def given_by_calls(
    module: Module, name: str, function: Function
) -> Iterator[tuple[ast.expr | None, Function | None]]:
    """What each call in this file gives for a parameter, None for nothing, and who calls."""
    arguments = function.node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    position = names.index(name) - (function.owner is not None) if name in names else -1
    for call in calls_of(module, function):
        yield call.argument(position, name), call.function


def annotated(module: Module, name: str, function: Function, pattern: re.Pattern[str]) -> bool:
    arguments = function.node.args
    for parameter in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if parameter.arg == name and parameter.annotation is not None:
            qualified = sites.qualified_name(module, parameter.annotation, function)
            return pattern.fullmatch(qualified) is not None
    return False


def calls_of(module: Module, function: Function) -> Iterator[Site]:
    """The calls of a function in its own file: a method's by its name, a class by its own."""
    name = function.name
    if function.owner is not None and name == "__init__":
        name = function.owner.name
    for site in sites.calls_by_name(module, name):
        if function.node in module.enclosing(site.node):
            continue
        if site.receiver is None or (function.owner is not None and is_of(function, site)):
            yield site


def is_of(function: Function, site: Site) -> bool:
    """Whether a call of this name on an object may be of the method: torch has its own `step`."""
    owner = sites.class_of(site.function)
    if sites.is_self_attribute(site.node.func, site.function):
        return owner is function.owner
    return function.name not in TORCH_METHODS


TORCH_METHODS = frozenset("backward step forward train eval update zero_grad scale".split())


def callee(module: Module, node: ast.Call, function: Function | None) -> Function | None:
    """The function of this file that a call runs: by its name, or as a method of `self`."""
    if isinstance(node.func, ast.Name):
        return module.functions.get(node.func.id)
    owner = sites.class_of(function)
    if owner is not None and sites.is_self_attribute(node.func, function):
        return owner.methods.get(written(node.func).rsplit(".", 1)[-1])
    return None


@dataclass(frozen=True, slots=True)
class Deferral:
    """A `with` whose block puts the averaging off, perhaps under a test.

    `test` is the condition under which it does so with the truth that the condition then has, None
    where it always does or where the condition cannot be read.
    """

    block: ast.With | ast.AsyncWith
    context: ast.expr
    # The model, as `model.no_sync()` or `accelerator.no_sync(model)` write it.
    model: ast.expr | None
    test: ast.expr | None
    truth: bool
    # The conditional expression that chooses, where it is one.
    choice: ast.IfExp | None = None


def deferrals_around(module: Module, node: ast.AST, function: Function | None) -> list[Deferral]:
    """The blocks around a node inside its function that put the averaging off, innermost first."""
    found = []
    for parent in module.enclosing(node):
        if isinstance(parent, sites.SCOPES):
            break
        if isinstance(parent, ast.With | ast.AsyncWith):
            for item in parent.items:
                deferral = deferral_of(module, parent, item, function)
                if deferral is not None:
                    found.append(deferral)
    return found


def deferral_of(
    module: Module,
    block: ast.With | ast.AsyncWith,
    item: ast.withitem,
    function: Function | None,
) -> Deferral | None:
    found = deferring(module, item.context_expr, function)
    if found is None and isinstance(item.optional_vars, ast.Name):
        found = stacked(module, block, item.optional_vars.id, function)
    if found is None:
        return None
    call, chain = found
    # Of several conditions the one that counts says more than one that names a setting.
    counting = [link for link in chain if any(isinstance(n, ast.Mod) for n in ast.walk(link[0]))]
    links = counting or chain
    test, truth, choice = links[0] if links else (None, True, None)
    return Deferral(block, item.context_expr, model_of(module, call), test, truth, choice)


# Conditions under which an expression has a part, with the truth that they then have.
Chain = list[tuple[ast.expr, bool, ast.IfExp | None]]


def deferring(
    module: Module, node: ast.expr, function: Function | None, depth: int = 0
) -> tuple[ast.expr, Chain] | None:
    """The `no_sync` that an expression may stand for, with the conditions under which it does."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(node, ast.IfExp):
        for arm, truth in ((node.body, True), (node.orelse, False)):
            found = deferring(module, arm, function, depth + 1)
            if found is not None:
                return found[0], [(node.test, truth, node), *found[1]]
        return None
    if isinstance(node, ast.Attribute) and node.attr in DEFERRING:
        return node, []
    if isinstance(node, ast.Call):
        return deferring_call(module, node, function, depth)
    for value, where in sites.values_of(module, node, function):
        found = deferring(module, value, where, depth + 1)
        if found is not None:
            tests = sites.conditions_around(module, value)
            return found[0], [*((t, arm, None) for t, arm in tests[:1]), *found[1]]
    return None


def deferring_call(
    module: Module, node: ast.Call, function: Function | None, depth: int
) -> tuple[ast.expr, Chain] | None:
    if isinstance(node.func, ast.Attribute) and node.func.attr in DEFERRING:
        return node, []
    if isinstance(node.func, ast.Attribute) and node.func.attr == "accumulate":
        named = knowledge.role_of_name(written(node.func.value))
        return (node, []) if named is knowledge.Role.ACCELERATOR and node.args else None
    if written(node.func).endswith("partial") and node.args:
        found = deferring(module, node.args[0], function, depth + 1)
        return (node, found[1]) if found is not None else None
    maker = callee(module, node, function)
    if maker is not None and maker.words & DEFERRING:
        return node, chosen_in(module, maker, node)
    return deferring(module, node.func, function, depth + 1)


def chosen_in(module: Module, maker: Function, call: ast.Call) -> Chain:
    """The conditions under which a function returns `no_sync`, in the words of who calls it.

    Nothing where it calls an argument otherwise than its caller does.
    """
    arguments = maker.node.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)][maker.owner is not None :]
    given = dict(zip(names, (written(part) for part in call.args), strict=False))
    given |= {keyword.arg: written(keyword.value) for keyword in call.keywords if keyword.arg}
    for node in sites.own_nodes(maker.node):
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        found = deferring(module, node.value, maker, MAX_DEPTH)
        if found is None:
            continue
        tests = [(test, arm, None) for test, arm in sites.conditions_around(module, node)[:1]]
        chain: Chain = [*found[1], *tests]
        parts = [part for link in chain for part in ast.walk(link[0])]
        words = {part.id for part in parts if isinstance(part, ast.Name)}
        return chain if all(given.get(word, word) == word for word in words) else []
    return []


def stacked(
    module: Module, block: ast.With | ast.AsyncWith, name: str, function: Function | None
) -> tuple[ast.expr, Chain] | None:
    """`stack.enter_context(model.no_sync())` inside of the block of an ExitStack."""
    for part in ast.walk(block):
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "enter_context"
            and written(part.func.value) == name
            and part.args
        ):
            found = deferring(module, part.args[0], function)
            if found is not None:
                tests = sites.conditions_around(module, part)
                return found[0], [*((t, arm, None) for t, arm in tests[:1]), *found[1]]
    return None


def model_of(module: Module, node: ast.expr) -> ast.expr | None:
    """Whose gradients a `no_sync` keeps apart."""
    if isinstance(node, ast.Call):
        if written(node.func).endswith("partial"):
            return node.args[1] if len(node.args) > 1 else model_of(module, node.args[0])
        if node.args:
            return node.args[0]
        return model_of(module, node.func)
    return node.value if isinstance(node, ast.Attribute) and node.attr in DEFERRING else None


WRAPPING = frozenset({knowledge.Role.ACCELERATOR, knowledge.Role.ENGINE, knowledge.Role.OPTIMIZER})


def backwards(module: Module) -> Iterator[tuple[Site, ast.expr]]:
    """Every backward of a file with the loss that it starts from."""
    for site in sites.sites(module):
        if site.method == "manual_backward" and site.node.args:
            yield site, site.node.args[0]
        elif site.method == "backward" and site.receiver is not None:
            if sites.is_self_attribute(site.node.func, site.function):
                continue  # a method of its own
            named = knowledge.role_of_name(written(site.receiver))
            # An optimizer of apex scales the loss that it is given.
            wraps = named in WRAPPING
            if wraps or (site.node.args and site.qualified == "torch.autograd.backward"):
                if site.node.args:
                    yield site, site.node.args[0]
            else:
                yield site, site.receiver
