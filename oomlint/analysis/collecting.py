"""Outputs without a graph that a loop over data collects on the device until its end."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeGuard

from oomlint.analysis import chunking, edits, knowledge, sites
from oomlint.analysis.answers import make_fix, short
from oomlint.analysis.host_use import NEUTRAL, flat, host_use, is_direct, used_once, uses
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.nodes import walk
from oomlint.analysis.state import World
from oomlint.rule import Fix, Safety

if TYPE_CHECKING:
    from oomlint.analysis import Model

Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, slots=True)
class Collected:
    """One line that collects: what is kept, where, and whether it may be written as `x.cpu()`."""

    node: ast.expr | ast.stmt
    place: str
    output: ast.expr
    # What takes everything to the host after the loop.
    taken: ast.expr
    fixable: bool


def everything(model: Model) -> Iterator[Collected]:
    module = model.module
    world = World(model.project, module)
    for function, nodes in scopes(module):
        if function is not None and HOOK.match(function.name):
            yield from hooked(world, function, nodes)
        yield from collected(world, function, nodes)
        yield from comprehended(world, function, nodes)


HOOK = re.compile(r"(validation|val|test|predict)_step$|on_(validation|test|predict)_batch_end$")
OFF = tuple("no_grad nograd inference_mode inferencemode detach generate".split())
KEEPING = re.compile(r"\.append\(|\.extend\(|\bcat\(|concat\(|\+=\s*\[|\bfor\b[^:]+\bin\b[^:]+\]")
MOVING = tuple("cpu numpy tolist save np. metric json pickle dump".split())


def scopes(module: Module) -> Iterator[tuple[Function | None, tuple[ast.AST, ...]]]:
    """The functions, and the script itself, whose words allow what is looked for; their nodes."""
    for function in module.all_functions:
        is_hook = HOOK.match(function.name)
        if (is_hook or moves_what_has_no_graph(function)) and KEEPING.search(function.code):
            yield function, sites.own_nodes(function.node)
    if any(isinstance(node, ast.For | ast.With | ast.Assign) for node in module.tree.body):
        yield None, sites.own_nodes(module.tree)


def moves_what_has_no_graph(function: Function) -> bool:
    """Whether its words speak of the host, and of gradients that are off."""
    code = function.code
    if not any(word in code for word in MOVING):
        return False
    above = " ".join(written(d) for scope in lineage(function) for d in scope.decorators)
    said = f"{above} {code}".lower()
    return any(word in said for word in OFF)


def lineage(function: Function | None) -> Iterator[Function]:
    while function is not None:
        yield function
        function = function.parent


def collected(
    world: World, function: Function | None, nodes: Sequence[ast.AST]
) -> Iterator[Collected]:
    module = world.subject
    for node, place, outputs in collecting_lines(module, function, nodes):
        loops = [
            loop
            for loop in sites.loops_around(module, node)
            if is_over_data(loop) and not chunking.cuts_one_tensor(module, loop, function)
        ]
        begun = {written(output) for output in outputs}
        if not loops or not begins_before(module, place, loops[-1], function, begun):
            continue
        for output in outputs:
            tensor = Chain(world, module, function, loops[0], node).is_output(output)
            if tensor is None or not without_graph(module, node, function, output, tensor):
                continue
            last = loops[-1].end_lineno or loops[-1].lineno
            taken = host_use(module, function, last, place)
            if taken is not None:
                direct = is_direct(taken, place) and used_once(module, function, last, place)
                yield Collected(node, place, output, taken, direct)
                break


def comprehended(
    world: World, function: Function | None, nodes: Sequence[ast.AST]
) -> Iterator[Collected]:
    """`xs = [model(inputs) for inputs in loader]` under `no_grad`."""
    module = world.subject
    for node in nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.ListComp):
            continue
        inner = node.value
        if not DATA.search(written(inner.generators[0].iter)):
            continue
        if chunking.cuts_one_tensor(module, inner, function):
            continue
        place, last = written(node.targets[0]), node.end_lineno or node.lineno
        chain = Chain(world, module, function, node, node).is_output(inner.elt)
        if chain is None or not without_graph(module, node, function, inner.elt, chain):
            continue
        taken = host_use(module, function, last, place)
        if taken is not None:
            direct = is_direct(taken, place) and used_once(module, function, last, place)
            yield Collected(inner, place, inner.elt, taken, direct)


def hooked(world: World, function: Function, nodes: Sequence[ast.AST]) -> Iterator[Collected]:
    """The same where a framework has the loop: a step collects, the end of the epoch moves."""
    module = world.subject
    if function.owner is None:
        return
    for node, place, outputs in collecting_lines(module, function, nodes):
        if not place.startswith("self.") or sites.loops_around(module, node):
            continue
        chain = Chain(world, module, function, function.node, node)
        given = {argument.arg for argument in function.node.args.args if argument.arg == "outputs"}
        output = next((o for o in outputs if written(o) in given or chain.is_output(o)), None)
        if output is None:
            continue
        for method in function.owner.methods.values():
            taken = host_use(module, method, 0, place) if method is not function else None
            if taken is not None:
                yield Collected(node, place, output, taken, False)
                break


def collecting_lines(
    module: Module, function: Function | None, nodes: Sequence[ast.AST]
) -> Iterator[tuple[ast.expr | ast.stmt, str, list[ast.expr]]]:
    """`xs.append(output)`, `xs += [output]`, `xs = torch.cat((xs, output))`: node, place, parts."""
    for node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List):
            yield node, written(node.target), parts(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if node.func.attr in ("append", "extend"):
                yield node, written(node.func.value), parts(node.args[0])
        elif isinstance(node, ast.Assign) and (joined := joining(node.value)) is not None:
            place, given = written(node.targets[0]), parts(joined.args[0])
            qualified = sites.qualified_name(module, joined.func, function)
            if qualified in ("torch.cat", "torch.concat"):
                others = [part for part in given if written(part) != place]
                if len(others) < len(given):
                    yield node, place, others


def joining(value: ast.expr) -> ast.Call | None:
    """The call that puts outputs together, also in `out if all is None else torch.cat(...)`."""
    if isinstance(value, ast.IfExp):
        found = [joining(arm) for arm in (value.body, value.orelse)]
        return next((call for call in found if call is not None), None)
    return value if isinstance(value, ast.Call) and value.args else None


def parts(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Tuple | ast.List):
        return [part for element in node.elts for part in parts(element)]
    if isinstance(node, ast.Dict):
        return [part for value in node.values for part in parts(value)]
    return [node]


DATA = re.compile(
    r"loader|batch|dataset|\bdata\b|\bdl\b|chunk|\w_dl\b|pbar|range\(0, |\.split\(|iterator"
)


def is_over_data(loop: Loop) -> bool:
    return isinstance(loop, ast.For | ast.AsyncFor) and bool(DATA.search(written(loop.iter)))


def begins_before(
    module: Module, place: str, loop: Loop, function: Function | None, begun: Collection[str]
) -> bool:
    """Whether the place is made before the loop, and not emptied inside it; `begun` begins it."""
    scope: ast.AST = function.node if function is not None else module.tree
    made = False
    for node in changes_in(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = any(written(goal) == place.split("[")[0] for goal in flat(targets))
            first = written(node.value) in begun
            if named and is_inside(node, loop) and not first and not uses(node.value, place):
                return False
            made = made or (named and node.lineno < loop.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if is_inside(node, loop) and written(node.func.value) == place:
                return False
        elif isinstance(node, ast.Delete) and is_inside(node, loop):
            return False
    return made and "maxlen" not in written_bindings(module, place, function)


def changes_in(scope: ast.AST) -> list[ast.stmt | ast.expr]:
    """What assigns in a scope, or empties a container, functions inside included."""
    known: list[ast.stmt | ast.expr] | None = scope.__dict__.get("changes")
    if known is None:
        known = scope.__dict__["changes"] = [node for node in walk(scope) if is_change(node)]
    return known


def is_change(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    if type(node) is ast.Call:
        called = node.func
        return isinstance(called, ast.Attribute) and called.attr in ("clear", "pop", "popleft")
    return type(node) in (ast.Assign, ast.AnnAssign, ast.Delete)


def written_bindings(module: Module, place: str, function: Function | None) -> str:
    name = place.split("[")[0].split(".")[0]
    found = sites.bindings(module, name, function)
    return " ".join(written(value) for value in found if value is not None)


def is_inside(node: ast.stmt | ast.expr, loop: Loop) -> bool:
    return loop.lineno < node.lineno <= (loop.end_lineno or loop.lineno)


@dataclass(frozen=True, slots=True)
class Chain:
    """Follows an expression back to a model's call through what leaves size and device alone."""

    world: World
    module: Module
    function: Function | None
    # The loop, or the function that a framework calls for each batch.
    loop: ast.stmt
    line: ast.expr | ast.stmt

    def is_output(self, node: ast.expr, depth: int = 0) -> str | None:
        """The methods on the way to the model's call, joined; None where there is no such way."""
        if depth > 8:
            return None
        if isinstance(node, ast.Name):
            return self.of_name(node, depth)
        if isinstance(node, ast.Attribute):
            inner = self.is_output(node.value, depth + 1)
            return (
                None if inner is None or node.attr in ("loss", "shape") else f"{inner}.{node.attr}"
            )
        if isinstance(node, ast.Subscript):
            inner = self.is_output(node.value, depth + 1)
            plain = isinstance(node.slice, ast.Constant) and node.slice.value == "loss"
            return None if inner is None or plain else f"{inner}[]"
        if isinstance(node, ast.BinOp) and isinstance(
            node.op, ast.Mult | ast.Div | ast.Add | ast.Sub
        ):
            # `(hidden * mask).sum(1) / mask.sum(1)`: as large as its larger operand, and beside it.
            found = (self.is_output(part, depth + 1) for part in (node.left, node.right))
            return next((chain for chain in found if chain is not None), None)
        return self.of_call(node, depth) if isinstance(node, ast.Call) else None

    def of_name(self, node: ast.Name, depth: int) -> str | None:
        latest: ast.Assign | None = None
        for part in ast.walk(self.loop):
            if isinstance(part, ast.Assign) and part.lineno < self.line.lineno:
                if any(written(goal) == node.id for goal in flat(part.targets)):
                    if latest is None or part.lineno > latest.lineno:
                        latest = part
        if latest is None:
            return None
        if isinstance(latest.value, ast.Name) and latest.value.id == node.id:
            return None
        chain = Chain(self.world, self.module, self.function, self.loop, latest)
        return chain.is_output(latest.value, depth + 1)

    def of_call(self, node: ast.Call, depth: int) -> str | None:
        called = node.func
        own = self.function is not None and self.function.owner is not None
        if own and written(called) in ("self", "self.forward"):
            return "model"
        if sites.role(self.world, called, self.function)[0] is Role.MODEL:
            return "model"
        if isinstance(called, ast.Attribute):
            if called.attr in ("forward", "generate"):
                owner = sites.role(self.world, called.value, self.function)[0]
                return called.attr if owner is Role.MODEL else None
            qualified = sites.qualified_name(self.module, called, self.function)
            if called.attr not in NEUTRAL and not pools(node, called.attr):
                return None
            inner = node.args[0] if qualified.startswith("torch") and node.args else called.value
            found = self.is_output(inner, depth + 1)
            return None if found is None else f"{found}.{called.attr}"
        return None


def pools(node: ast.Call, name: str) -> bool:
    """Whether one dimension of several is reduced: a vector is left of every sample."""
    if name not in ("mean", "sum"):
        return False
    given = [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]
    return any(isinstance(part, ast.Constant) and part.value == 1 for part in given)


def without_graph(
    module: Module,
    node: ast.expr | ast.stmt,
    function: Function | None,
    output: ast.expr,
    chain: str,
) -> bool:
    """Whether gradients are off, or the output is cut: with a graph it is another rule's."""
    if "detach" in chain or chain.startswith("generate"):
        return True
    for context in sites.contexts_around(module, node):
        if turns_off(module, context):
            return True
    scope = function
    while scope is not None:
        if any(turns_off(module, decorator) for decorator in scope.decorators):
            return True
        scope = scope.parent
    return inner_context(module, output, function)


def inner_context(module: Module, output: ast.expr, function: Function | None) -> bool:
    """Whether the forward itself is under `no_grad`, and only the storing line is not."""
    names = {part.id for part in ast.walk(output) if isinstance(part, ast.Name)}
    scope: ast.AST = function.node if function is not None else module.tree
    return any(
        isinstance(node, ast.With)
        and any(turns_off(module, item.context_expr) for item in node.items)
        and any(
            isinstance(part, ast.Assign)
            and any(written(goal) in names for goal in flat(part.targets))
            for part in ast.walk(node)
        )
        for node in ast.walk(scope)
    )


def turns_off(module: Module, expression: ast.expr) -> bool:
    called = expression.func if isinstance(expression, ast.Call) else expression
    qualified = module.qualified(written(called))
    if isinstance(expression, ast.Call) and expression.args:
        return False
    last = qualified.rsplit(".", 1)[-1]
    return bool(knowledge.NO_GRAD.fullmatch(qualified) or knowledge.NO_GRAD_NAME.search(last))


def to_the_host(model: Model, found: Collected) -> Fix | None:
    if not found.fixable or isinstance(found.output, ast.Starred):
        return None
    edit = edits.append_call(model.module, found.output, ".cpu()")
    title = f"Collect `{short(model.module, found.output)}.cpu()`"
    return make_fix(title, edit, Safety.UNSAFE)
