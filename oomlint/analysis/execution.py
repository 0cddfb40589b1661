"""Statements: following the code of one world, loops twice, branches as the conditions say."""

from __future__ import annotations

import ast
from collections.abc import Callable as Function_
from dataclasses import dataclass
from typing import Any

from oomlint.analysis import evaluation, knowledge
from oomlint.analysis.conditions import (
    Atom,
    branch,
    decide,
    is_eventful,
    keys_of,
    memo_of,
    read_condition,
)
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.keeping import crosses, graph_leaves, keep_in_total
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.state import Guard, Kind, Stop, World
from oomlint.analysis.values import (
    NONE,
    Callable,
    ClassValue,
    Constant,
    Container,
    Context,
    Either,
    GradContext,
    Instance,
    Marks,
    Number,
    Sequence,
    Tensor,
    Unknown,
    Value,
    ancestors,
    join,
    may_have_graph,
    settled,
    shortened,
    unknown,
)

# A world that is longer than this is cut; what happened until then counts.
MAX_STATEMENTS = 5000


@dataclass(frozen=True, slots=True)
class Return:
    value: Value


BREAK, CONTINUE, RAISE = "break", "continue", "raise"
Signal = Return | str | None


def run_body(world: World, body: list[ast.stmt]) -> Value:
    """Runs a function's body in the current frame; what it returns on any followed way."""
    signal = run_block(world, body)
    returns = world.frame.returns
    if isinstance(signal, Return):
        returns = [*returns, signal.value]
    if not returns:
        if signal == RAISE:
            raise Stop
        return NONE
    result = returns[0]
    for value in returns[1:]:
        result = join(result, value)
    return result


def run_block(world: World, body: list[ast.stmt]) -> Signal:
    depth = len(world.guards)
    try:
        for statement in body:
            signal = run(world, statement)
            if signal is not None:
                return signal
    finally:
        del world.guards[depth:]
    return None


def run(world: World, node: ast.stmt) -> Signal:
    world.statements += 1
    if world.statements > MAX_STATEMENTS:
        raise Stop
    handler = HANDLERS.get(type(node))
    return handler(world, node) if handler is not None else None


# assignments


def run_assign(world: World, node: ast.Assign) -> Signal:
    value = evaluate(world, node.value)
    for target in node.targets:
        assign(world, target, value, node, node.value)
    return None


def run_annotated(world: World, node: ast.AnnAssign) -> Signal:
    if node.value is not None:
        assign(world, node.target, evaluate(world, node.value), node, node.value)
    return None


def assign(world: World, target: ast.expr, value: Value, node: ast.stmt, source: ast.expr) -> None:
    if isinstance(target, ast.Tuple | ast.List):
        if isinstance(source, ast.Tuple | ast.List) and len(source.elts) == len(target.elts):
            parts: list[Value] = []
            if isinstance(value, Container) and len(value.items) == len(target.elts):
                parts = value.items
            for i, goal in enumerate(target.elts):
                part = (
                    parts[i]
                    if parts
                    else evaluation.element(world, value, Constant(str(i), value=i))
                )
                assign(world, goal, part, node, source.elts[i])
            return
        unpack(world, target, value)
        return
    if isinstance(target, ast.Name | ast.Attribute):
        old, born, place = current(world, target)
        if old is not None and is_total(old, value, target, source):
            keep_in_total(world, node, place, old, added(value, old), born, value)
            bind(world, target, value, born)
            return
    if isinstance(target, ast.Attribute) and target.attr == "grad":
        evaluate(world, target.value)
        gradient_assigned(world, node, value)
        return
    if isinstance(target, ast.Attribute) and target.attr == "requires_grad":
        freeze_parameter(world, node, target, value)
        return
    if isinstance(target, ast.Subscript):
        bind_item(world, target, value, node, source)
        return
    bind(world, target, value)


def is_total(old: Value, value: Value, target: ast.expr, source: ast.expr) -> bool:
    """Whether a new value is the old one with something added, mixed in or put beside it."""
    if not isinstance(source, ast.BinOp | ast.IfExp) or not isinstance(value, Tensor | Either):
        return False
    text = ast.unparse(target)
    mentioned = any(
        isinstance(part, ast.Name | ast.Attribute) and ast.unparse(part) == text
        for part in ast.walk(source)
    )
    return mentioned and id(old) in ancestors(value)


def added(value: Value, old: Value) -> Value:
    """The part of a total that is not the old total."""
    if isinstance(value, Tensor) and len(value.parents) == 2:
        for one, other in (value.parents, value.parents[::-1]):
            if one is old:
                return other
            if id(old) in ancestors(one) and id(old) not in ancestors(other):
                return other
    return value


def gradient_assigned(world: World, node: ast.stmt, value: Value) -> None:
    kind = (
        Kind.ZERO_GRAD
        if isinstance(value, Constant) and value.value is None
        else (Kind.GRADIENT_TOUCHED)
    )
    world.emit(kind, node)


def freeze_parameter(world: World, node: ast.stmt, target: ast.Attribute, value: Value) -> None:
    """`p.requires_grad = False` in a loop over `model.parameters()` freezes the model."""
    receiver = evaluate(world, target.value)
    off = isinstance(value, Constant) and value.value is False
    key = receiver.key.split(".parameters()")[0].split(".named_parameters()")[0]
    if off and ".parameters()" in receiver.key:
        world.frozen.add(key)
    elif (
        isinstance(value, Constant) and value.value is True and ".parameters()" not in receiver.key
    ):
        world.emit(Kind.GRADIENT_TAKEN, node, None, receiver, what="requires_grad")


def unpack(world: World, target: ast.Tuple | ast.List, value: Value) -> None:
    value = settled(value)
    for i, goal in enumerate(target.elts):
        if isinstance(goal, ast.Starred):
            bind(world, goal.value, unknown(f"{value.key}[*]", ""))
            continue
        index = Constant(str(i), value=i)
        part = evaluation.element(world, value, index)
        if isinstance(value, Tensor) and isinstance(goal, ast.Name):
            if knowledge.LOSS_NAME.search(goal.id) and isinstance(part, Tensor):
                part.opaque, part.loss = value.opaque and not value.proven, True
            if isinstance(part, Tensor) and value.key.endswith(".indexed()") and i == 0:
                part.opaque = False
        if isinstance(part, Unknown) and part.role is None and isinstance(goal, ast.Name):
            part = unknown(part.key, goal.id)
            part.parents = (value,) if isinstance(value, Unknown) else ()
        bind(world, goal, part)


def bind(world: World, target: ast.expr, value: Value, born: Marks | None = None) -> None:
    """Gives a target its value; `born` keeps the time of a total that goes on."""
    when = world.marks if born is None else born
    if isinstance(target, ast.Name):
        frame = world.frame
        if isinstance(value, Unknown) and value.role is None:
            # Another name for the same thing may say more: `for optimizer in (first, second)`.
            role = knowledge.role_of_name(target.id)
            if role in (Role.OPTIMIZER, Role.SCALER):
                value.role, value.evidence = role, Evidence.NAMED
        if target.id in frame.outer:
            scope = frame.parent
            while scope is not None and target.id not in scope.names:
                scope = scope.parent
            if scope is not None:
                frame = scope
            else:
                world.attributes[("global:" + frame.module.name, target.id)] = value
                return
        frame.names[target.id] = value
        frame.born[target.id] = when
    elif isinstance(target, ast.Attribute):
        receiver = settled(evaluate(world, target.value))
        if isinstance(receiver, Instance):
            receiver.attributes[target.attr] = value
            receiver.born[target.attr] = when
        else:
            world.attributes[(receiver.key, target.attr)] = value
            world.attribute_born[(receiver.key, target.attr)] = when
    elif isinstance(target, ast.Subscript):
        bind_item(world, target, value)
    elif isinstance(target, ast.Tuple | ast.List):
        unpack(world, target, value)
    elif isinstance(target, ast.Starred):
        bind(world, target.value, value)


def bind_item(
    world: World,
    target: ast.Subscript,
    value: Value,
    node: ast.stmt | None = None,
    source: ast.expr | None = None,
) -> None:
    receiver = settled(evaluate(world, target.value))
    index = evaluate(world, target.slice)
    if isinstance(receiver, Container):
        if isinstance(index, Constant) and isinstance(index.value, str):
            receiver.names[index.value] = value
            return
        if len(receiver.items) < 8:
            receiver.items.append(value)
        # A key that changes with the loop makes an entry in every iteration.
        grows = "#" in index.key and not receiver.bounded and crosses(receiver.born, world.marks)
        if grows and source is not None and may_have_graph(value):
            leaf = graph_leaves(world, source)
            world.emit(
                Kind.KEEP,
                node or target,
                receiver,
                value,
                how="container",
                born=receiver.born,
                leaves=leaf,
                place=ast.unparse(target.value),
            )
    else:
        world.attributes[(receiver.key, f"[{index.key}]")] = value
        world.attribute_born[(receiver.key, f"[{index.key}]")] = world.marks


def current(world: World, target: ast.expr) -> tuple[Value | None, Marks, str]:
    """What a target holds now, since when, and the name of the place."""
    if isinstance(target, ast.Name):
        frame = world.frame
        if target.id not in frame.names and (frame.function is None or target.id in frame.outer):
            scope = frame.parent
            while scope is not None and target.id not in scope.names:
                scope = scope.parent
            frame = scope or frame
        return frame.names.get(target.id), frame.born.get(target.id, ()), target.id
    if isinstance(target, ast.Attribute):
        receiver = settled(evaluate(world, target.value))
        place = f"{ast.unparse(target)}"
        if isinstance(receiver, Instance):
            held = receiver.attributes.get(target.attr)
            if held is None:
                held = evaluation.instance_attribute(world, receiver, target.attr)
            return held, receiver.born.get(target.attr, ()), place
        key = (receiver.key, target.attr)
        held = world.attributes.get(key) or world.reads.get(key)
        if held is None:
            held = evaluation.attribute(world, receiver, target.attr)
        return held, world.attribute_born.get(key, ()), place
    if isinstance(target, ast.Subscript):
        held = evaluate(world, target)
        receiver = settled(evaluate(world, target.value))
        born = receiver.born if isinstance(receiver, Container) else ()
        return held, born, ast.unparse(target)
    return None, (), ""


def run_augmented(world: World, node: ast.AugAssign) -> Signal:
    old, born, place = current(world, node.target)
    value = evaluate(world, node.value)
    if isinstance(node.target, ast.Attribute) and node.target.attr in ("grad", "data"):
        if node.target.attr == "grad" or ".grad" in ast.unparse(node.target):
            world.emit(Kind.GRADIENT_TOUCHED, node)
            return None
    if old is None:
        old = unknown(place, place)
    if isinstance(old, Container):
        extend(world, node, old, value)
        return None
    total = evaluation.binary(world, node.op, old, value, node.value)
    if isinstance(node.op, ast.Add | ast.Sub) and isinstance(total, Tensor):
        keep_in_total(world, node, place, old, value, born, total)
        bind(world, node.target, total, born)
        return None
    bind(world, node.target, total)
    return None


def extend(world: World, node: ast.AugAssign, old: Container, value: Value) -> None:
    given = value.items if isinstance(value, Container) else [value]
    if len(old.items) < 8:
        old.items.extend(given)
    if old.bounded or not crosses(old.born, world.marks):
        return
    leaf = graph_leaves(world, node.value)
    for item in given:
        world.emit(Kind.KEEP, node, old, item, how="container", born=old.born, leaves=leaf)


# branches


def run_if(world: World, node: ast.If) -> Signal:
    condition = read_condition(world, node.test)
    taken = branch(world, node.test, node.body, node.orelse, condition)
    key = keys_of(condition)
    if taken is None:
        return run_both(world, node, key)
    world.guards.append(Guard(node.test, taken, key, world.frame.module))
    signal = run_block_inside(world, node.body if taken else node.orelse)
    other = node.orelse if taken else node.body
    # After `if skip: continue` the rest of the block happens under `not skip`.
    if signal is None and leaves(other):
        return None
    world.guards.pop()
    return signal


def leaves(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], ast.Continue | ast.Break | ast.Return | ast.Raise)


def run_block_inside(world: World, body: list[ast.stmt]) -> Signal:
    for statement in body:
        signal = run(world, statement)
        if signal is not None:
            return signal
    return None


def run_both(world: World, node: ast.If, key: str) -> Signal:
    """Both arms, one after the other from the same start; what differs afterwards is an Either."""
    frame = world.frame
    start, start_born = dict(frame.names), dict(frame.born)
    this = frame.this if isinstance(frame.this, Instance) else None
    start_this = dict(this.attributes) if this else {}
    start_attributes = dict(world.attributes)
    eval_keys = dict(world.eval_keys)
    world.guards.append(Guard(node.test, True, key, frame.module))
    first = run_block(world, node.body)
    world.guards.pop()
    names, attributes = dict(frame.names), dict(world.attributes)
    held = dict(this.attributes) if this else {}
    if node.orelse or isinstance(first, Return):
        frame.names.clear()
        frame.names.update(start)
        restore(world, this, start_this, start_attributes)
        changed_eval, world.eval_keys = world.eval_keys, eval_keys
        world.guards.append(Guard(node.test, False, key, frame.module))
        second = run_block(world, node.orelse)
        world.guards.pop()
        if isinstance(first, Return) and isinstance(second, Return):
            return Return(join(first.value, second.value))
        if isinstance(first, Return):
            frame.returns.append(first.value)
            return second
        if isinstance(second, Return):
            frame.returns.append(second.value)
            second = None
            frame.names.clear()
            frame.names.update(names)
            restore(world, this, held, attributes)
            world.eval_keys = changed_eval
            return None
        start, start_this, start_attributes = (
            dict(frame.names),
            dict(this.attributes) if this else {},
            dict(world.attributes),
        )
    merge(frame.names, names, start)
    if this is not None:
        merge(this.attributes, held, start_this)
    merge(world.attributes, attributes, start_attributes)
    frame.born.update(start_born)
    return None


def restore(
    world: World,
    this: Instance | None,
    held: dict[str, Value],
    attributes: dict[tuple[str, str], Value],
) -> None:
    if this is not None:
        this.attributes.clear()
        this.attributes.update(held)
    world.attributes.clear()
    world.attributes.update(attributes)


def merge(goal: dict[Any, Value], one: dict[Any, Value], other: dict[Any, Value]) -> None:
    for name in {**one, **other}:
        if name in one and name in other:
            goal[name] = one[name] if one[name] is other[name] else join(one[name], other[name])
        else:
            goal[name] = one.get(name) or other[name]


def run_match(world: World, node: ast.Match) -> Signal:
    subject = evaluate(world, node.subject)
    module = world.frame.module
    eventful = any(is_eventful(world, module, case.body) for case in node.cases)
    for case in node.cases:
        if not eventful:
            signal = run_block(world, case.body)
            if signal is not None:
                return signal
            continue
        key = shortened(f"match({subject.key}:{ast.unparse(case.pattern)})")
        if case is node.cases[-1] or decide(world, Atom(key, False, None), True):
            return run_block(world, case.body)
    return None


def run_try(world: World, node: ast.Try) -> Signal:
    try:
        signal = run_block(world, node.body)
    except Stop:
        signal = RAISE
        if world.statements > MAX_STATEMENTS:
            raise
    if signal == RAISE and node.handlers:
        signal = run_block(world, node.handlers[0].body)
    elif signal is None:
        signal = run_block(world, node.orelse)
    last = run_block(world, node.finalbody)
    return last or signal


# loops


def run_for(world: World, node: ast.For | ast.AsyncFor) -> Signal:
    iterable = evaluate(world, node.iter)
    return run_loop(world, node, iterable)


def run_while(world: World, node: ast.While) -> Signal:
    evaluate(world, node.test)
    return run_loop(world, node, None)


def run_loop(
    world: World, node: ast.For | ast.AsyncFor | ast.While, iterable: Value | None
) -> Signal:
    world.serial += 1
    serial = world.serial
    depth = len(world.loops)
    for iteration in iterations(world, node):
        world.enter_loop(node, serial, iteration)
        if iterable is not None and not isinstance(node, ast.While):
            bind(world, node.target, item_of(world, iterable, iteration, node.target))
        signal = run_block(world, node.body)
        del world.loops[depth:]
        if signal == BREAK:
            return None
        if signal == CONTINUE or signal is None:
            continue
        return signal
    return run_block(world, node.orelse)


def iterations(world: World, node: ast.For | ast.AsyncFor | ast.While) -> tuple[int, ...]:
    """Two where something may carry over from one iteration to the next."""
    if is_eventful(world, world.frame.module, node.body):
        return (1, 2)
    if len(world.loops) >= 4:
        return (1,)
    memo = memo_of(world.frame.module)
    busy = memo.get(-id(node))
    if busy is None:
        busy = any(isinstance(part, ast.Call | ast.AugAssign) for part in ast.walk(node))
        memo[-id(node)] = busy
    return (1, 2) if busy else (1,)


def item_of(world: World, iterable: Value, iteration: int, target: ast.expr | None) -> Value:
    """What a loop's target is bound to in one iteration."""
    iterable = settled(iterable)
    marks = "".join(f"#{serial}.{number}" for serial, number in world.marks)
    if isinstance(iterable, Sequence):
        return sequence_item(world, iterable, iteration, target, marks)
    if isinstance(iterable, Container):
        held = [*iterable.items, *iterable.names.values()]
        if iterable.kind == "dict" and iterable.names:
            return Number(f"{iterable.key}.key{marks}")
        if iteration <= len(held):
            return held[iteration - 1]
        if held:
            return held[-1]
    if isinstance(iterable, Tensor):
        return Tensor(
            shortened(f"{iterable.key}[*]{marks}"), parents=(iterable,), opaque=iterable.opaque
        )
    name = target.id if isinstance(target, ast.Name) else ""
    key = f"{iterable.key}[*]"
    role = knowledge.role_of_name(name) or knowledge.role_of_name(getattr(iterable, "name", ""))
    lasting = role in (Role.OPTIMIZER, Role.MODEL, Role.SCALER, Role.SCHEDULER)
    value = unknown(key if lasting else key + marks, name)
    if lasting and value.role is None:
        value.role = role
    return value


def sequence_item(
    world: World, iterable: Sequence, iteration: int, target: ast.expr | None, marks: str
) -> Value:
    kind, parts = iterable.kind, iterable.parts
    if kind == "range":
        name = target.id if isinstance(target, ast.Name) else "i"
        return Number(f"{name}{marks}")
    if kind == "enumerate":
        goals = (
            target.elts if isinstance(target, ast.Tuple) and len(target.elts) == 2 else [None, None]
        )
        name = goals[0].id if isinstance(goals[0], ast.Name) else "i"
        start = f"+{parts[1].key}" if len(parts) > 1 else ""
        item = item_of(world, parts[0], iteration, goals[1]) if parts else unknown("item", "")
        return Container("pair", items=[Number(f"{name}{marks}{start}"), item], kind="tuple")
    if kind == "zip":
        goals = target.elts if isinstance(target, ast.Tuple) else []
        items = [
            item_of(world, part, iteration, goals[i] if i < len(goals) else None)
            for i, part in enumerate(parts)
        ]
        return Container("zipped", items=items, kind="tuple")
    if kind == "parameters":
        return Unknown(f"{iterable.key}[*]", name="parameter")
    if kind == "keys":
        return Number(f"{iterable.key}.key{marks}")
    held = parts[0] if parts else NONE
    if isinstance(held, Container):
        values = [*held.names.values(), *held.items]
        value = values[min(iteration, len(values)) - 1] if values else unknown(f"{held.key}[*]", "")
    else:
        inner = (
            target.elts[1] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else target
        )
        value = item_of(world, held, iteration, inner)
    if kind == "items":
        return Container("item", items=[Number(f"{iterable.key}.key{marks}"), value], kind="tuple")
    return value


# contexts


def run_with(world: World, node: ast.With | ast.AsyncWith) -> Signal:
    grad, contexts = world.grad, list(world.contexts)
    for item in node.items:
        before = world.grad
        value = evaluate(world, item.context_expr)
        enter(world, node, item, value, before)
    try:
        return run_block(world, node.body)
    finally:
        world.grad = grad
        world.contexts[:] = contexts


def enter(
    world: World,
    node: ast.With | ast.AsyncWith,
    item: ast.withitem,
    value: Value,
    before: bool | None,
) -> None:
    found = value if isinstance(value, Either) else settled(value)
    bound: Value = found
    if isinstance(found, GradContext):
        world.grad = found.mode
    elif isinstance(found, Context):
        world.contexts.append(found.kind)
        if found.kind == "scale_loss" and found.inner is not None:
            bound = Tensor(
                f"scaled@{node.lineno}:{world.marks}", parents=(found.inner,), scaled="apex"
            )
    elif isinstance(found, Either):
        modes = {o.mode if isinstance(o, GradContext) else before for o in found.options}
        unsure = any(isinstance(o, GradContext) for o in found.options)
        world.grad = (modes.pop() if len(modes) == 1 else None) if unsure else before
    else:
        enter_unknown(world, item.context_expr, found, before)
    if item.optional_vars is not None:
        bind(world, item.optional_vars, bound)


def enter_unknown(world: World, expression: ast.expr, value: Value, before: bool | None) -> None:
    text = ast.unparse(expression)
    call = expression.func if isinstance(expression, ast.Call) else expression
    name = text.split("(")[0].rsplit(".", 1)[-1]
    if "accumulate" in name:
        world.contexts.append("accumulate")
    if "no_sync" in text:
        world.contexts.append("no_sync")
    function = project_function(world, call)
    if function is not None and any(
        "contextmanager" in ast.unparse(d) for d in function.decorators
    ):
        if function.words & {"no_grad", "inference_mode"}:
            world.grad = False
        elif function.words & {"set_grad_enabled", "enable_grad"}:
            world.grad = None
        return
    if knowledge.NO_GRAD_NAME.search(name):
        world.grad = False
        return
    if (
        before is True
        and isinstance(value, Unknown | Tensor)
        and knowledge.UNSURE_CONTEXT.search(name)
    ):
        world.grad = None


def project_function(world: World, call: ast.expr) -> Any:
    value = settled(evaluate(world, call)) if isinstance(call, ast.Name | ast.Attribute) else None
    return value.function if isinstance(value, Callable) else None


# the rest


def run_expression(world: World, node: ast.Expr) -> Signal:
    evaluate(world, node.value)
    return None


def run_return(world: World, node: ast.Return) -> Signal:
    return Return(evaluate(world, node.value) if node.value is not None else NONE)


def run_definition(world: World, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Signal:
    function = world.frame.module.by_node.get(node)
    if function is not None:
        frame = world.frame
        closure = frame if frame.function is not None else None
        key = f"{node.name}@{frame.module.name}:{node.lineno}"
        frame.names[node.name] = Callable(key, function=function, frame=closure)
    return None


def run_class(world: World, node: ast.ClassDef) -> Signal:
    found = world.frame.module.class_by_node.get(node)
    if found is not None:
        world.frame.names[node.name] = ClassValue(
            f"{world.frame.module.name}:{node.name}", cls=found
        )
    return None


def run_delete(world: World, node: ast.Delete) -> Signal:
    for target in node.targets:
        if isinstance(target, ast.Name):
            world.frame.names.pop(target.id, None)
    return None


def run_scope(world: World, node: ast.Global | ast.Nonlocal) -> Signal:
    world.frame.outer.update(node.names)
    return None


HANDLERS: dict[type[ast.stmt], Function_[[World, Any], Signal]] = {
    ast.Assign: run_assign,
    ast.AnnAssign: run_annotated,
    ast.AugAssign: run_augmented,
    ast.Expr: run_expression,
    ast.If: run_if,
    ast.For: run_for,
    ast.AsyncFor: run_for,
    ast.While: run_while,
    ast.With: run_with,
    ast.AsyncWith: run_with,
    ast.Try: run_try,
    ast.Match: run_match,
    ast.Return: run_return,
    ast.Continue: lambda world, node: CONTINUE,
    ast.Break: lambda world, node: BREAK,
    ast.Raise: lambda world, node: RAISE,
    ast.FunctionDef: run_definition,
    ast.AsyncFunctionDef: run_definition,
    ast.ClassDef: run_class,
    ast.Delete: run_delete,
    ast.Global: run_scope,
    ast.Nonlocal: run_scope,
}
if hasattr(ast, "TryStar"):
    HANDLERS[ast.TryStar] = run_try
