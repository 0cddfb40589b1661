"""Plants steps in the wrong order: undivided windows, gradients erased or kept, late clips."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from planting import (
    CLIPS,
    Code,
    Edit,
    FunctionNode,
    Scope,
    Site,
    assigned,
    is_test,
    last_name,
    receiver_of,
    within,
)


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
    if re.search(r"\.last_epoch\s*=[^=]", code.text):
        # A schedule that is set one back is meant to advance first.
        return
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


# Layers that behave in another way in evaluation mode.
MODAL = re.compile(
    r"drop|batch_?norm|instance_?norm|pretrained|torchvision\.models|timm|transformer", re.I
)


def has_mode(code: Code) -> bool:
    """Whether the networks of a file may hold a layer that asks for the mode."""
    bases = {last_name(base) for n in code.nodes if isinstance(n, ast.ClassDef) for base in n.bases}
    made_here = "Module" in bases or any(last_name(c.func) == "Sequential" for c in code.calls)
    return not made_here or MODAL.search(code.text) is not None


def train_mode_deleted(code: Code) -> Iterator[Site]:
    if not has_mode(code) or re.search(r"requires_grad(_\()?\s*=?\s*False", code.text):
        # Without such a layer nothing changes, and who freezes layers may mean the mode.
        return
    for scope in (code.tree, *code.functions):
        for call in code.called(scope, "train"):
            network = ast.unparse(receiver_of(call))
            statement = code.statement(call)
            if call.args or call.keywords or not isinstance(statement, ast.Expr):
                continue
            backwards = [one for one, _ in code.backwards(scope) if one.lineno > call.lineno]
            if not backwards or statement.value is not call:
                continue
            if not forwards(code, scope, network, call) or is_pretrained(code, network):
                continue
            if evaluates_between(code, scope, network, call):
                yield Site(call, code.remove(statement))


def is_pretrained(code: Code, network: str) -> bool:
    """Whether a network comes in evaluation mode, so that its author may train it in that mode."""
    return any(
        isinstance(node, ast.Assign)
        and network in assigned(node)
        and "from_pretrained" in ast.unparse(node.value)
        for node in code.nodes
    )


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
        if is_test(code, scope):
            # The time of a few steps does not matter there.
            continue
        for step, _ in code.steps(scope)[:1]:
            loops = code.loops(step)
            statement = code.statement(step)
            if not loops or code.conditions(step, loops[0]) or not isinstance(statement, ast.Expr):
                continue
            if any(code.loops(call)[:1] == loops[:1] for call, _ in code.backwards(scope)):
                yield Site(step, code.insert(["torch.cuda.empty_cache()"], statement, True))
