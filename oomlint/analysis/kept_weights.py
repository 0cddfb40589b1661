"""Where weights are kept that are not copied: a state_dict lies in the memory of the parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from oomlint.analysis import knowledge, moving
from oomlint.analysis.modules import Class, Function, Module, written
from oomlint.analysis.sites import SCOPES, class_of, loops_around, own_nodes, sites
from oomlint.analysis.tracing import binds, leaves
from oomlint.analysis.weight_aliases import Target, kept_in, shallow

Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module

# Objects with a state_dict of their own that is no network's.
OTHER_ROLES = frozenset(
    {
        knowledge.Role.OPTIMIZER,
        knowledge.Role.SCHEDULER,
        knowledge.Role.SCALER,
        knowledge.Role.LOADER,
    }
)
TRAINS = re.compile(
    r"(^|_)(train\w*|fit|fit_\w+|epoch|step|update|learn|backward|optimi[sz]e\w*|finetune\w*)($|_)"
)
# How an attribute is called that holds weights from earlier.
EARLIER = re.compile(r"best|optimal|init|snap|back_?up|saved|restore|orig|prev|old|good", re.I)


@dataclass(frozen=True, slots=True)
class Kept:
    """A state_dict that is kept without a copy: `whole` is the expression that should copy."""

    call: ast.Call
    whole: ast.expr
    model: str
    name: str
    read: ast.expr
    function: Function | None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A state_dict that a name holds; whether that matters is not known yet."""

    call: ast.Call
    whole: ast.expr
    model: str
    target: Target
    function: Function | None

    def kept(self, read: ast.expr) -> Kept:
        held = written(self.target.node)
        return Kept(self.call, self.whole, self.model, held, read, self.function)


def kept(module: Module) -> list[Kept]:
    """Every state_dict that is kept while training goes on, with a place that reads it later."""
    found: list[Kept] = []
    others: list[Candidate] = []
    for site in sites(module):
        if site.method != "state_dict" or site.receiver is None or site.node.args:
            continue
        model = written(site.receiver)
        if knowledge.role_of_name(model) in OTHER_ROLES or model == "super()":
            continue
        whole = shallow(module, site.node, site.function)
        target = kept_in(module, whole)
        if target is None:
            continue
        candidate = Candidate(site.node, whole, model, target, site.function)
        read = read_later(module, target, site.node, model, site.function)
        if read is None:
            others.append(candidate)
        else:
            found.append(candidate.kept(read))
    found += first_ones(module, others, found)
    return sorted(found, key=lambda kept: (kept.call.lineno, kept.call.col_offset))


def first_ones(module: Module, others: list[Candidate], found: list[Kept]) -> Iterator[Kept]:
    """`best = model.state_dict()` before the loop that keeps a better one under that name."""
    for other in others:
        for better in found:
            alike = (better.name, better.model, better.function) == (
                written(other.target.node),
                other.model,
                other.function,
            )
            earlier = other.call.lineno < better.call.lineno
            if alike and earlier and not loops_around(module, other.call):
                if loops_around(module, better.call):
                    first, last = module.statement_of(other.call), better.call.lineno
                    if not moving.moved_since(module, first, last, other.model, other.function):
                        yield other.kept(better.read)
                    break


def read_later(
    module: Module, target: Target, call: ast.Call, model: str, function: Function | None
) -> ast.expr | None:
    """Where the kept weights are read although the model was trained since; None: nowhere."""
    statement = module.statement_of(call)
    if changes(module, target, function):
        return None
    for loop in loops_around(module, statement)[:1]:
        if binds_model(loop, model) or ends(module, statement) or not trains(loop):
            break
        if moving.leaves_device(module, loop, model, function):
            break
        for read in reads(module, target, function):
            if outlives(module, target, statement, loop, read, function):
                return read
    if isinstance(target.node, ast.Attribute):
        return read_in_other_method(module, target, statement, model, function)
    return put_back(module, target, statement, model, function)


def outlives(
    module: Module,
    target: Target,
    statement: ast.stmt,
    loop: ast.stmt,
    read: ast.expr,
    function: Function | None,
) -> bool:
    """Whether a read sees what an earlier iteration has kept, and nothing bound since."""
    end = loop.end_lineno or loop.lineno
    bound = [
        node.lineno
        for node in own_nodes(scope_of(module, function))
        if isinstance(node, ast.Name | ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and written(node) == written(target.node)
        and module.statement_of(node) is not statement
    ]
    if loop.lineno <= read.lineno <= end:
        fresh = any(loop.lineno < row <= read.lineno for row in bound)
        return not fresh and not follows(module, statement, read)
    return read.lineno > end and not any(end < row <= read.lineno for row in bound)


def scope_of(module: Module, function: Function | None) -> Scope:
    return function.node if function is not None else module.tree


def changes(module: Module, target: Target, function: Function | None) -> bool:
    """Whether entries of the kept dict are set by hand: it is a draft for load_state_dict."""
    text = written(target.node)
    for node in ast.walk(scope_of(module, function)):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            entry = bool(target.entry) and isinstance(node.slice, ast.Constant)
            if written(node.value) == text and not (entry and is_assigned(module, node)):
                return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("update", "pop", "clear") and written(node.func.value) == text:
                return True
    return False


def is_assigned(module: Module, node: ast.Subscript) -> bool:
    """`best["weights"] = model.state_dict()`: an entry that is the kept thing itself."""
    parent = module.parents[node]
    return isinstance(parent, ast.Assign) and node in parent.targets


def binds_model(loop: ast.AST, model: str) -> bool:
    """Whether the loop makes or picks another model in every iteration."""
    head = model.split(".")[0].split("[")[0].split("(")[0]
    if head != "self":
        return binds(loop, head)
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and written(node) == model
        for node in ast.walk(loop)
    )


def ends(module: Module, statement: ast.stmt) -> bool:
    """Whether the loop is left behind the statement, so that nothing is trained since."""
    parent = module.parents[statement]
    for name in ("body", "orelse"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return leaves(block) and not isinstance(block[-1], ast.Continue)
    return False


def trains(node: ast.AST, kept: str = "") -> bool:
    """Whether something trains by its name; what is given the kept dict only works on that."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and kept not in map(written, part.args):
            called = part.func
            name = called.attr if isinstance(called, ast.Attribute) else ""
            if isinstance(called, ast.Name):
                name = called.id
            if TRAINS.search(name) and name != "train":
                return True
            if name == "train" and (isinstance(called, ast.Name) or part.args):
                return True
    return False


def reads(module: Module, target: Target, function: Function | None) -> Iterator[ast.expr]:
    """Where the scope hands on what is kept: to a call, to its caller, by an entry."""
    text = written(target.node)
    for node in own_nodes(scope_of(module, function)):
        if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
            continue
        if written(node) != text or not is_handed_on(module, node):
            continue
        parent = module.parents[node]
        key = written(parent.slice) if isinstance(parent, ast.Subscript) else ""
        if not (key and target.entry) or key == target.entry:
            yield node


def is_handed_on(module: Module, node: ast.expr) -> bool:
    parent = module.parents[node]
    if isinstance(parent, ast.Call):
        asked = isinstance(parent.func, ast.Name) and parent.func.id in (
            "len",
            "print",
            "isinstance",
        )
        return parent.func is not node and not asked
    if isinstance(parent, ast.Subscript):
        return parent.value is node and isinstance(parent.ctx, ast.Load)
    return isinstance(parent, ast.keyword | ast.Return | ast.Tuple | ast.List | ast.Dict | ast.For)


def follows(module: Module, statement: ast.stmt, read: ast.expr) -> bool:
    """Whether a read stands behind the statement in the same block: nothing is trained between."""
    parent = module.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            later = block[block.index(statement) :]
            return any(read is node for part in later for node in ast.walk(part))
    return False


def read_in_other_method(
    module: Module,
    target: Target,
    statement: ast.stmt,
    model: str,
    function: Function | None,
) -> ast.expr | None:
    """`self.best = model.state_dict()` in one method, handed on in another one."""
    owner = class_of(function)
    held = target.node
    if not isinstance(held, ast.Attribute) or written(held.value) != "self":
        return None
    if owner is None or not EARLIER.search(held.attr) or is_changed_in(owner, held.attr):
        return None
    conditional = isinstance(module.parents[statement], ast.If)
    if not conditional and moved_in_class(module, owner, statement, model, function):
        return None
    for method in owner.methods.values():
        if method is function or method.name in ("state_dict", "__getstate__"):
            continue
        for read in reads(module, target, method):
            if binds_model(method.node, model):
                continue
            if conditional or loads_into(module, read) == model:
                return read
    if not conditional:
        return None
    # Whoever holds the object reads it: `model.load_state_dict(stopper.best_state)`.
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == held.attr:
            other = isinstance(node.ctx, ast.Load) and written(node.value) != "self"
            if other and is_handed_on(module, node):
                return node
    return None


def moved_in_class(
    module: Module, owner: Class, statement: ast.stmt, model: str, function: Function | None
) -> bool:
    """Whether the model is moved behind the statement, or in another method."""
    last = function.node.end_lineno if function is not None else None
    if moving.moved_since(module, statement, last or 0, model, function):
        return True
    if function is None or function.name != "__init__":
        return False
    others = [method for method in owner.methods.values() if method is not function]
    return any(moving.moves_model(module, method.node, model, method) for method in others)


def is_changed_in(owner: Class, name: str) -> bool:
    return any(
        isinstance(node, ast.Subscript)
        and not isinstance(node.ctx, ast.Load)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == name
        for node in ast.walk(owner.node)
    )


def loads_into(module: Module, read: ast.expr) -> str:
    """The model that loads what is read, as the file writes it."""
    parent = module.parents[read]
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
        if parent.func.attr == "load_state_dict" and read in parent.args:
            return written(parent.func.value)
    return ""


def put_back(
    module: Module,
    target: Target,
    statement: ast.stmt,
    model: str,
    function: Function | None,
) -> ast.expr | None:
    """The same model loads its own tensors after it was trained: nothing is put back."""
    held = target.node
    if not isinstance(held, ast.Name):
        return None
    scope = scope_of(module, function)
    bound = [n for n in own_nodes(scope) if isinstance(n, ast.Name) and n.id == held.id]
    if sum(isinstance(n.ctx, ast.Store) for n in bound) != 1:
        return None
    for read in reads(module, target, function):
        if loads_into(module, read) != model or read.lineno < statement.lineno:
            continue
        between = [
            node
            for node in own_nodes(scope)
            if isinstance(node, ast.stmt) and statement.lineno < node.lineno
            if not isinstance(node, SCOPES)
        ]
        loop = next(iter(loops_around(module, read)), None)
        last = (loop.end_lineno if loop is not None else read.lineno) or read.lineno
        passed = [node for node in between if node.lineno <= last]
        if any(binds_model(node, model) for node in passed):
            return None
        if moving.moved_since(module, statement, last, model, function):
            return None
        changed = (trains(node, held.id) or loads_others(node, model, held.id) for node in passed)
        if any(changed):
            return read
    return None


def loads_others(node: ast.AST, model: str, name: str) -> bool:
    """Whether the model loads other weights, which are copied into the memory of its own."""
    return any(
        isinstance(part, ast.Call)
        and written(part.func) == f"{model}.load_state_dict"
        and bool(part.args)
        and written(part.args[0]) != name
        for part in ast.walk(node)
    )
