"""Outputs without a graph that a loop over data collects on the device until its end."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from oomlint.analysis import edits, knowledge, sites
from oomlint.analysis.answers import make_fix, short
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
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


def collected(model: Model) -> Iterator[Collected]:
    module = model.module
    world = World(model.project, module)
    for node, place, outputs in collecting_lines(module):
        function = module.function_of(node)
        loops = [loop for loop in sites.loops_around(module, node) if is_over_data(loop)]
        if not loops or not begins_before(module, place, loops[-1], function):
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


HOOK = re.compile(r"(validation|val|test|predict)_step$|on_(validation|test|predict)_batch_end$")


def hooked(model: Model) -> Iterator[Collected]:
    """The same where a framework has the loop: a step collects, the end of the epoch moves."""
    module = model.module
    world = World(model.project, module)
    for node, place, outputs in collecting_lines(module):
        function = module.function_of(node)
        if function is None or function.owner is None or not HOOK.match(function.name):
            continue
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
    module: Module,
) -> Iterator[tuple[ast.expr | ast.stmt, str, list[ast.expr]]]:
    """`xs.append(output)`, `xs += [output]`, `xs = torch.cat((xs, output))`: node, place, parts."""
    for site in sites.sites(module):
        if site.method in ("append", "extend") and site.receiver is not None and site.node.args:
            yield site.node, written(site.receiver), parts(site.node.args[0])
        elif site.qualified in ("torch.cat", "torch.concat") and site.node.args:
            statement = module.statement_of(site.node)
            if isinstance(statement, ast.Assign) and statement.value is site.node:
                place = written(statement.targets[0])
                given = parts(site.node.args[0])
                if any(written(part) == place for part in given):
                    yield statement, place, [part for part in given if written(part) != place]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.List):
            yield node, written(node.target), parts(node.value)


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


def begins_before(module: Module, place: str, loop: Loop, function: Function | None) -> bool:
    """Whether the place is made empty before the loop, and not emptied inside it."""
    scope: ast.AST = function.node if function is not None else module.tree
    made = False
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = any(written(goal) == place.split("[")[0] for goal in flat(targets))
            if named and is_inside(node, loop) and not uses(node.value, place):
                return False
            made = made or (named and node.lineno < loop.lineno)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("clear", "pop", "popleft") and is_inside(node, loop):
                if written(node.func.value) == place:
                    return False
        elif isinstance(node, ast.Delete) and is_inside(node, loop):
            return False
    return made and "maxlen" not in written_bindings(module, place, function)


def written_bindings(module: Module, place: str, function: Function | None) -> str:
    name = place.split("[")[0].split(".")[0]
    found = sites.bindings(module, name, function)
    return " ".join(written(value) for value in found if value is not None)


def flat(targets: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for target in targets:
        if isinstance(target, ast.Tuple | ast.List):
            yield from flat(target.elts)
        else:
            yield target


def is_inside(node: ast.stmt | ast.expr, loop: Loop) -> bool:
    return loop.lineno < node.lineno <= (loop.end_lineno or loop.lineno)


def uses(node: ast.AST, place: str) -> bool:
    return any(
        isinstance(part, ast.Name | ast.Attribute) and written(part) == place
        for part in ast.walk(node)
    )


NEUTRAL = frozenset(
    "detach float half bfloat16 double softmax log_softmax sigmoid tanh squeeze view reshape"
    " flatten contiguous clone permute transpose unsqueeze normalize relu exp log chunk".split()
)


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
            if called.attr not in NEUTRAL:
                return None
            inner = node.args[0] if qualified.startswith("torch") and node.args else called.value
            found = self.is_output(inner, depth + 1)
            return None if found is None else f"{found}.{called.attr}"
        return None


def without_graph(
    module: Module,
    node: ast.expr | ast.stmt,
    function: Function | None,
    output: ast.expr,
    chain: str,
) -> bool:
    """Whether gradients are off, or the output is cut: with a graph it is another rule's."""
    if "detach" in chain or ".data" in chain or chain.startswith("generate"):
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
    head, _, rest = written(called).partition(".")
    qualified = module.imports.get(head, head) + (f".{rest}" if rest else "")
    if isinstance(expression, ast.Call) and expression.args:
        return False
    last = qualified.rsplit(".", 1)[-1]
    return bool(knowledge.NO_GRAD.fullmatch(qualified) or knowledge.NO_GRAD_NAME.search(last))


HOST = frozenset({"cpu", "numpy", "tolist"})
HOST_MODULES = re.compile(r"(numpy|sklearn|pandas|scipy|json|pickle|csv)\.|torch\.save$")


def host_use(module: Module, function: Function | None, last: int, place: str) -> ast.expr | None:
    """The first expression after a row that takes what was collected to the host."""
    scope: ast.AST = function.node if function is not None else module.tree
    tainted = {place.split("[")[0]}
    kinds = (ast.Assign, ast.Call, ast.For, ast.ListComp, ast.DictComp, ast.GeneratorExp)
    later = [node for node in ast.walk(scope) if isinstance(node, kinds) and node.lineno > last]
    for node in sorted(later, key=lambda part: (part.lineno, part.col_offset)):
        held = read_by(node)
        if any(uses(held, name) for name in tainted):
            if is_whole(held, tainted):
                tainted |= {written(goal) for goal in flat(targets_of(node))}
            found = [
                part
                for part in ast.walk(held)
                if isinstance(part, ast.Call) and goes_to_host(module, function, part, tainted)
            ]
            if found:
                return next((part for part in found if is_direct(part, place)), found[0])
    return None


WHOLE = NEUTRAL | frozenset(
    "cat concat stack vstack hstack argmax zip enumerate tqdm list tuple items values".split()
)


def is_whole(node: ast.expr, tainted: Collection[str]) -> bool:
    """Whether an expression still holds everything that was collected: no mean, no part of it."""
    if isinstance(node, ast.Name | ast.Attribute):
        return written(node) in tainted
    if isinstance(node, ast.Subscript | ast.Starred):
        return is_whole(node.value, tainted)
    if isinstance(node, ast.Tuple | ast.List):
        return any(is_whole(part, tainted) for part in node.elts)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return is_whole(node.generators[0].iter, tainted)
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else written(node.func)
    if name not in WHOLE:
        return False
    receiver = isinstance(node.func, ast.Attribute) and is_whole(node.func.value, tainted)
    return receiver or any(is_whole(part, tainted) for part in node.args)


def read_by(node: ast.expr | ast.stmt) -> ast.expr:
    if isinstance(node, ast.Assign):
        return node.value
    if isinstance(node, ast.For):
        return node.iter
    if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp):
        return node.generators[0].iter
    assert isinstance(node, ast.expr)
    return node


def targets_of(node: ast.expr | ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.For):
        return [node.target]
    return (
        [node.generators[0].target]
        if isinstance(node, ast.ListComp | ast.DictComp | ast.GeneratorExp)
        else []
    )


def goes_to_host(
    module: Module, function: Function | None, call: ast.Call, tainted: set[str]
) -> bool:
    if isinstance(call.func, ast.Attribute):
        to_cpu = call.func.attr == "to" and bool(call.args) and "cpu" in written(call.args[0])
        if call.func.attr in HOST or to_cpu:
            return is_whole(call.func.value, tainted)
    qualified = sites.qualified_name(module, call.func, function)
    given = any(is_whole(part, tainted) for part in call.args)
    return given and bool(HOST_MODULES.match(qualified))


def is_direct(taken: ast.expr, place: str) -> bool:
    """`torch.cat(xs).softmax(-1).cpu()`: everything moves at once, and with nothing else."""
    node = taken
    moves = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if not moves or node.func.attr not in ("cpu", "numpy", "tolist"):  # type: ignore[attr-defined]
        return False
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        joined = node.func.attr in ("cat", "concat", "stack", "vstack", "hstack")
        if joined and node.args:
            return written(node.args[0]) == place
        if node.func.attr not in NEUTRAL | HOST | {"argmax"}:
            return False
        node = node.func.value
    return False


def used_once(module: Module, function: Function | None, last: int, place: str) -> bool:
    """Whether nothing else after a row reads what was collected."""
    scope: ast.AST = function.node if function is not None else module.tree
    found = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name | ast.Attribute)
        and node.lineno > last
        and written(node) == place
    ]
    return len(found) == 1


def to_the_host(model: Model, found: Collected) -> Fix | None:
    if not found.fixable or isinstance(found.output, ast.Starred):
        return None
    edit = edits.append_call(model.module, found.output, ".cpu()")
    title = f"Collect `{short(model.module, found.output)}.cpu()`"
    return make_fix(title, edit, Safety.UNSAFE)
