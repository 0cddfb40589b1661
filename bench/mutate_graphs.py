"""Plants graphs and tensors that are kept: grad mode on, values not detached, copies not made."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from planting import (
    Code,
    Edit,
    FunctionNode,
    Scope,
    Site,
    assigned,
    is_no_grad,
    is_test,
    last_name,
    receiver_of,
    within,
)

CUTS = frozenset({"item", "detach"})


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
                and is_on_the_way(code, one, call)
                and "memory_format" not in ast.unparse(one)
                and one.lineno < call.lineno
                and (
                    ast.unparse(one.func.value) in restored
                    or set(assigned(code.statement(one))) & set(restored)
                )
            ]
            if len(given) != 1 or not live or len(call.args) != 1 or len(call.keywords) != 1:
                continue
            yield Site(call, [Edit(code.span(call.args[0])[1], code.span(call)[1] - 1, "")])


def is_on_the_way(code: Code, one: ast.Call, call: ast.Call) -> bool:
    """Whether whoever comes to a call has come past another one: it is in no other branch."""
    around = {call, *code.above(call)}
    return any(part in around for part in code.block(code.statement(one)))


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
