"""Plants faults of networks and losses: gradients of the frozen, activations applied twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mutate_steps import window_sizes
from planting import Code, Edit, Scope, Site, is_no_grad, is_test, last_name, receiver_of, within

FROZEN_NAME = re.compile(r"teacher|target_|_target|_ema\b|\bema_|momentum|frozen|ref_", re.I)


def teacher_recorded(code: Code) -> Iterator[Site]:
    """`with no_grad(): out = teacher(x)` in a step becomes the forward alone."""
    if "set_grad_enabled" in code.text or re.search(r"requires_grad(_\()?\s*=?\s*False", code.text):
        return
    for node in code.nodes:
        if not isinstance(node, ast.With) or len(node.items) != 1 or len(node.body) != 1:
            continue
        made, loops = node.body[0], code.loops(node)
        if not is_no_grad(node.items[0].context_expr) or not isinstance(made, ast.Assign):
            continue
        if len(code.switches(made)) != 1 or not isinstance(made.value, ast.Call) or not loops:
            continue
        network = ast.unparse(made.value.func)
        scope = code.scope(node)
        if not FROZEN_NAME.search(network) or code.off_at_callers(scope):
            continue
        trained = [one for one, _ in code.backwards(scope) if one.lineno > node.lineno]
        if trained and code.loops(trained[0])[:1] == loops[:1]:
            if "detach" not in ast.unparse(made.value):
                yield Site(node, code.unwrap(node))


def freeze_assigned(code: Code) -> Iterator[Site]:
    """`network.requires_grad_(False)` becomes an attribute that nobody reads."""
    for call in code.calls:
        statement = code.statement(call)
        if last_name(call.func) != "requires_grad_" or not isinstance(statement, ast.Expr):
            continue
        if statement.value is not call or [ast.unparse(a) for a in call.args] != ["False"]:
            continue
        network = ast.unparse(receiver_of(call))
        frozen = code.text.count(f"{network}.requires_grad_(")
        by_hand = re.search(r"\.requires_grad\s*=[^=]", code.text)
        if is_network(code, network) and frozen == 1 and not by_hand:
            text = f"{code.segment(receiver_of(call))}.requires_grad = False"
            yield Site(call, code.replace(call, text))


def is_network(code: Code, network: str) -> bool:
    """Whether the file uses something as a network: parameters, modes, weights."""
    methods = ("parameters", "eval", "train", "load_state_dict", "state_dict", "named_parameters")
    return any(f"{network}.{method}(" in code.text for method in methods)


def losses_of(code: Code, scope: Scope, function: str, cls: str) -> Iterator[ast.Call]:
    """Calls of a loss, by the function or by an object of the class, that a backward follows."""
    made = {
        name
        for node in code.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) == cls
        and not node.value.keywords
        and not node.value.args
        and (code.scope(node) in (scope, code.tree) or isinstance(node.targets[0], ast.Attribute))
        for name in map(ast.unparse, node.targets)
    }
    for call in code.calls_in(scope):
        known = last_name(call.func) == function and last_name(call.func) != ast.unparse(call.func)
        if not known and ast.unparse(call.func) not in made:
            continue
        later = [one for one, _ in code.backwards(scope) if one.lineno >= call.lineno]
        if len(call.args) >= 2 and later and not is_test(code, scope):
            if isinstance(call.args[0], ast.Name) and not code.switches(call):
                yield call


def softmax_inserted(code: Code) -> Iterator[Site]:
    if "oftmax" in code.text:
        return  # it may be there already
    for scope in (code.tree, *code.functions):
        for call in losses_of(code, scope, "cross_entropy", "CrossEntropyLoss"):
            yield Site(call, activated(code, call, ".softmax(1)"))


def sigmoid_inserted(code: Code) -> Iterator[Site]:
    if re.search(r"sigmoid", code.text, re.IGNORECASE):
        return
    for scope in (code.tree, *code.functions):
        name = "binary_cross_entropy_with_logits"
        for call in losses_of(code, scope, name, "BCEWithLogitsLoss"):
            yield Site(call, activated(code, call, ".sigmoid()"))


def activated(code: Code, call: ast.Call, method: str) -> list[Edit]:
    return code.replace(call.args[0], f"{code.segment(call.args[0])}{method}")


def schedule_hurried(code: Code) -> Iterator[Site]:
    """`scheduler.step()` under the window's `if` goes behind it: on every micro-batch."""
    for scope in (code.tree, *code.functions):
        sizes = set(window_sizes(code, scope))
        for call in code.called(scope, "step"):
            text = ast.unparse(receiver_of(call))
            statement, loops = code.statement(call), code.loops(call)
            if code.roles.get(text) != "scheduler" or call.args or call.keywords or not loops:
                continue
            window = code.parents[statement]
            if not isinstance(window, ast.If) or code.parents[window] is not loops[0]:
                continue
            if not any(f"% {size}" in ast.unparse(window.test) for size in sizes):
                continue
            if counted_in_micro_batches(code, text) or len(code.block(statement)) == 1:
                continue
            yield Site(call, code.move(statement, window, behind=True))


def counted_in_micro_batches(code: Code, scheduler: str) -> bool:
    """Whether a schedule has the length of a loader, so that it was stepped too seldom."""
    made = [
        node.value
        for node in code.nodes
        if isinstance(node, ast.Assign) and scheduler in map(ast.unparse, node.targets)
    ]
    texts = [ast.unparse(value) for value in made]
    return any("len(" in text and "/" not in text for text in texts)


AUTOCAST = re.compile(r"\btorch\.amp\.(autocast|GradScaler)\((device_type=)?[\"']cuda[\"'](, )?")


def amp_renamed(code: Code) -> Iterator[Site]:
    """`torch.amp.autocast("cuda")` becomes `torch.cuda.amp.autocast()`."""
    for call in code.calls:
        found = AUTOCAST.match(code.segment(call))
        if found is not None and within(call, code.statement(call)):
            start = code.span(call)[0]
            yield Site(call, [Edit(start, start + found.end(), f"torch.cuda.amp.{found[1]}(")])
