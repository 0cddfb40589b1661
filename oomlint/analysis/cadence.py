"""How often a place in a file runs: on every training or evaluation step, or more seldom."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from oomlint.analysis import knowledge, sites
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Function, Module, written
from oomlint.analysis.nodes import LEAVES, children
from oomlint.analysis.sites import Site

Loop = ast.For | ast.AsyncFor | ast.While
# What may run never or often where the code around it runs once.
OF_ITS_OWN = (*sites.LOOPS, *sites.SCOPES)

MAX_CALLS = 3
# Methods that a framework calls once for every batch.
STEP_HOOK = re.compile(
    r"(training|validation|test|predict|prediction|train|val|valid|eval|optimizer|optimize)_step"
    r"|(train|optimize|eval)_(batch|one_step|one_batch|parameters)"
    r"|on_(train|training|validation|test|predict|eval|prediction)_(batch|step)_(start|end|begin)"
    r"|on_(step|substep|batch)_(start|end|begin)|(before|after)_(train|val|test)_iter"
    r"|on_(before_optimizer_step|after_backward|before_backward|before_zero_grad)"
)
# Conditions on the device are true in every step of a run or in none.
DEVICE_TEST = re.compile(r"is_available\(|cuda|gpu|mps|xpu|npu|hpu|device", re.IGNORECASE)
# Conditions that hold now and then, or where somebody asked for it.
SELDOM_TEST = re.compile(
    r"%|[<>]|memory|reserved|allocated|cache|clear|empty|flush|free|collect|gc\b|first|last|epoch"
    r"|interval|every|freq|debug|step|iter|batch|idx|level|low|count",
    re.IGNORECASE,
)
SCHEDULE = re.compile(r"sched|prof|env|sampler|timer|bar\b|logger|tracker", re.IGNORECASE)


def once_a_step(module: Module, node: ast.AST, function: Function | None, depth: int = 0) -> bool:
    """Whether a call certainly runs on every step: nothing but the device decides about it."""
    if depth > MAX_CALLS or not is_unconditional(module, node):
        return False
    loops = sites.loops_around(module, node)
    if loops:
        return is_step_loop(module, loops[0], function)
    if function is None:
        return False
    if STEP_HOOK.fullmatch(function.name) and function.owner is not None:
        return True
    callers = calls_of(module, function)
    if not callers:
        return is_engine_step(module, function)
    return all(once_a_step(module, site.node, site.function, depth + 1) for site in callers)


def is_engine_step(module: Module, function: Function) -> bool:
    """Whether ignite calls a function for every batch: as an engine's update or as a handler."""
    for decorator in function.decorators:
        text = written(decorator)
        if "ITERATION_" in text and "every=" not in text and "once=" not in text:
            return True
    return any(
        len(site.node.args) == 1 and written(site.node.args[0]) == function.name
        for site in sites.called(module, "Engine")
    )


def is_unconditional(module: Module, node: ast.AST) -> bool:
    """Whether a node runs in every pass through the loop or function around it."""
    child = node
    for parent in module.enclosing(node):
        if isinstance(parent, ast.ExceptHandler | ast.BoolOp | ast.Lambda | ast.Match):
            return False
        if isinstance(parent, ast.IfExp) and not is_tensor_arm(parent, child):
            return False
        if isinstance(parent, ast.If) and child is not parent.test and not of_device(parent.test):
            return False
        body = getattr(parent, "body", None)
        if isinstance(body, list) and child in body and skips(body[: body.index(child)]):
            return False
        if isinstance(parent, sites.LOOPS):
            return child in parent.body
        if isinstance(parent, sites.SCOPES):
            return True
        if isinstance(parent, ast.Try) and child in parent.orelse:
            return False
        child = parent
    return True


def is_tensor_arm(choice: ast.IfExp, child: ast.AST) -> bool:
    """`norm.item() if isinstance(norm, torch.Tensor) else norm`: the same arm in every pass."""
    text = written(choice.test)
    return child is choice.body and text.startswith("isinstance(") and "Tensor" in text


def of_device(test: ast.expr) -> bool:
    text = written(test)
    return bool(DEVICE_TEST.search(text)) and not SELDOM_TEST.search(
        re.sub(r"[\w.]*is_available\(\)", "", text)
    )


def skips(statements: list[ast.stmt]) -> bool:
    """Whether an earlier statement leaves the loop or function on most passes."""
    for statement in statements:
        if isinstance(statement, ast.If) and SELDOM_TEST.search(written(statement.test)):
            if isinstance(statement.body[-1], ast.Continue | ast.Return):
                if not goes_on_behind(statement.test):
                    return True
    return False


def goes_on_behind(test: ast.expr) -> bool:
    """Whether a test leaves the first passes of a resumed run alone: `batch_idx < start_idx`."""
    return (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.Lt | ast.LtE)
        and isinstance(test.comparators[0], ast.Name | ast.Attribute)
        and bool(COUNTER.search(written(test.left)))
    )


COUNTER = re.compile(r"^[ij]$|step|iter|batch|idx|index|epoch", re.IGNORECASE)


def is_step_loop(module: Module, loop: Loop, function: Function | None) -> bool:
    """Whether each pass of a loop is one step: a backward, an update or a batch's forward."""
    over = ""
    if isinstance(loop, ast.For | ast.AsyncFor):
        if is_of_trials(loop):
            return False
        over = STRIDE.sub("", written(loop.iter))
    of_batches = bool(BATCHES.search(over))
    return any(is_work(module, site, of_batches) for site in own_sites(module, loop.body, function))


def is_of_trials(loop: ast.For | ast.AsyncFor) -> bool:
    """Whether each pass of a loop is a run of its own: another size, fold or setting."""
    over = STRIDE.sub("", written(loop.iter))
    if LOADING.search(over):
        return False
    return bool(TRIALS.search(f"{written(loop.target)} {OWNERS.sub('', over)}"))


# A loop over a loader, whatever that is given; `config.` of `config.steps`.
LOADING = re.compile(r"\bDataLoader\(")
OWNERS = re.compile(r"\b\w+\.(?=\w+(?![\w(]))")
BATCHES = re.compile(r"loader|_dl\b|log_every|\bbatch(es)?\b|_batches\b", re.IGNORECASE)
# `range(0, n, batch_size)` and `split(data, batch_size=n)` go over batches of one size.
STRIDE = re.compile(r"(?<=^range\().*, [\w.]*batch[\w.]*(?=\)$)|\b\w*batch_?size=[\w.]+")
# Loops over what differs from trial to trial, not over batches.
TRIALS = re.compile(
    r"sizes?\b(?!\()|_?bs\b|lengths?\b|dims?\b|trial|config|resolution|seq_?len|fold|task|seed|shard"
    r"|\blrs?\b|dataset_?name|models\b|model_?name|experiment|repeat|candidate",
    re.IGNORECASE,
)


def is_work(module: Module, site: Site, of_batches: bool, depth: int = 0) -> bool:
    """Whether a call makes a training step, or the forward of a loader's batch."""
    if is_update(site):
        return True
    called = local_function(module, site)
    if called is not None and depth < MAX_CALLS:
        inner = own_sites(module, called.node.body, called)
        return any(is_work(module, other, False, depth + 1) for other in inner)
    if not of_batches:
        return False
    if site.method in ("forward", "training_step") and site.receiver is not None:
        return True
    text = written(site.node.func)
    return site.qualified == "" and (text == "self" or knowledge.role_of_name(text) is Role.MODEL)


def is_update(site: Site) -> bool:
    if site.receiver is None:
        return site.qualified == "torch.autograd.backward"
    if site.method in ("backward", "manual_backward"):
        return True
    if site.method != "step":
        return False
    text = written(site.receiver)
    role = knowledge.role_of_name(text)
    known = (Role.OPTIMIZER, Role.SCALER, Role.ENGINE)
    return role in known and not SCHEDULE.search(text)


def own_sites(module: Module, body: list[ast.stmt], function: Function | None) -> Iterator[Site]:
    """Calls of a body that run once where it runs once: none in loops or definitions inside."""
    pending: list[ast.AST] = [*reversed(body)]
    while pending:
        node = pending.pop()
        kind = type(node)
        if kind is ast.Call:
            yield sites.site_of(module, node, function)  # type: ignore[arg-type] # its kind says so
        if kind not in LEAVES and not issubclass(kind, OF_ITS_OWN):
            pending += children(node)[::-1]


def local_function(module: Module, site: Site) -> Function | None:
    """The function of this file that a call runs: by its name, or a method of the same class."""
    called = site.node.func
    if isinstance(called, ast.Name):
        scope = site.function
        while scope is not None:
            inner = scope.inner.get(called.id)
            if inner is not None:
                return inner
            scope = scope.parent
        return module.functions.get(called.id)
    owner = sites.class_of(site.function)
    if owner is not None and sites.is_self_attribute(called, site.function):
        return owner.methods.get(site.method)
    return None


def calls_of(module: Module, function: Function) -> list[Site]:
    """The calls of a function in its own file."""
    return [
        site
        for site in sites.calls_by_name(module, function.name)
        if local_function(module, site) is function
    ]


TRAINING = re.compile(
    r"(^|\.)(train|fit|train_\w*|\w*_train|run_training|training_loop|do_train|finetune\w*)$"
)
NO_TRAINING = re.compile(r"train_(test_split|loader|dataset|data\w*|transform\w*|ds|dl|set)$")


def first_training(module: Module, function: Function | None, row: int) -> ast.stmt | None:
    """The first statement below a row, in a function or a script, that trains for many steps."""
    body = module.tree.body if function is None else function.node.body
    found = [s for s in statements_below(body, row) if trains(module, s, function)]
    return min(found, key=lambda statement: statement.lineno) if found else None


def statements_below(body: list[ast.stmt], row: int) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, sites.SCOPES):
            continue
        if statement.lineno > row:
            yield statement
        if (statement.end_lineno or 0) > row and not isinstance(statement, sites.LOOPS):
            for arm in arms_after(statement, row):
                yield from statements_below(arm, row)


def arms_after(statement: ast.stmt, row: int) -> Iterator[list[ast.stmt]]:
    """The blocks of a statement that may run after a row in it: not the other arm of an `if`."""
    for name in ("body", "orelse", "finalbody"):
        arm: list[ast.stmt] = getattr(statement, name, [])
        if arm:
            yield arm
        if isinstance(statement, ast.If) and statement.lineno < row <= (arm[-1].end_lineno or 0):
            return


def trains(module: Module, statement: ast.stmt, function: Function | None) -> bool:
    """Whether a statement is a loop of updates, or calls what must be one."""
    if isinstance(statement, sites.LOOPS):
        return any(updates(module, site, 0) for site in sites.found_in(module, statement, function))
    if not isinstance(statement, ast.Expr | ast.Assign | ast.Return | ast.AnnAssign):
        return False
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            site = sites.site_of(module, node, function)
            called = local_function(module, site)
            if called is not None:
                if has_training_loop(module, called, 0):
                    return True
            elif is_named_training(site):
                return True
    return False


def is_named_training(site: Site) -> bool:
    """`train(model, loader)` of another file, `trainer.fit(model)`; not `model.train()`."""
    text = written(site.node.func)
    if not TRAINING.search(text) or NO_TRAINING.search(text):
        return False
    if site.receiver is None:
        return len(site.node.args) + len(site.node.keywords) >= 2
    return re.search(r"trainer|learner|runner|engine$", written(site.receiver), re.I) is not None


def updates(module: Module, site: Site, depth: int) -> bool:
    if is_update(site):
        return True
    called = local_function(module, site)
    if called is None:
        return depth == 0 and is_named_training(site)
    return depth < MAX_CALLS and any(
        updates(module, other, depth + 1) for other in sites.found_in(module, called.node, called)
    )


def has_training_loop(module: Module, function: Function, depth: int) -> bool:
    for node in sites.own_nodes(function.node):
        if isinstance(node, sites.LOOPS):
            if any(updates(module, s, 0) for s in sites.found_in(module, node, function)):
                return True
        elif isinstance(node, ast.Call) and depth < MAX_CALLS:
            site = sites.site_of(module, node, function)
            called = local_function(module, site)
            if called is not None and has_training_loop(module, called, depth + 1):
                return True
    return False
