"""Which parts the names of one function play in the training step, by following the function."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass

from oomlint.analysis import Model
from oomlint.analysis.knowledge import Evidence, Role
from oomlint.analysis.modules import written
from oomlint.analysis.observation import observing
from oomlint.analysis.roles import role_of
from oomlint.analysis.values import Tensor, Unknown, Value, settled


@dataclass(frozen=True, slots=True)
class Played:
    """A role, None for what is taken for a tensor; `named` where only the name says so."""

    role: Role | None
    named: bool


def parts_played(model: Model, functions: tuple[ast.AST, ...]) -> dict[str, Played]:
    """What every name and `self.name` in the functions is taken for, where the model knows it.

    Must be asked before the model was followed for anything else.
    """
    places = {
        node: written(node)
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    places = {node: name for node, name in places.items() if name.count(".") < 2}
    with observing(model.module, places, ()) as observation:
        _ = model.worlds
    votes: dict[str, Counter[Played]] = {}
    for node, readings in observation.readings.items():
        if node not in places:
            continue
        for world, value in readings:
            role = role_of(world, value)
            if role is not None or isinstance(settled(value), Tensor):
                votes.setdefault(places[node], Counter())[Played(role, is_named(value))] += 1
    return {name: counts.most_common(1)[0][0] for name, counts in votes.items()}


def is_named(value: Value) -> bool:
    found = settled(value)
    return isinstance(found, Unknown) and found.evidence is Evidence.NAMED
