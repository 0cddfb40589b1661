"""Expressions: what a name, an attribute or an operation is in the world that is followed."""

from __future__ import annotations

import ast
from typing import Any

from oomlint.analysis import calls, classes, dispatch, knowledge
from oomlint.analysis.dispatch import evaluate
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Class, Function, Module
from oomlint.analysis.state import Frame, World
from oomlint.analysis.values import (
    NONE,
    Callable,
    ClassValue,
    Constant,
    Container,
    External,
    Instance,
    Number,
    Tensor,
    Thing,
    Unknown,
    Value,
    join,
    settled,
    shortened,
    unknown,
)

# names


def evaluate_name(world: World, node: ast.Name) -> Value:
    return lookup(world, world.frame, node.id)


def lookup(world: World, frame: Frame, name: str) -> Value:
    scope: Frame | None = frame
    while scope is not None:
        if name in scope.names:
            return scope.names[name]
        scope = scope.parent
    return global_name(world, frame.module, name)


def global_name(world: World, module: Module, name: str) -> Value:
    function = module.function(name)
    if function is not None:
        return Callable(f"{module.name}:{name}", function=function)
    cls = module.class_(name)
    if cls is not None:
        return ClassValue(f"{module.name}:{name}", cls=cls)
    if name in module.imports:
        return imported(world, module, module.imports[name])
    if name in module.globals:
        return module_variable(world, module, name)
    if name in BUILTINS:
        return External(name, qualified=name)
    for star in module.stars:
        found = world.project.find(f"{star}.{name}", module)
        if found is not None:
            return definition(found, name)
    if any(star.split(".")[0] == "torch" for star in module.stars):
        return External(name, qualified=f"{module.stars[0]}.{name}")
    return unknown(name, name)


def imported(world: World, module: Module, qualified: str) -> Value:
    if qualified.split(".")[0] in classes.OUTSIDE:
        return External(qualified, qualified=qualified)
    found = world.project.find(qualified, module)
    if found is None:
        return External(qualified, qualified=qualified)
    return definition(found, qualified)


def definition(found: Function | Class | Module, key: str) -> Value:
    if isinstance(found, Module):
        return External(found.name, qualified=found.name)
    if isinstance(found, Class):
        return ClassValue(f"{found.module.name}:{found.name}", cls=found)
    return Callable(f"{found.module.name}:{found.qualname}", function=found)


def module_variable(world: World, module: Module, name: str) -> Value:
    """A module-level name seen from inside a function: what it is bound to last."""
    key = ("global:" + module.name, name)
    known = world.attributes.get(key) or world.reads.get(key)
    if known is not None:
        return known
    world.reads[key] = unknown(name, name)
    if len(world.frames) > 40:
        return world.reads[key]
    world.frames.append(Frame(module, None))
    loops, world.loops = world.loops, []
    value: Value | None = None
    try:
        for expression in module.globals[name][-2:]:
            result = evaluate(world, expression) if is_simple(expression) else None
            result = result or unknown(name, name)
            value = result if value is None else join(value, result)
    finally:
        world.frames.pop()
        world.loops = loops
    world.reads[key] = value or unknown(name, name)
    return world.reads[key]


def is_simple(node: ast.expr) -> bool:
    return isinstance(
        node, ast.Call | ast.Constant | ast.Name | ast.Attribute | ast.List | ast.Dict
    )


BUILTINS = frozenset(
    "abs all any bool bytes callable dict dir divmod enumerate eval exec filter float format"
    " frozenset getattr hasattr hash id input int isinstance issubclass iter len list map max min"
    " next object open pow print range repr reversed round set setattr slice sorted staticmethod"
    " str sum super tuple type vars zip exit quit".split()
)

# attributes


def evaluate_attribute(world: World, node: ast.Attribute) -> Value:
    receiver = evaluate(world, node.value)
    return attribute(world, receiver, node.attr)


def attribute(world: World, receiver: Value, name: str) -> Value:
    receiver = settled(receiver)
    if isinstance(receiver, External):
        qualified = f"{receiver.qualified}.{name}"
        found = None
        if receiver.qualified.split(".")[0] not in classes.OUTSIDE:
            found = world.project.find(qualified, world.frame.module)
        return definition(found, qualified) if found else External(qualified, qualified=qualified)
    if isinstance(receiver, Instance):
        return instance_attribute(world, receiver, name)
    if isinstance(receiver, ClassValue) and receiver.cls is not None:
        method = classes.find_method(world, receiver.cls, name)
        if method is not None:
            kinds = {d.id for d in method.decorators if isinstance(d, ast.Name)}
            owner = receiver if "classmethod" in kinds else None
            return Callable(f"{receiver.key}.{name}", function=method, this=owner)
        return unknown(f"{receiver.key}.{name}", name)
    if isinstance(receiver, Tensor):
        return tensor_attribute(world, receiver, name)
    if (
        isinstance(receiver, Thing)
        and receiver.role is Role.MODEL
        and name in ("module", "_orig_mod")
    ):
        return receiver
    if isinstance(receiver, Container) and name in receiver.names:
        return receiver.names[name]
    place = (receiver.key, name)
    known = world.attributes.get(place) or world.reads.get(place)
    if known is not None:
        return known
    value = unknown(f"{receiver.key}.{name}", name)
    if isinstance(receiver, Unknown) and receiver.role is Role.MODEL and name == "module":
        return receiver
    if isinstance(receiver, Unknown):
        value.parents = (receiver,) if name == "loss" or receiver.proven else ()
    world.reads[place] = value
    return value


def tensor_attribute(world: World, receiver: Tensor, name: str) -> Value:
    if name in ("data", "detach"):
        return Tensor(f"{receiver.key}.{name}", graph=False)
    if name in ("T", "mT", "real", "imag", "H"):
        return Tensor(f"{receiver.key}.{name}", parents=(receiver,))
    if name in knowledge.CUTTING:
        return Number(f"{receiver.key}.{name}")
    certain = bool(knowledge.LOSS_NAME.search(name)) or name in ("logits", "last_hidden_state")
    return Tensor(
        f"{receiver.key}.{name}",
        parents=(receiver,),
        opaque=not certain,
        barrier=certain,
        loss=bool(knowledge.LOSS_NAME.search(name)),
        # The losses that Hugging Face models return are means.
        reduction="mean" if name == "loss" else "",
    )


def instance_attribute(world: World, receiver: Instance, name: str) -> Value:
    if name in receiver.attributes:
        return receiver.attributes[name]
    cls = receiver.cls
    if cls is None:
        return unknown(f"{receiver.key}.{name}", name)
    method = classes.find_method(world, cls, name)
    if method is not None:
        return bound(world, method, receiver)
    constant = class_constant(world, cls, name)
    if constant is not None:
        return constant
    assigned = assigned_elsewhere(world, cls, name, receiver)
    value = assigned or unknown(f"{receiver.key}.{name}", name)
    receiver.attributes[name] = value
    return value


def bound(world: World, method: Function, receiver: Value) -> Value:
    kinds = {d.id for d in method.decorators if isinstance(d, ast.Name)}
    key = f"{receiver.key}.{method.name}"
    if "staticmethod" in kinds:
        return Callable(key, function=method)
    if "property" in kinds or "cached_property" in kinds:
        return calls.follow(
            world, Callable(key, function=method, this=receiver), [], {}, method.node
        )
    return Callable(key, function=method, this=receiver)


def class_constant(world: World, cls: Class, name: str) -> Value | None:
    for kin in classes.lineage(world, cls):
        if name in kin.constants:
            expression = kin.constants[name]
            if isinstance(expression, ast.Constant):
                return Constant(repr(expression.value), value=expression.value)
            return None
    return None


def assigned_elsewhere(world: World, cls: Class, name: str, receiver: Instance) -> Value | None:
    """What a method that was not followed (setup, configure ...) assigns to `self.name`."""
    for kin in classes.lineage(world, cls):
        for expression, method in kin.assigned.get(name, ()):
            if method.name == "__init__" or not isinstance(expression, ast.Call):
                continue
            if len(world.frames) > 30:
                return None
            receiver.attributes[name] = unknown(f"{receiver.key}.{name}", name)
            frame = Frame(method.module, method, this=receiver)
            calls.bind_unknown(world, frame, method)
            frame.names[first_argument(method)] = receiver
            world.frames.append(frame)
            loops, world.loops = world.loops, []
            events = len(world.events)
            try:
                return evaluate(world, expression)
            finally:
                del world.events[events:]
                world.loops = loops
                world.frames.pop()
    return None


def first_argument(method: Function) -> str:
    arguments = method.node.args.posonlyargs + method.node.args.args
    return arguments[0].arg if arguments else ""


# operations


def evaluate_constant(world: World, node: ast.Constant) -> Value:
    if node.value is None:
        return NONE
    return Constant(shortened(repr(node.value)), value=node.value)


def is_plain(value: Value) -> bool:
    return isinstance(value, Number | Constant)


def evaluate_binary(world: World, node: ast.BinOp) -> Value:
    left, right = evaluate(world, node.left), evaluate(world, node.right)
    return binary(world, node.op, left, right, node.right)


def binary(
    world: World, operator: ast.operator, left: Value, right: Value, right_node: ast.expr
) -> Value:
    sign = SIGNS.get(type(operator), "?")
    key = shortened(f"({left.key}{sign}{right.key})")
    if is_plain(left) and is_plain(right):
        return Number(key)
    if isinstance(left, Container) and isinstance(right, Container) and sign == "+":
        both = Container(key, items=[*left.items, *right.items], born=world.marks)
        both.parents = (left, right)
        return both
    divided = sign in ("/", "//")
    if sign == "*":
        divided = any(
            "/" in side.key or is_accumulation(side.key)
            for side in (left, right)
            if not isinstance(side, Tensor)
        )
    # A mean times the number of samples is a sum.
    counted = sign == "*" and any(
        knowledge.SAMPLE_COUNT.search(side.key) for side in (left, right) if is_plain_or_name(side)
    )
    return Tensor(
        key,
        parents=(left, right),
        graph=None if world.grad is not False else False,
        divided=divided,
        reduction="sum" if counted else "",
    )


def is_plain_or_name(value: Value) -> bool:
    return not isinstance(value, Tensor) or value.opaque


def is_accumulation(key: str) -> bool:
    return bool(knowledge.ACCUMULATION_NAME.search(key))


SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}


def evaluate_unary(world: World, node: ast.UnaryOp) -> Value:
    value = evaluate(world, node.operand)
    if isinstance(node.op, ast.Not):
        return Number(f"not {value.key}")
    if isinstance(value, Constant) and isinstance(node.op, ast.USub):
        if isinstance(value.value, int | float):
            return Constant(f"-{value.key}", value=-value.value)
    if is_plain(value):
        return Number(f"-{value.key}")
    return Tensor(f"-{value.key}", parents=(value,))


def evaluate_compare(world: World, node: ast.Compare) -> Value:
    left = evaluate(world, node.left)
    parts = [left.key]
    for operator, comparator in zip(node.ops, node.comparators, strict=True):
        parts.append(type(operator).__name__ + ":" + evaluate(world, comparator).key)
    return Number(shortened("cmp(" + " ".join(parts) + ")"))


def evaluate_boolean(world: World, node: ast.BoolOp) -> Value:
    from oomlint.analysis.conditions import branch, is_eventful

    rest = node.values[1:]
    if is_eventful(world, world.frame.module, rest):
        # `ready and optimizer.step()` is a branch in disguise.
        conjunction = isinstance(node.op, ast.And)
        taken = branch(
            world, node.values[0], rest if conjunction else [], [] if conjunction else rest
        )
        if taken is not None and taken is not conjunction:
            return Number(f"shortcut@{node.lineno}:{world.marks}")
        for part in rest[:-1]:
            evaluate(world, part)
        return evaluate(world, rest[-1])
    values = [evaluate(world, part) for part in node.values]
    if all(is_plain(value) for value in values):
        word = " and " if isinstance(node.op, ast.And) else " or "
        return Number(shortened("(" + word.join(value.key for value in values) + ")"))
    result = values[0]
    for value in values[1:]:
        result = join(result, value)
    return result


def evaluate_conditional(world: World, node: ast.IfExp) -> Value:
    from oomlint.analysis.conditions import branch

    truth = branch(world, node.test, [node.body], [node.orelse])
    if truth is True:
        return evaluate(world, node.body)
    if truth is False:
        return evaluate(world, node.orelse)
    return join(evaluate(world, node.body), evaluate(world, node.orelse))


def evaluate_subscript(world: World, node: ast.Subscript) -> Value:
    receiver = settled(evaluate(world, node.value))
    index = evaluate(world, node.slice)
    return element(world, receiver, index)


def element(world: World, receiver: Value, index: Value) -> Value:
    key = shortened(f"{receiver.key}[{index.key}]")
    if isinstance(receiver, Container):
        return container_element(world, receiver, index, key)
    if isinstance(receiver, Tensor):
        name = index.value if isinstance(index, Constant) else None
        certain = name == 0 or not isinstance(name, int | str)
        if isinstance(name, str):
            certain = bool(knowledge.LOSS_NAME.search(name)) or receiver.loss
        if receiver.key.endswith(".indexed()") and name == 1:
            return Tensor(key, graph=False)
        found = Tensor(key, parents=(receiver,), opaque=not certain)
        found.loss = receiver.loss or (isinstance(name, str) and certain)
        return found
    if isinstance(receiver, Number | Constant):
        return Number(key)
    if isinstance(receiver, External):
        return External(receiver.key, qualified=receiver.qualified)
    place = (receiver.key, f"[{index.key}]")
    known = world.attributes.get(place) or world.reads.get(place)
    if known is not None:
        return known
    name = index.value if isinstance(index, Constant) and isinstance(index.value, str) else ""
    value = unknown(key, name or getattr(receiver, "name", ""))
    # A mask or a slice of a tensor is a tensor; an entry of a dict or tuple may be anything.
    is_part = isinstance(receiver, Unknown) and not isinstance(index, Constant)
    value.parents = (receiver,) if is_part else ()
    world.reads[place] = value
    return value


def container_element(world: World, receiver: Container, index: Value, key: str) -> Value:
    if isinstance(index, Constant):
        if isinstance(index.value, str) and index.value in receiver.names:
            return receiver.names[index.value]
        if isinstance(index.value, int) and receiver.kind in ("tuple", "list"):
            if -len(receiver.items) <= index.value < len(receiver.items):
                return receiver.items[index.value]
    held = [*receiver.items, *receiver.names.values()]
    if not held:
        return unknown(key, "")
    result = held[0]
    for value in held[1:4]:
        result = join(result, value)
    return result


def evaluate_display(world: World, node: ast.Tuple | ast.List | ast.Set) -> Value:
    items = []
    for part in node.elts:
        value = evaluate(world, part.value if isinstance(part, ast.Starred) else part)
        if isinstance(part, ast.Starred) and isinstance(value, Container):
            items.extend(value.items)
        else:
            items.append(value)
    kind = "tuple" if isinstance(node, ast.Tuple) else "list"
    key = shortened("(" + ",".join(item.key for item in items) + ")")
    if kind == "list":
        key = f"list@{node.lineno}:{node.col_offset}:{world.marks}"
    return Container(key, items=items, born=world.marks, kind=kind)


def evaluate_dict(world: World, node: ast.Dict) -> Value:
    key = f"dict@{node.lineno}:{node.col_offset}:{world.marks}"
    found = Container(key, born=world.marks, kind="dict")
    for name, part in zip(node.keys, node.values, strict=True):
        value = evaluate(world, part)
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            found.names[name.value] = value
        elif name is None and isinstance(value, Container):
            found.names.update(value.names)
            found.items.extend(value.items)
        else:
            found.items.append(value)
    return found


def evaluate_comprehension(world: World, node: Any) -> Value:
    """A comprehension is a loop: two iterations, what they yield in one container."""
    from oomlint.analysis import execution

    kind = "dict" if isinstance(node, ast.DictComp) else "list"
    born = world.marks
    found = Container(f"comp@{node.lineno}:{node.col_offset}:{born}", born=born, kind=kind)
    saved = dict(world.frame.names)
    loops = len(world.loops)
    first = node.generators[0]
    iterable = evaluate(world, first.iter)
    followed = [node.value] if isinstance(node, ast.DictComp) else [node.elt]
    busy = any(isinstance(part, ast.Call) for n in followed for part in ast.walk(n))
    world.serial += 1
    serial = world.serial
    for iteration in (1, 2) if busy and len(world.loops) < 4 else (1,):
        world.enter_loop(node, serial, iteration)
        execution.bind(
            world, first.target, execution.item_of(world, iterable, iteration, first.target)
        )
        for generator in node.generators[1:]:
            inner = evaluate(world, generator.iter)
            execution.bind(
                world,
                generator.target,
                execution.item_of(world, inner, iteration, generator.target),
            )
        for part in followed:
            found.items.append(evaluate(world, part))
        del world.loops[loops:]
    world.frame.names.clear()
    world.frame.names.update(saved)
    return found


def evaluate_lambda(world: World, node: ast.Lambda) -> Value:
    return Callable(f"lambda@{node.lineno}:{node.col_offset}", frame=world.frame, lambda_node=node)


def evaluate_text(world: World, node: ast.expr) -> Value:
    return Number(f"text@{node.lineno}:{node.col_offset}")


def evaluate_named(world: World, node: ast.NamedExpr) -> Value:
    from oomlint.analysis import execution

    value = evaluate(world, node.value)
    execution.bind(world, node.target, value)
    return value


def evaluate_inner(world: World, node: Any) -> Value:
    return evaluate(world, node.value)


def evaluate_yield(world: World, node: ast.Yield | ast.YieldFrom) -> Value:
    if node.value is not None:
        evaluate(world, node.value)
    return Unknown(f"yield@{node.lineno}")


def evaluate_slice(world: World, node: ast.Slice) -> Value:
    parts = [
        evaluate(world, part).key if part is not None else ""
        for part in (node.lower, node.upper, node.step)
    ]
    return Number(":".join(parts))


dispatch.HANDLERS.update(
    {
        ast.Name: evaluate_name,
        ast.Attribute: evaluate_attribute,
        ast.Constant: evaluate_constant,
        ast.BinOp: evaluate_binary,
        ast.UnaryOp: evaluate_unary,
        ast.Compare: evaluate_compare,
        ast.BoolOp: evaluate_boolean,
        ast.IfExp: evaluate_conditional,
        ast.Subscript: evaluate_subscript,
        ast.Tuple: evaluate_display,
        ast.List: evaluate_display,
        ast.Set: evaluate_display,
        ast.Dict: evaluate_dict,
        ast.ListComp: evaluate_comprehension,
        ast.SetComp: evaluate_comprehension,
        ast.GeneratorExp: evaluate_comprehension,
        ast.DictComp: evaluate_comprehension,
        ast.Lambda: evaluate_lambda,
        ast.JoinedStr: evaluate_text,
        ast.FormattedValue: evaluate_text,
        ast.NamedExpr: evaluate_named,
        ast.Starred: evaluate_inner,
        ast.Await: evaluate_inner,
        ast.Yield: evaluate_yield,
        ast.YieldFrom: evaluate_yield,
        ast.Slice: evaluate_slice,
        ast.Call: lambda world, node: calls.evaluate_call(world, node),
    }
)
