"""Plants faults around the steps: ranks that see the same, loaders and copies made every time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from planting import Code, Edit, FunctionNode, Scope, Site, assigned, is_test, last_name, within

PARALLEL = re.compile(r"\bDistributedDataParallel\(|\bDDP\(")
EPOCH = re.compile(r"epoch", re.IGNORECASE)


def no_sync_deleted(code: Code) -> Iterator[Site]:
    """`with model.no_sync():` around a backward, in a file that speaks of it only once."""
    if code.text.count("no_sync") != 1 or not PARALLEL.search(code.text):
        return
    for node in code.nodes:
        if not isinstance(node, ast.With) or len(node.items) != 1:
            continue
        scope = code.scope(node)
        inside = [call for call, _ in code.backwards(scope) if within(call, node)]
        if inside and "no_sync" in ast.unparse(node.items[0].context_expr):
            yield Site(node, code.unwrap(node))


def epoch_untold(code: Code) -> Iterator[Site]:
    """The only `sampler.set_epoch(epoch)` of a file that makes the sampler and trains."""
    if code.text.count("set_epoch") != 1 or not trained_here(code):
        return
    if not any(is_shuffling(call) for call in code.calls):
        return
    for call in code.calls:
        statement = code.statement(call)
        if last_name(call.func) != "set_epoch" or not isinstance(statement, ast.Expr):
            continue
        if statement.value is call and code.loops(call) and not is_test(code, code.scope(call)):
            around = code.parents[statement]
            alone = isinstance(around, ast.If) and around.body == [statement] and not around.orelse
            yield Site(call, code.remove(around if alone else statement))  # type: ignore[arg-type]


def is_shuffling(call: ast.Call) -> bool:
    if last_name(call.func) != "DistributedSampler":
        return False
    given = [keyword.value for keyword in call.keywords if keyword.arg in ("shuffle", "seed")]
    return all(isinstance(value, ast.Constant) and value.value is True for value in given)


def trained_here(code: Code) -> bool:
    return any(code.backwards(scope) for scope in (code.tree, *code.functions))


def sampler_dropped(code: Code) -> Iterator[Site]:
    """`DataLoader(data, sampler=sampler)` of a training loop becomes `shuffle=True`."""
    if not PARALLEL.search(code.text):
        return
    samplers = {
        name
        for node in code.nodes
        if isinstance(node, ast.Assign) and "DistributedSampler(" in ast.unparse(node.value)
        for name in assigned(node)
    }
    for call in code.calls:
        if last_name(call.func) != "DataLoader" or is_test(code, code.scope(call)):
            continue
        given = {keyword.arg: keyword for keyword in call.keywords}
        sampler = given.get("sampler")
        statement = code.statement(call)
        if sampler is None or "shuffle" in given or None in given:
            continue
        if ast.unparse(sampler.value) not in samplers or not isinstance(statement, ast.Assign):
            continue
        if trains_over(code, code.scope(call), set(assigned(statement))):
            start = code.offset(sampler.lineno, sampler.col_offset)
            yield Site(call, [Edit(start, code.span(sampler.value)[1], "shuffle=True")])


def trains_over(code: Code, scope: Scope, loaders: set[str]) -> bool:
    """Whether a loop of the scope goes over a loader and backpropagates."""
    return any(
        isinstance(loop, ast.For) and loaders & names_in(loop.iter)
        for call, _ in code.backwards(scope)
        for loop in code.loops(call)
    )


def names_in(node: ast.AST) -> set[str]:
    return {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute)}


def loader_rebuilt(code: Code) -> Iterator[Site]:
    """`loader = DataLoader(..., num_workers=4)` in front of the epochs becomes their first line."""
    for call in code.calls:
        statement = code.statement(call)
        if last_name(call.func) != "DataLoader" or not isinstance(statement, ast.Assign):
            continue
        workers = [k.value for k in call.keywords if k.arg == "num_workers"]
        if len(workers) != 1 or statement.value is not call or is_test(code, code.scope(call)):
            continue
        if isinstance(workers[0], ast.Constant) and not workers[0].value:
            continue
        (name, *others), block = assigned(statement), code.block(statement)
        for loop in block[block.index(statement) + 1 :]:
            if not isinstance(loop, ast.For) or not EPOCH.search(ast.unparse(loop.target)):
                continue
            if others or not goes_over(code, loop, name) or rebinds(loop, call):
                continue
            between = block[block.index(statement) + 1 : block.index(loop)]
            if not any(name in names_in(other) for other in between):
                yield Site(call, code.move(statement, loop.body[0], behind=False))


def goes_over(code: Code, epochs: ast.For, name: str) -> bool:
    """Whether a loop inside of the epochs goes over a loader and trains."""
    backwards = [call for call, _ in code.backwards(code.scope(epochs))]
    return any(
        isinstance(loop, ast.For)
        and name in names_in(loop.iter)
        and any(within(call, loop) for call in backwards)
        for loop in ast.walk(epochs)
        if loop is not epochs
    )


def rebinds(loop: ast.For, made: ast.Call) -> bool:
    """Whether the loop changes what is given to the loader."""
    changed = {name for part in ast.walk(loop) for name in assigned(part)}
    return bool(changed & names_in(made)) or bool(names_in(loop.target) & names_in(made))


def copy_repeated(code: Code) -> Iterator[Site]:
    """`weights = table.to(device)` right in front of a training loop goes into it."""
    for call in code.calls:
        statement = code.statement(call)
        if last_name(call.func) not in ("to", "cuda") or not isinstance(statement, ast.Assign):
            continue
        if statement.value is not call or not isinstance(call.func, ast.Attribute):
            continue
        source, target = call.func.value, statement.targets[0]
        if not isinstance(source, ast.Name) or not isinstance(target, ast.Name):
            continue
        if source.id == target.id or code.roles.get(source.id) or "dtype" in ast.unparse(call):
            continue
        block = code.block(statement)
        for loop in block[block.index(statement) + 1 :]:
            if (
                isinstance(loop, ast.For)
                and target.id in names_in(loop)
                and not rebinds(loop, call)
            ):
                if any(within(one, loop) for one, _ in code.backwards(code.scope(call))):
                    yield Site(call, code.move(statement, loop.body[0], behind=False))
                break


def reads_added(code: Code) -> Iterator[Site]:
    """Three numbers of the loss are read behind each step."""
    if not re.search(r"\.cuda\(|\.to\([^)\n]*device", code.text):
        return
    for scope in (code.tree, *code.functions):
        steps, backwards = code.steps(scope), code.backwards(scope)
        if len(steps) != 1 or len(backwards) != 1 or is_test(code, scope):
            continue
        (step, _), (backward, loss) = steps[0], backwards[0]
        loops, statement = code.loops(step), code.statement(step)
        if not isinstance(loss, ast.Name) or not loops or code.loops(backward)[:1] != loops[:1]:
            continue
        if code.conditions(step, loops[0]) or not isinstance(statement, ast.Expr):
            continue
        if not isinstance(scope, FunctionNode) and not isinstance(code.parents[statement], ast.For):
            continue
        reads = f"{loss.id}.item(), {loss.id}.abs().item(), {loss.id}.sqrt().item()"
        yield Site(step, code.insert([f"print({reads})"], statement, True))
