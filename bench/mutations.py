"""The faults that can be planted: for each, where a text has room for it, and the edit.

Each operator yields a site only where the text itself shows that the edit makes the fault. Where it
does not show it (another switch of grad mode, a second zero_grad, a total that is reset), the site
is left out: what is planted must be a fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planting import (
    Code,
    Edit,
    FunctionNode,
    Scope,
    is_no_grad,
    last_name,
    receiver_of,
)

CLIPS = frozenset({"clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"})
CUTS = frozenset({"item", "detach"})


@dataclass(frozen=True, slots=True)
class Site:
    """Where a fault is planted and how."""

    node: ast.AST
    edits: list[Edit]


@dataclass(frozen=True, slots=True)
class Operator:
    name: str
    code: str
    what: str
    sites: Callable[[Code], Iterator[Site]]


# OOM101, OOM112: grad mode.


def no_grad_deleted(code: Code) -> Iterator[Site]:
    for node in code.nodes:
        if isinstance(node, ast.With | ast.AsyncWith):
            switches = [item for item in node.items if is_no_grad(item.context_expr)]
            if not switches or not evaluates(
                code, node, code.scope(node), switches[0].context_expr
            ):
                continue
            if len(node.items) == 1:
                yield Site(node, code.unwrap(node))
        elif isinstance(node, FunctionNode):
            for decorator in node.decorator_list:
                if is_no_grad(decorator) and evaluates(code, node, node, decorator):
                    row = decorator.lineno
                    begin, end = code.starts[row - 1], code.starts[decorator.end_lineno or row]
                    yield Site(node, [Edit(begin, end, "")])


def no_grad_unused(code: Code) -> Iterator[Site]:
    """`with torch.no_grad():` becomes a bare call in front of the same statements."""
    for site in no_grad_deleted(code):
        if isinstance(site.node, ast.With) and site.edits:
            header = site.edits[0]
            call = code.segment(site.node.items[0].context_expr)
            line = f"{code.indent(site.node)}{call}\n"
            yield Site(site.node, [Edit(header.start, header.end, line), *site.edits[1:]])


def evaluates(code: Code, region: ast.AST, scope: Scope, switch: ast.expr) -> bool:
    """Whether a network in evaluation mode runs forward there and only this switch stands by."""
    if "set_grad_enabled" in code.text or re.search(r"requires_grad(_\()?\s*=?\s*False", code.text):
        return False
    if code.off_at_callers(scope):
        return False
    inside = [call for call in code.calls_in(scope) if within(call, region)]
    if any(
        is_switched(code, call, switch) for call in inside if last_name(call.func) == "backward"
    ):
        return False
    networks = evaluated(code, scope)
    return any(
        ast.unparse(call.func).removesuffix(".forward") in networks
        and call.lineno > networks[ast.unparse(call.func).removesuffix(".forward")]
        and not is_switched(code, call, switch)
        and code.repeated(call)
        and not feeds_backward(code, scope, call)
        for call in inside
    )


def is_switched(code: Code, node: ast.AST, besides: ast.expr) -> bool:
    return any(switch is not besides for switch in code.switches(node))


def feeds_backward(code: Code, scope: Scope, call: ast.Call) -> bool:
    """Whether a backward follows in the same loop, so that the graph may be meant for it."""
    loops = code.loops(call)
    return any(
        other.lineno > call.lineno
        and "backward" in last_name(other.func)
        and code.loops(other)[:1] == loops[:1]
        for other in code.calls_in(scope)
    )


def evaluated(code: Code, scope: Scope) -> dict[str, int]:
    """Networks by text, with the row from which they are in evaluation mode in this scope."""
    found = {}
    for call in code.called(scope, "eval"):
        if not call.args:
            found.setdefault(ast.unparse(receiver_of(call)), call.lineno)
    if isinstance(scope, FunctionNode):
        names = [argument.arg for argument in (*scope.args.posonlyargs, *scope.args.args)]
        for call in code.callers(scope):
            above = {
                ast.unparse(receiver_of(other)): other.lineno
                for other in code.called(code.scope(call), "eval")
            }
            first = 1 if names[:1] == ["self"] else 0
            for name, argument in zip(names[first:], call.args, strict=False):
                if above.get(ast.unparse(argument), call.lineno) < call.lineno:
                    found.setdefault(name, scope.lineno)
    return found


def within(node: ast.AST, region: ast.AST) -> bool:
    assert isinstance(node, ast.expr | ast.stmt) and isinstance(region, ast.expr | ast.stmt)
    return region.lineno <= node.lineno and (node.end_lineno or 0) <= (region.end_lineno or 0)


# OOM102, OOM105: what outlives a step.


def detach_dropped(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        losses = graphs_of(code, scope)
        if not losses:
            continue
        for node in code.calls_in(scope):
            kept = uncut(node)
            if kept is None or ast.unparse(kept) not in losses or code.switches(node):
                continue
            loop = losses[ast.unparse(kept)]
            if is_kept(code, node, loop):
                yield Site(node, code.replace(node, code.segment(kept)))


def uncut(node: ast.Call) -> ast.expr | None:
    """What `loss.item()`, `loss.detach()`, `loss.detach().cpu().item()`, `float(loss)` cut."""
    if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1:
        return node.args[0] if isinstance(node.args[0], ast.Name | ast.Attribute) else None
    cut, inner = False, node
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        if inner.args or inner.func.attr not in {*CUTS, "cpu", "clone", "mean"}:
            return None
        cut = cut or inner.func.attr in CUTS
        inner = inner.func.value  # type: ignore[assignment]
    return inner if cut and isinstance(inner, ast.Name | ast.Attribute) else None


def graphs_of(code: Code, scope: Scope) -> dict[str, ast.AST | None]:
    """Losses that are backpropagated, and the terms that they add up, with the step's loop."""
    found: dict[str, ast.AST | None] = {}
    for call, loss in code.backwards(scope):
        loops = code.loops(call)
        for name in terms(code, scope, loss, 2):
            found[name] = loops[0] if loops else None
    for node in code.nodes:
        if isinstance(node, ast.Assign) and any(ast.unparse(t) in found for t in node.targets):
            cut = isinstance(node.value, ast.Call) and uncut(node.value) is not None
            if code.scope(node) is scope and cut:
                found.pop(ast.unparse(node.targets[0]), None)
    return found


def terms(code: Code, scope: Scope, loss: ast.expr, depth: int) -> Iterator[str]:
    """The loss by name, and the names that are added and scaled to make it."""
    if isinstance(loss, ast.BinOp):
        yield from terms(code, scope, loss.left, depth)
        if isinstance(loss.op, ast.Add | ast.Sub):
            yield from terms(code, scope, loss.right, depth)
    if not isinstance(loss, ast.Name | ast.Attribute):
        return
    text = ast.unparse(loss)
    if "loss" not in text.lower():
        return
    yield text
    made = [
        node.value
        for node in code.nodes
        if isinstance(node, ast.Assign)
        and code.scope(node) is scope
        and [ast.unparse(target) for target in node.targets] == [text]
    ]
    if depth and len(made) == 1:
        yield from terms(code, scope, made[0], depth - 1)


def is_kept(code: Code, node: ast.Call, loop: ast.AST | None) -> bool:
    """Whether the value goes straight into a total or list that was there before the loop."""
    value: ast.AST = node
    parent = code.parents[value]
    while isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add | ast.Mult | ast.Div):
        value, parent = parent, code.parents[parent]
    if isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.Add):
        target: ast.expr = parent.target
    elif isinstance(parent, ast.Call) and last_name(parent.func) == "append":
        if parent.args != [value]:
            return False
        target = receiver_of(parent)
    else:
        return False
    if any(not isinstance(c.test, ast.Constant) for c in code.conditions(node, loop)):
        return False
    return outlives(code, target, node, loop)


def outlives(code: Code, target: ast.expr, node: ast.Call, loop: ast.AST | None) -> bool:
    """Whether a total or list is made outside the loop of the step and not inside it."""
    while isinstance(target, ast.Subscript):
        target = target.value
    text, scope = ast.unparse(target), code.scope(node)
    if loop is None:
        # The function is one step: what it keeps on its object stays.
        if not text.startswith("self.") or not code.repeated(node):
            return False
        return not any(text in assigned(one) for one in code.nodes if code.scope(one) is scope)
    makers = [one for one in code.nodes if text in assigned(one) and code.scope(one) is scope]
    inside = [one for one in makers if any(outer is loop for outer in code.above(one))]
    return not inside and (bool(makers) or text.startswith("self."))


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


def state_detach_dropped(code: Code) -> Iterator[Site]:
    """`h = h.detach()` at the head of a step that makes the next `h` from this one."""
    for node in code.nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        name, loops = ast.unparse(node.targets[0]), code.loops(node)
        text = ast.unparse(node.value)
        cut = "detach" in text or "repackage" in text
        if not loops or not cut or not isinstance(node.targets[0], ast.Name):
            continue
        if not re.search(rf"\b{re.escape(name)}\b", text) or code.conditions(node, loops[0]):
            continue
        carried = any(
            isinstance(one, ast.Assign)
            and one is not node
            and name in assigned(one)
            and isinstance(one.value, ast.Call)
            and any(ast.unparse(argument) == name for argument in one.value.args)
            for one in ast.walk(loops[0])
        )
        walked = any(
            code.loops(call)[:1] == loops[:1] for call, _ in code.backwards(code.scope(node))
        )
        if carried and walked:
            yield Site(node, code.remove(node))


def graph_retained(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        backwards = code.backwards(scope)
        if len(backwards) != 1 or is_test(code, scope):
            continue
        call, loss = backwards[0]
        loops, text = code.loops(call), ast.unparse(loss)
        if re.search(r"autograd\.grad\b|retain_graph|create_graph|torch\.func", code.text):
            continue
        if call.keywords or (call.args and ast.unparse(loss) == ast.unparse(receiver_of(call))):
            continue
        made = [one for one in code.nodes if text in assigned(one) and code.scope(one) is scope]
        inside = loops[0] if loops else scope
        if not made or not all(any(o is inside for o in code.above(one)) for one in made):
            continue
        if not code.repeated(call) or not code.steps(scope):
            continue
        start = code.span(call)[1] - 1
        separator = ", " if call.args else ""
        yield Site(call, [Edit(start, start, f"{separator}retain_graph=True")])


def is_test(code: Code, scope: Scope) -> bool:
    """Whether memory does not matter: a test may keep graphs and gradients to look at them."""
    folders = {"test", "tests", "testing", "test_utils"}
    name = getattr(scope, "name", "")
    of_test = name.startswith("test") or code.path.name.startswith("test_")
    return of_test or bool(folders & set(code.path.parts)) or code.path.stem.endswith("_test")


# OOM201, OOM206: windows.


def division_dropped(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        backwards = code.backwards(scope)
        windows = set(window_sizes(code, scope))
        if len(backwards) != 1 or not windows or divides_itself(backwards[0][0]):
            continue
        divisions = [
            one
            for one in code.nodes
            if isinstance(one, ast.BinOp | ast.AugAssign)
            and isinstance(one.op, ast.Div)
            and ast.unparse(one.right if isinstance(one, ast.BinOp) else one.value) in windows
            and code.scope(one) is scope
        ]
        if len(divisions) != 1:
            continue
        call, loss = backwards[0]
        division = divisions[0]
        if division.lineno > call.lineno or code.conditions(call, code.loops(call)[0]):
            continue
        if isinstance(division, ast.AugAssign):
            if ast.unparse(division.target) == ast.unparse(loss):
                yield Site(division, code.remove(division))
            continue
        statement = code.statement(division)
        if within(division, call) or ast.unparse(loss) in assigned(statement):
            yield Site(division, code.replace(division, code.segment(division.left)))


def divides_itself(backward: ast.Call) -> bool:
    """`accelerator.backward(loss)`, `engine.backward(loss)`: these know the window, too."""
    return bool(backward.args) and last_name(receiver_of(backward)) != "loss"


def window_sizes(code: Code, scope: Scope) -> Iterator[str]:
    """What a counter is taken modulo of where an optimizer steps only then."""
    backwards = code.backwards(scope)
    for step, _ in code.steps(scope):
        loops = code.loops(step)
        if not loops or not any(code.loops(call)[:1] == loops[:1] for call, _ in backwards):
            continue
        for condition in code.conditions(step, loops[0]):
            if any(within(call, condition) for call, _ in backwards):
                continue
            for node in ast.walk(condition.test):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
                    yield ast.unparse(node.right)


def counter_shifted(code: Code) -> Iterator[Site]:
    """`(i + 1) % n == 0` becomes `i % n == 0` where `i` counts from zero."""
    for scope in (code.tree, *code.functions):
        sizes = set(window_sizes(code, scope))
        tests = [
            node
            for node in code.nodes
            if isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Mod)
            and ast.unparse(node.right) in sizes
            and code.scope(node) is scope
        ]
        if len(tests) != 1:
            continue
        test = tests[0]
        counter = test.left
        if (
            isinstance(counter, ast.BinOp)
            and isinstance(counter.op, ast.Add)
            and isinstance(counter.right, ast.Constant)
            and counter.right.value == 1
            and isinstance(counter.left, ast.Name)
            and counts_from_zero(code, test, counter.left.id)
        ):
            begin, end = code.span(test)
            yield Site(test, [Edit(begin, end, f"{counter.left.id} % {code.segment(test.right)}")])


def counts_from_zero(code: Code, node: ast.AST, name: str) -> bool:
    for loop in code.loops(node):
        if isinstance(loop, ast.For) and isinstance(loop.iter, ast.Call):
            made = last_name(loop.iter.func)
            target = loop.target
            first = target.elts[0] if isinstance(target, ast.Tuple) else target
            if ast.unparse(first) == name:
                single = len(loop.iter.args) == 1 and not loop.iter.keywords
                return made in ("enumerate", "range") and single
    return False


# OOM202, OOM203, OOM214: zeroing.


def zeroings(code: Code, scope: Scope) -> list[tuple[ast.Call, str]]:
    return [(call, ast.unparse(receiver_of(call))) for call in code.called(scope, "zero_grad")]


def own_steps(code: Code) -> Iterator[tuple[Scope, ast.Call, str, ast.Call]]:
    """Steps with the one backward before them and the one zero_grad, all in one loop."""
    for scope in (code.tree, *code.functions):
        steps, backwards = code.steps(scope), code.backwards(scope)
        for step, optimizer in steps:
            zeros = [call for call, text in zeroings(code, scope) if text == optimizer]
            same = [one for one, text in steps if text == optimizer]
            if len(zeros) != 1 or len(same) != 1 or len(backwards) != 1:
                continue
            backward = backwards[0][0]
            around = code.loops(backward)[:1]
            if step.lineno > backward.lineno and code.repeated(backward):
                if code.loops(step)[:1] == around == code.loops(zeros[0])[:1]:
                    yield scope, step, optimizer, zeros[0]


def zero_moved(code: Code) -> Iterator[Site]:
    for scope, step, _, zero in own_steps(code):
        statement, target = code.statement(zero), code.statement(step)
        backward = code.backwards(scope)[0][0]
        if statement is target or not isinstance(statement, ast.Expr):
            continue
        if step.args and step.args[0] is not None and code.role(receiver_of(step)) == "optimizer":
            continue
        outer = code.conditions(step, (code.loops(step) or [scope])[0])
        if any(within(backward, one) and not within(zero, one) for one in outer):
            continue
        if not isinstance(target, ast.Expr | ast.Assign):
            continue
        yield Site(step, code.move(statement, target, behind=False))


ZEROED_OTHERWISE = re.compile(
    r"\.grad\s*=\s*None|grad\.zero_\(|grad\.data\.zero_|dist_autograd|def zero_grad|reset_grad"
)


def zero_deleted(code: Code) -> Iterator[Site]:
    if ZEROED_OTHERWISE.search(code.text):
        return
    everywhere = [
        ast.unparse(receiver_of(call))
        for call in code.calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad"
    ]
    stepped = {text for scope in (code.tree, *code.functions) for _, text in code.steps(scope)}
    for _, _, optimizer, zero in own_steps(code):
        if everywhere.count(optimizer) != 1 or any(text not in stepped for text in everywhere):
            continue
        loops = code.loops(zero)
        makers = [one for one in code.nodes if optimizer in assigned(one)]
        if loops and any(any(outer is loops[0] for outer in code.above(m)) for m in makers):
            continue
        statement = code.statement(zero)
        if isinstance(statement, ast.Expr) and statement.value is zero:
            yield Site(zero, code.remove(statement))


def gradients_kept(code: Code) -> Iterator[Site]:
    for scope, _, _, zero in own_steps(code):
        if not zero.args and not zero.keywords and not is_test(code, scope):
            at = code.span(zero)[1] - 1
            yield Site(zero, [Edit(at, at, "set_to_none=False")])


# OOM204, OOM208, OOM211, OOM401: order and cadence.


def clips(code: Code, scope: Scope) -> Iterator[tuple[ast.stmt, ast.Call]]:
    """Clips that stand alone, with the `if` around them where it holds nothing else."""
    for call in code.calls_in(scope):
        if last_name(call.func) not in CLIPS or "inf" in ast.unparse(call):
            continue
        statement = code.statement(call)
        if not isinstance(statement, ast.Expr):
            continue
        parent = code.parents[statement]
        if isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse:
            if not (
                isinstance(code.parents[parent], ast.If) and parent in code.parents[parent].orelse
            ):  # type: ignore[attr-defined]
                statement = parent
        yield statement, call


def clip_delayed(code: Code) -> Iterator[Site]:
    yield from clip_moved(code, behind=True)


def clip_hurried(code: Code) -> Iterator[Site]:
    yield from clip_moved(code, behind=False)


def clip_moved(code: Code, behind: bool) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        steps, backwards = code.steps(scope), code.backwards(scope)
        found = list(clips(code, scope))
        if len(steps) != 1 or len(backwards) != 1 or len(found) != 1:
            continue
        step, backward = steps[0][0], backwards[0][0]
        statement, clip = found[0]
        if not backward.lineno < clip.lineno < step.lineno or not code.repeated(step):
            continue
        if not code.loops(clip)[:1] == code.loops(step)[:1] == code.loops(backward)[:1]:
            continue
        target = code.statement(step if behind else backward)
        if isinstance(target, ast.Expr | ast.Assign) and not within(statement, target):
            if code.block(statement) is code.block(target):
                yield Site(clip, code.move(statement, target, behind))


def scheduler_hurried(code: Code) -> Iterator[Site]:
    """`scheduler.step()` in front of the optimizer's step, or of the loop that steps."""
    for scope in (code.tree, *code.functions):
        steps = code.steps(scope)
        for call in code.called(scope, "step"):
            made = code.roles.get(ast.unparse(receiver_of(call)))
            if made != "scheduler" or call.args or call.keywords:
                continue
            statement = code.statement(call)
            if not isinstance(statement, ast.Expr) or len(steps) != 1 or not code.loops(call):
                continue
            block = code.block(statement)
            for other in block[: block.index(statement)]:
                if within(steps[0][0], other) and isinstance(other, ast.Expr | ast.For):
                    yield Site(call, code.move(statement, other, behind=False))


def train_mode_deleted(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        for call in code.called(scope, "train"):
            network = ast.unparse(receiver_of(call))
            statement = code.statement(call)
            if call.args or call.keywords or not isinstance(statement, ast.Expr):
                continue
            backwards = [one for one, _ in code.backwards(scope) if one.lineno > call.lineno]
            if not backwards or statement.value is not call:
                continue
            if not forwards(code, scope, network, call):
                continue
            if evaluates_between(code, scope, network, call):
                yield Site(call, code.remove(statement))


def forwards(code: Code, scope: Scope, network: str, call: ast.Call) -> bool:
    names = {network, f"{network}.forward", f"{network}.training_step"}
    return any(
        ast.unparse(one.func) in names and one.lineno > call.lineno and not code.switches(one)
        for one in code.calls_in(scope)
    )


def evaluates_between(code: Code, scope: Scope, network: str, call: ast.Call) -> bool:
    """Whether an epoch loop sets evaluation mode and only this call takes it back."""
    loops = code.loops(call)
    if loops:
        evals = [
            one for one in code.called(scope, "eval") if ast.unparse(receiver_of(one)) == network
        ]
        trains = [
            one for one in code.called(scope, "train") if ast.unparse(receiver_of(one)) == network
        ]
        here = [one for one in evals if code.loops(one)[:1] == loops[:1]]
        return len(trains) == 1 and bool(here) and not code.conditions(here[0], loops[0])
    for outer in code.callers(scope):
        around = code.loops(outer)
        if not around or any(code.called(code.scope(outer), "train")):
            continue
        for other in code.calls_in(code.scope(outer)):
            if code.loops(other)[:1] != around[:1] or code.conditions(other, around[0]):
                continue
            for function in code.functions:
                if function.name == last_name(other.func) and function is not scope:
                    if sets_eval(code, function, outer, other, network):
                        return True
    return False


def sets_eval(
    code: Code, function: FunctionNode, training: ast.Call, call: ast.Call, network: str
) -> bool:
    if code.called(function, "train"):
        return False
    for one in code.called(function, "eval"):
        text = ast.unparse(receiver_of(one))
        if text == network and text.startswith("self"):
            return True
        names = [argument.arg for argument in function.args.args]
        if text in names and len(call.args) > names.index(text):
            given = ast.unparse(call.args[names.index(text)])
            if given in [ast.unparse(argument) for argument in training.args]:
                return True
    return False


def cache_emptied(code: Code) -> Iterator[Site]:
    if not re.search(r"^import torch$", code.text, re.MULTILINE):
        return
    for scope in (code.tree, *code.functions):
        for step, _ in code.steps(scope)[:1]:
            loops = code.loops(step)
            statement = code.statement(step)
            if not loops or code.conditions(step, loops[0]) or not isinstance(statement, ast.Expr):
                continue
            if any(code.loops(call)[:1] == loops[:1] for call, _ in code.backwards(scope)):
                yield Site(step, code.insert(["torch.cuda.empty_cache()"], statement, True))


# OOM301 to OOM305: scaled gradients.


def scaled(code: Code, scope: Scope, name: str) -> list[ast.Call]:
    return [call for call in code.called(scope, name) if code.role(receiver_of(call)) == "scaler"]


def plain(code: Code, call: ast.Call) -> bool:
    statement = code.statement(call)
    return isinstance(statement, ast.Expr) and statement.value is call


def unscale_deleted(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        calls = scaled(code, scope, "unscale_")
        for call in calls:
            same = [one for one in calls if text_of_arguments(one) == text_of_arguments(call)]
            clipped = [one for _, one in clips_at(code, scope) if one.lineno > call.lineno]
            before = [one for one, _ in code.backwards(scope) if one.lineno < call.lineno]
            if len(same) == 1 and plain(code, call) and clipped and before:
                yield Site(call, code.remove(code.statement(call)))


def clips_at(code: Code, scope: Scope) -> Iterator[tuple[ast.stmt, ast.Call]]:
    for call in code.calls_in(scope):
        if last_name(call.func) in CLIPS:
            yield code.statement(call), call


def unscale_doubled(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        for call in scaled(code, scope, "unscale_"):
            if plain(code, call) and [
                o for o in scaled(code, scope, "step") if o.lineno > call.lineno
            ]:
                statement = code.statement(call)
                yield Site(call, code.insert([code.segment(statement)], statement, True))


def text_of_arguments(call: ast.Call) -> str:
    return ", ".join(ast.unparse(argument) for argument in call.args)


def update_deleted(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        steps = scaled(code, scope, "step")
        for call in scaled(code, scope, "update"):
            text = ast.unparse(receiver_of(call))
            everywhere = [
                one
                for other in (code.tree, *code.functions)
                for one in scaled(code, other, "update")
                if ast.unparse(receiver_of(one)) == text
            ]
            if len(everywhere) == 1 and plain(code, call) and steps and code.repeated(steps[0]):
                yield Site(call, code.remove(code.statement(call)))


def scaler_bypassed(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        unscaled = {text_of_arguments(call) for call in scaled(code, scope, "unscale_")}
        for call in scaled(code, scope, "step"):
            text = text_of_arguments(call)
            if len(call.args) != 1 or text in unscaled or not scaled(code, scope, "scale"):
                continue
            yield Site(call, code.replace(call, f"{code.segment(call.args[0])}.step()"))


def update_hurried(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        steps, updates = scaled(code, scope, "step"), scaled(code, scope, "update")
        if len(updates) != 1 or not plain(code, updates[0]):
            continue
        before = [one for one in steps if one.lineno < updates[0].lineno and plain(code, one)]
        if len({text_of_arguments(one) for one in before}) < 2:
            continue
        block = code.block(code.statement(updates[0]))
        if all(code.statement(one) in block for one in before):
            yield Site(
                updates[0],
                code.move(code.statement(updates[0]), code.statement(before[0]), behind=True),
            )


# OOM406, OOM210: what is loaded and kept.


def map_location_dropped(code: Code) -> Iterator[Site]:
    for scope in (code.tree, *code.functions):
        calls = code.calls_in(scope)
        for call in calls:
            if ast.unparse(call.func) != "torch.load":
                continue
            given = [keyword for keyword in call.keywords if keyword.arg == "map_location"]
            restored = [
                ast.unparse(receiver_of(one))
                for one in code.called(scope, "load_state_dict")
                if one.lineno >= call.lineno
            ]
            live = [
                one
                for one in calls
                if isinstance(one.func, ast.Attribute)
                and one.func.attr in ("to", "cuda")
                and one.lineno < call.lineno
                and (
                    ast.unparse(one.func.value) in restored
                    or set(assigned(code.statement(one))) & set(restored)
                )
            ]
            if len(given) != 1 or not live or len(call.args) != 1 or len(call.keywords) != 1:
                continue
            yield Site(call, [Edit(code.span(call.args[0])[1], code.span(call)[1] - 1, "")])


def copy_dropped(code: Code) -> Iterator[Site]:
    """`best = copy.deepcopy(model.state_dict())` in a loop that trains the model."""
    for call in code.calls:
        if last_name(call.func) != "deepcopy" or len(call.args) != 1:
            continue
        kept = call.args[0]
        if not isinstance(kept, ast.Call) or last_name(kept.func) != "state_dict":
            continue
        statement = code.statement(call)
        loops = code.loops(call)
        if not isinstance(statement, ast.Assign) or statement.value is not call or not loops:
            continue
        if any(within(one, loops[-1]) for one, _ in code.backwards(code.scope(call))):
            yield Site(call, code.replace(call, code.segment(kept)))


OPERATORS = (
    Operator(
        "no-grad-deleted", "OOM101", "`no_grad` around an evaluation deleted", no_grad_deleted
    ),
    Operator("no-grad-unused", "OOM112", "`with no_grad():` becomes a bare call", no_grad_unused),
    Operator("detach-dropped", "OOM102", "`total += loss.item()` keeps `loss`", detach_dropped),
    Operator("state-detach-dropped", "OOM105", "`h = h.detach()` deleted", state_detach_dropped),
    Operator("graph-retained", "OOM106", "`retain_graph=True` in a lone backward", graph_retained),
    Operator("division-dropped", "OOM201", "`loss / n` becomes `loss`", division_dropped),
    Operator("zero-before-step", "OOM202", "`zero_grad` between backward and step", zero_moved),
    Operator("zero-deleted", "OOM203", "the only `zero_grad` deleted", zero_deleted),
    Operator("clip-after-step", "OOM204", "the clip behind the step", clip_delayed),
    Operator("clip-before-backward", "OOM204", "the clip before the backward", clip_hurried),
    Operator("counter-shifted", "OOM206", "`(i + 1) % n` becomes `i % n`", counter_shifted),
    Operator("scheduler-first", "OOM208", "the scheduler before the optimizer", scheduler_hurried),
    Operator("copy-dropped", "OOM210", "`deepcopy(state_dict())` without the copy", copy_dropped),
    Operator("train-deleted", "OOM211", "`model.train()` of an epoch deleted", train_mode_deleted),
    Operator("gradients-kept", "OOM214", "`zero_grad(set_to_none=False)`", gradients_kept),
    Operator("unscale-deleted", "OOM301", "`unscale_` before a clip deleted", unscale_deleted),
    Operator("update-deleted", "OOM302", "`scaler.update()` deleted", update_deleted),
    Operator("scaler-bypassed", "OOM303", "`scaler.step(o)` becomes `o.step()`", scaler_bypassed),
    Operator("unscale-doubled", "OOM304", "`unscale_` twice", unscale_doubled),
    Operator("update-hurried", "OOM305", "`update` between two steps", update_hurried),
    Operator("cache-emptied", "OOM401", "`empty_cache()` behind the step", cache_emptied),
    Operator("map-location-dropped", "OOM406", "`map_location` dropped", map_location_dropped),
)


def planted(code: Code, operator: Operator) -> Iterator[tuple[Site, str]]:
    """Every site of an operator with the text that has the fault; it parses and is another text."""
    for site in operator.sites(code):
        text = code.apply(site.edits)
        try:
            changed = ast.dump(ast.parse(text)) != ast.dump(code.tree)
        except SyntaxError:
            continue
        if changed:
            yield site, text
