"""Objects that a call makes: optimizers, losses and scalers, instances of project classes."""

from __future__ import annotations

import ast

from oomlint.analysis import classes, driven, knowledge
from oomlint.analysis.autocast import cast
from oomlint.analysis.following import follow
from oomlint.analysis.knowledge import Role
from oomlint.analysis.modules import Class
from oomlint.analysis.roles import owners_of
from oomlint.analysis.state import World
from oomlint.analysis.values import (
    Arguments,
    Callable,
    Constant,
    Container,
    Instance,
    Keywords,
    Thing,
    Unknown,
    Value,
)


def make_thing(
    world: World,
    node: ast.Call,
    role: Role,
    qualified: str,
    arguments: Arguments,
    keywords: Keywords,
) -> Value:
    key = f"{qualified.rsplit('.', 1)[-1]}@{made_at(world, node)}"
    reduction = ""
    if role is Role.CRITERION:
        given = keywords.get("reduction")
        reduction = "mean" if given is None else ""
        if isinstance(given, Constant) and isinstance(given.value, str):
            reduction = given.value
        if "size_average" in keywords or "reduce" in keywords:
            reduction = ""
    models: frozenset[str] = frozenset()
    if role is Role.OPTIMIZER:
        models = owners_of(arguments[0] if arguments else keywords.get("params"))
    if role is Role.SCALER:
        enabled = keywords.get("enabled")
        if isinstance(enabled, Constant) and enabled.value is False:
            return Unknown(key, name="disabled")
    thing = Thing(
        key, role=role, qualified=qualified, reduction=reduction, models=models, made=node
    )
    if role is Role.MODEL:
        given = keywords.get("torch_dtype") or keywords.get("dtype")
        cast(world, node, key, "to", [given] if given is not None else [])
    thing.arguments = {**{str(i): v for i, v in enumerate(arguments)}, **keywords}
    return thing


def made_at(world: World, node: ast.Call) -> str:
    """Where and when an object is made: the same line makes another one on another way to it."""
    way = "/".join(
        f"{call.node.lineno}.{call.node.col_offset}"
        for call in world.calls
        if isinstance(call.node, ast.expr)
    )
    return f"{world.frame.module.name}:{node.lineno}:{node.col_offset}:{way}:{world.marks}"


def construct(
    world: World, node: ast.Call, cls: Class, arguments: Arguments, keywords: Keywords
) -> Value:
    bases = classes.base_names(world, cls)
    key = f"{cls.name}@{made_at(world, node)}"
    qualified = f"{cls.module.name}.{cls.name}"
    if knowledge.role_of_constructor(qualified) is Role.ACCELERATOR:
        # The framework's own examples and tests lie beside its source.
        return make_thing(world, node, Role.ACCELERATOR, qualified, arguments, keywords)
    if driven.is_engine_maker(qualified):
        return driven.make_engine(world, node, qualified, arguments, keywords)
    for base in bases:
        role = knowledge.role_of_constructor(base)
        if role is Role.SCHEDULER and has_own_step(world, cls):
            break
        if role in (Role.OPTIMIZER, Role.LOADER, Role.SCHEDULER, Role.SCALER):
            if any(
                "zero_grad" in m.words
                for kin in classes.lineage(world, cls)
                for m in kin.methods.values()
            ):
                break
            return make_thing(world, node, role, base, arguments, keywords)
    is_module = any(knowledge.MODULE_BASE.fullmatch(base) for base in bases)
    instance = Instance(key, cls=cls, is_module=is_module)
    if is_module and knowledge.LOSS_NAME.search(cls.name):
        return instance
    if is_module and not any(knowledge.LIGHTNING_MODULE.fullmatch(base) for base in bases):
        # The parts of a network do not matter to the training step.
        return instance
    method = classes.find_method(world, cls, "__init__")
    if method is not None:
        follow(world, Callable(key, function=method, this=instance), arguments, keywords, node)
    elif any("dataclass" in ast.unparse(d) for d in cls.node.decorator_list):
        names = [
            s.target.id
            for s in cls.node.body
            if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
        ]
        instance.attributes.update(zip(names, arguments, strict=False))
        instance.attributes.update(keywords)
    return instance


def has_own_step(world: World, cls: Class) -> bool:
    """Whether a scheduler of the project decides in its `step` itself where it is."""
    step = classes.find_method(world, cls, "step")
    return step is not None and "super" not in step.words


def copied(value: Value, node: ast.Call) -> Value:
    key = f"copy({value.key})@{node.lineno}"
    if isinstance(value, Thing):
        return Thing(key, role=value.role, qualified=value.qualified)
    if isinstance(value, Instance):
        return Instance(
            key, cls=value.cls, attributes=dict(value.attributes), is_module=value.is_module
        )
    if isinstance(value, Unknown):
        found = Unknown(key, name=value.name, role=value.role, evidence=value.evidence)
        found.made_of = (value,)
        return found
    return value


def deepspeed_initialize(node: ast.Call, model: Value | None) -> Value:
    engine = Thing(
        f"deepspeed@{node.lineno}",
        role=Role.ENGINE,
        qualified="deepspeed.initialize",
        arguments={"model": model} if model is not None else {},
    )
    others = [
        Thing(f"deepspeed.{role.value}@{node.lineno}", role=role)
        for role in (Role.ENGINE, Role.LOADER, Role.SCHEDULER)
    ]
    return Container("deepspeed", items=[engine, *others], kind="tuple")
