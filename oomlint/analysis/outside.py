"""Calls outside the project: torch, other libraries, builtins."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import lru_cache

from oomlint.analysis import autocast, driven, knowledge
from oomlint.analysis.attributes import attribute
from oomlint.analysis.iteration import item_of
from oomlint.analysis.modules import Class
from oomlint.analysis.opaque import opaque
from oomlint.analysis.state import Kind, World
from oomlint.analysis.things import construct, copied, deepspeed_initialize, make_thing
from oomlint.analysis.training import backward, clip, loss_of
from oomlint.analysis.values import (
    NONE,
    Arguments,
    Callable,
    ClassValue,
    Constant,
    Container,
    Context,
    External,
    GradContext,
    Keywords,
    Number,
    Sequence,
    Super,
    Tensor,
    Unknown,
    Value,
    has_graph,
    join,
    may_have_graph,
    shortened,
    unknown,
)


@lru_cache(maxsize=4096)
def is_special(qualified: str) -> bool:
    """Whether a qualified name is one of those that `call_external` knows."""
    patterns = (
        knowledge.NO_GRAD,
        knowledge.ENABLE_GRAD,
        knowledge.SET_GRAD,
        knowledge.AUTOGRAD_GRAD,
        knowledge.AUTOGRAD_BACKWARD,
        knowledge.CLIP,
        knowledge.FUNCTIONAL_LOSS,
        knowledge.AMP_SCALE_LOSS,
    )
    return (
        any(pattern.fullmatch(qualified) for pattern in patterns)
        or qualified.endswith("autograd.backward")
        or bool(knowledge.AUTOCAST.search(qualified))
    )


def call_external(
    world: World, node: ast.Call, qualified: str, arguments: Arguments, keywords: Keywords
) -> Value:
    if not is_special(qualified):
        return call_known(world, node, qualified, arguments, keywords)
    first = arguments[0] if arguments else None
    if knowledge.NO_GRAD.fullmatch(qualified):
        off = first if first is not None else keywords.get("mode")
        if isinstance(first, Callable):
            return first
        if isinstance(off, Constant):
            return GradContext(qualified, mode=off.value is False)
        return GradContext(qualified, mode=None if off is not None else False)
    if knowledge.ENABLE_GRAD.fullmatch(qualified):
        return GradContext(qualified, mode=True)
    if knowledge.SET_GRAD.fullmatch(qualified):
        return set_grad(world, first if first is not None else keywords.get("mode"))
    if knowledge.AUTOGRAD_GRAD.fullmatch(qualified):
        world.emit(Kind.GRADIENT_TAKEN, node, None, first)
        kept = keywords.get("create_graph")
        second = isinstance(kept, Constant) and kept.value is True
        return Tensor(f"grad@{node.lineno}:{world.marks}", graph=bool(second))
    if knowledge.AUTOGRAD_BACKWARD.fullmatch(qualified) or qualified.endswith("autograd.backward"):
        if first is not None:
            backward(
                world, node, first, wrapper="" if qualified.startswith("torch.autograd") else "rpc"
            )
        return NONE
    if knowledge.CLIP.fullmatch(qualified):
        return clip(world, node, arguments, keywords, None)
    if knowledge.FUNCTIONAL_LOSS.fullmatch(qualified):
        return loss_of(world, node, External(qualified), arguments, keywords, "mean")
    if knowledge.AMP_SCALE_LOSS.fullmatch(qualified) and first is not None:
        return Context(qualified, kind="scale_loss", inner=first)
    if knowledge.AUTOCAST.search(qualified):
        return Context(qualified, kind=autocast.kind_of(qualified, arguments, keywords))
    return call_known(world, node, qualified, arguments, keywords)


def set_grad(world: World, mode: Value | None) -> Value:
    world.grad = None
    if isinstance(mode, Constant) and isinstance(mode.value, bool):
        world.grad = mode.value
    if isinstance(mode, (Number, Unknown)):
        assumed = world.assumptions.get(mode.key, world.assumptions.get(f"none:{mode.key}"))
        if assumed is not None:
            world.grad = assumed if mode.key in world.assumptions else not assumed
    return GradContext("set_grad_enabled", mode=world.grad)


def call_known(
    world: World, node: ast.Call, qualified: str, arguments: Arguments, keywords: Keywords
) -> Value:
    first = arguments[0] if arguments else None
    if first is not None and knowledge.is_transparent(qualified):
        return first
    if qualified.startswith("ignite.") and driven.is_engine_maker(qualified):
        return driven.make_engine(world, node, qualified, arguments, keywords)
    role = knowledge.role_of_constructor(qualified)
    if role is not None:
        return make_thing(world, node, role, qualified, arguments, keywords)
    head, dot, last = qualified.partition(".")
    if not dot:
        return call_builtin(world, node, qualified, arguments, keywords)
    last = last.rpartition(".")[2]
    if "clip" in last and knowledge.CLIP_NAME.match(last):
        return clip(world, node, arguments, keywords, None)
    inputs = [*arguments, *keywords.values()] if keywords else arguments
    key = shortened(f"{qualified}({','.join([value.key for value in inputs])})")
    if head == "torch":
        return call_torch(world, qualified, last, key, inputs)
    if qualified in ("copy.deepcopy", "copy.copy") and first is not None:
        return copied(first, node)
    if qualified == "functools.partial" and first is not None:
        if isinstance(first, Callable):
            return replace(first, given=(*first.given, *arguments[1:]), named=dict(keywords))
        if isinstance(first, External):
            bound = (*first.given, *arguments[1:])
            return replace(first, given=bound, named={**first.named, **keywords})
        return first
    if qualified in ("collections.namedtuple", "typing.NamedTuple"):
        return External(f"record@{node.lineno}", qualified=RECORD)
    if qualified == RECORD:
        return Container(key, items=[*inputs], born=world.marks, kind="tuple")
    if qualified in ("collections.deque", "collections.defaultdict", "collections.OrderedDict"):
        limit = keywords.get("maxlen")
        if limit is None and qualified.endswith("deque") and len(arguments) > 1:
            limit = arguments[1]
        bounded = limit is not None and not is_many(limit)
        return Container(
            f"{qualified}@{node.lineno}:{node.col_offset}:{world.marks}",
            born=world.marks,
            kind="dict" if "ict" in qualified else "list",
            bounded=bounded,
            items=made_on_demand(world, node, qualified, first),
        )
    if qualified.endswith("amp.initialize") and len(arguments) > 1:
        # apex changes what it is given, and gives it back.
        return Container(key, items=list(arguments[:2]), kind="tuple", born=world.marks)
    if qualified.startswith("itertools.") and arguments:
        return arguments[0]
    if qualified == "deepspeed.initialize":
        given = arguments[1] if len(arguments) > 1 else keywords.get("model")
        return deepspeed_initialize(node, given)
    if qualified.startswith("contextlib."):
        return GradContext(qualified) if "ExitStack" in last else Context(key, kind="null")
    if head in knowledge.NUMBER_MODULES:
        for value in inputs:
            if isinstance(value, (Tensor, Unknown)):
                world.emit(Kind.DETACH, node, None, value)
        return Number(key)
    return opaque(world, node, qualified, arguments, keywords)


RECORD = "collections.namedtuple()"
# What holds on to this many graphs is as good as unbounded.
MANY = 1000


def is_many(limit: Value) -> bool:
    return isinstance(limit, Constant) and isinstance(limit.value, int) and limit.value >= MANY


def made_on_demand(
    world: World, node: ast.Call, qualified: str, factory: Value | None
) -> list[Value]:
    """What `defaultdict(Meter)` makes of a key that is new: one of these tells the story."""
    if qualified != "collections.defaultdict" or not isinstance(factory, ClassValue):
        return []
    return [construct(world, node, factory.cls, [], {})] if factory.cls is not None else []


def call_torch(world: World, qualified: str, last: str, key: str, inputs: list[Value]) -> Value:
    if last == "is_tensor" and inputs and has_graph(inputs[0]):
        return Constant("True", value=True)
    if last in knowledge.FACTORIES or ".utils." in qualified or ".distributed." in qualified:
        return Tensor(key, graph=False if last in knowledge.FACTORIES else None, opaque=True)
    if qualified.startswith("torch.cuda.") or last in ("save", "load", "manual_seed", "device"):
        return unknown(key, last)
    if last in knowledge.CUTTING:
        return Number(key)
    if last in knowledge.INDEXED and len(inputs) > 1:
        key += ".indexed()"
    found = Tensor(key, parents=tuple(inputs), made_by=last)
    if last in ("mean", "sum"):
        found.reduction = last
    if last in ("div", "true_divide"):
        found.divided = True
    if world.grad is False:
        found.graph = False
    return found


def call_builtin(
    world: World, node: ast.Call, name: str, arguments: Arguments, keywords: Keywords
) -> Value:
    first = arguments[0] if arguments else None
    key = shortened(f"{name}({','.join(value.key for value in arguments)})")
    if name in ("enumerate", "zip", "range", "reversed"):
        if name == "reversed" and first is not None:
            return first
        parts = [*arguments, *keywords.values()] if name == "enumerate" else arguments
        return Sequence(key, kind=name, parts=tuple(parts))
    if name in ("float", "int") and first is not None:
        world.emit(Kind.DETACH, node, None, first)
    if name == "hasattr" and isinstance(first, Tensor) and len(arguments) > 1:
        asked = arguments[1]
        if isinstance(asked, Constant) and asked.value in ("item", "detach", "backward", "cpu"):
            return Constant("True", value=True)
    if name == "isinstance" and isinstance(first, Tensor) and has_graph(first):
        asked = arguments[1] if len(arguments) > 1 else NONE
        if isinstance(asked, External) and asked.qualified.endswith("Tensor"):
            return Constant("True", value=True)
    if name == "len" and isinstance(first, Container) and first.kind == "list":
        # `if len(pending) == window`: another condition each time the list has grown.
        return Number(f"{key}:{len(first.items)}")
    if name in knowledge.NUMBER_CALLS:
        return Number(key)
    if name == "sum" and first is not None:
        return (
            Tensor(key, parents=(first,), made_by=name)
            if may_have_graph(first) or isinstance(first, Sequence)
            else Number(key)
        )
    if name in ("max", "min") and arguments:
        return arguments[0] if len(arguments) == 1 else join(arguments[0], arguments[1])
    if name in ("list", "tuple", "set", "dict", "sorted", "iter"):
        return collected(world, node, name, first, keywords)
    if name == "next" and first is not None:
        return item_of(world, first, 1, None)
    if name == "super":
        frame = world.frame
        while frame.parent is not None and (frame.function is None or frame.function.owner is None):
            frame = frame.parent
        owner: Class | None = frame.function.owner if frame.function else None
        return Super("super", this=frame.this, cls=owner)
    if name == "getattr" and len(arguments) > 1 and isinstance(arguments[1], Constant):
        return attribute(world, arguments[0], str(arguments[1].value))
    if name in ("abs",) and first is not None and not isinstance(first, (Number, Constant)):
        return Tensor(key, parents=(first,))
    return opaque(world, node, name, arguments, keywords)


def collected(
    world: World, node: ast.Call, name: str, first: Value | None, keywords: Keywords
) -> Value:
    key = f"{name}@{node.lineno}:{node.col_offset}:{world.marks}"
    if isinstance(first, Container):
        return Container(
            key, items=list(first.items), names=dict(first.names), born=world.marks, kind=first.kind
        )
    if first is None:
        kind = "dict" if name == "dict" else "list"
        return Container(key, names=dict(keywords), born=world.marks, kind=kind)
    return first
